"""The OpenAPI 3.1 document, made from the endpoints themselves."""

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from holdfast._version import __version__
from holdfast.interfaces.api.endpoint import Endpoint
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
        "code": {"type": "string", "description": "what went wrong, for programs; it stays the same"},
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
    400: "a parameter, the cursor or the key cannot be read, or is unknown",
    401: "no token, or one that opens nothing",
    403: "the token's scope does not cover this",
    404: "there is no such item",
    409: "the item's state does not allow this, or the key belongs to another request",
    413: "the body is too large",
    415: "the body is not JSON",
    421: "this host is not served here",
    422: "the body does not fit, or names what cannot be",
    500: "a fault in Holdfast",
    503: "the store cannot answer now; try again",
}
_OF_READS = (400, 401, 403, 404, 421, 422, 500, 503)
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "new for each operation; the same key again gives the first answer",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def document(endpoints: Sequence[Endpoint], prefix: str, *, tokens: bool) -> Schema:
    """Everything the API offers."""
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
            "description": "What operators see and do. Lists come by pages: give `next` as `cursor` for the following.",
        },
        "paths": paths,
        "components": {"schemas": {**definitions.get("$defs", {}), **schemas.components, "Problem": _PROBLEM}},
    }
    if tokens:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _operation(one: Endpoint, schemas: Schemas) -> Schema:
    problems = _OF_READS if one.body is None else tuple(_PROBLEMS)
    operation: Schema = {
        "operationId": f"{one.method.lower()}{one.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": one.summary,
        "description": f"Needs the scope `{one.scope}`.",
        "parameters": [*(_in_path(one, name) for name in one.names), *_in_query(one.query)],
        "responses": {
            str(one.status): {
                "description": "done",
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


def _in_path(one: Endpoint, name: str) -> Schema:
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
