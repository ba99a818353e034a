"""The HTTP API: the operations service under `/api/v1`, declared once for the server and its OpenAPI document."""
