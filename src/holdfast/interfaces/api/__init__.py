"""The HTTP API under `/api/v1`. The server and the OpenAPI document are built from the same endpoint declarations."""
