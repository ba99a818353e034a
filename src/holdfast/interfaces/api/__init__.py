"""The HTTP API under `/api/v1`. The server and the OpenAPI document are built from the same endpoint declarations.

`queries`, `commands` and `plans` declare the endpoints; `endpoint` defines what a declaration contains and the cursors
of pages. `fields` validates requests, `problem` turns errors into problem details (RFC 9457), `schema` and `openapi`
build the document from the JSON views. `auth` identifies the caller by token; `app` combines all of these with
idempotency keys and health checks.
"""
