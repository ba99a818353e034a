"""JSON schemas of responses, built from the JSON views."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from holdfast.core.retry import RetryPolicy
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.interfaces.presentation.views import properties

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    BoundedCount: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    UUID: {"type": "string", "format": "uuid"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number", "description": "seconds"},
    type(None): {"type": "null"},
    RetryPolicy: {"type": "object"},
    object: {},
    Any: {},
}


class Schemas:
    """Builds schemas of types. Dataclasses and named tuples become shared components."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of the JSON view of this type."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in inner]}
        if is_dataclass(origin):
            return self._generic(origin, inner)
        if origin in (list, tuple, Sequence, frozenset):
            return self._several(origin, inner)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "enum": [one.value for one in kind]}
        return self._named(kind)

    def _several(self, origin: Any, inner: tuple[Any, ...]) -> Schema:
        if origin is tuple and (len(inner) != 2 or inner[1] is not ...):
            return {"type": "array", "prefixItems": [self.of(one) for one in inner]}
        return {"type": "array", "items": self.of(inner[0])}

    def _generic(self, origin: Any, inner: tuple[Any, ...]) -> Schema:
        """The schema of a page of items, inline."""
        written = {name: hint for name, hint in get_type_hints(origin).items() if name != "items"}
        items = {"type": "array", "items": self.of(inner[0])}
        return _object({"items": items, **{name: self.of(hint) for name, hint in written.items()}})

    def _named(self, kind: Any) -> Schema:
        name = kind.__name__
        if name not in self.components:
            self.components[name] = {}  # a recursive type finds its name here
            self.components[name] = _object({one.name: self.of(one.type) for one in properties(kind)})
        return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
