"""Builds the OpenAPI 3.1 document from the endpoints."""

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from holdfast._version import __version__
from holdfast.interfaces.api.endpoint import ApiEndpoint
from holdfast.interfaces.api.fields import RequestModel
from holdfast.interfaces.api.schema import Schema, Schemas

_REFERENCE = "#/components/schemas/{model}"
_PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "stable, machine-readable error code"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
                "required": ["field", "problem"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "code"],
}
_PROBLEMS = {
    400: "a parameter, the cursor or the idempotency key is invalid or unknown",
    401: "the token is missing, invalid, expired or revoked",
    403: "the scope of the token does not allow this",
    404: "the item does not exist",
    409: "the state of the item does not allow this, or the idempotency key belongs to another request",
    413: "the body is too large",
    415: "the body is not JSON",
    421: "the Host or Origin is not allowed",
    422: "the body is invalid",
    500: "internal error in Holdfast",
    503: "the store is unavailable; try again",
}
_READ_PROBLEMS = (400, 401, 403, 404, 421, 422, 500, 503)
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "unique for each operation; a repeated key returns the first response",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def document(endpoints: Sequence[ApiEndpoint], prefix: str, *, tokens: bool) -> Schema:
    """The OpenAPI document of the endpoints."""
    schemas = Schemas()
    bodies = {one.body for one in endpoints if one.body is not None}
    _, definitions = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)], ref_template=_REFERENCE
    )
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(f"{prefix}{one.path}", {})[one.method.lower()] = _operation(one, schemas)
    made: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Inspect and operate Holdfast. Lists are paginated: pass `next` as `cursor` to get the next page.",
        },
        "paths": paths,
        "components": {"schemas": {**definitions.get("$defs", {}), **schemas.components, "Problem": _PROBLEM}},
    }
    if tokens:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _operation(one: ApiEndpoint, schemas: Schemas) -> Schema:
    problems = _READ_PROBLEMS if one.body is None else tuple(_PROBLEMS)
    operation: Schema = {
        "operationId": f"{one.method.lower()}{one.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": one.summary,
        "description": f"Requires the scope `{one.scope}`.",
        "parameters": [*(_in_path(one, name) for name in one.names), *_in_query(one.query)],
        "responses": {
            str(one.status): {
                "description": "success",
                "content": {"application/json": {"schema": schemas.of(one.answer)}},
            },
            **{
                str(status): {
                    "description": _PROBLEMS[status],
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status in problems
            },
        },
    }
    if one.body is not None:
        operation["parameters"].append(_KEY)
        reference = {"$ref": _REFERENCE.format(model=one.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    return operation


def _in_path(one: ApiEndpoint, name: str) -> Schema:
    kind = {"type": "string", "format": "uuid"} if name in one.ids else {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": kind}


def _in_query(query: type[RequestModel]) -> list[Schema]:
    found = []
    described = query.model_json_schema()
    for name, schema in described.get("properties", {}).items():
        options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
        kind = options[0] if options else schema
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in described.get("required", ()),
                "schema": {key: value for key, value in kind.items() if key not in ("title", "default")},
            }
        )
    return found
