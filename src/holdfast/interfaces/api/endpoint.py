"""Declarations of endpoints, and the cursors of pages."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import orjson

from holdfast.core.errors import NotFound
from holdfast.core.values.text import storable
from holdfast.interfaces.api.fields import NoParams, RequestModel
from holdfast.interfaces.api.problem import Problem
from holdfast.ops.service import Operations
from holdfast.stores.admin.token import Scope
from holdfast.stores.integrations.idempotency import RecordCursor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `name` is the actor in the audit log; `id` is the scope of the idempotency keys."""

    name: str
    scope: Scope
    id: str = "anonymous"


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One parsed and authorized request."""

    ops: Operations
    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def name(self) -> str:
        return self.path["name"]

    def id(self, what: str) -> UUID:
        """The id in the path. Raises `NotFound` if it is not a UUID."""
        try:
            return UUID(self.path["id"])
        except ValueError:
            raise NotFound(what, self.path["id"], "an id is a UUID") from None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list. `next` is the cursor of the next page, or None on the last page."""

    items: Sequence[T]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """Whether the request changed anything."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """One method of one path: required scope, request models and response type."""

    method: str
    path: str
    summary: str
    answer: Any
    handle: Callable[[ApiCall], Awaitable[object]]
    scope: Scope = Scope.READ
    query: type[RequestModel] = NoParams
    body: type[RequestModel] | None = None
    status: int = 200
    ids: frozenset[str] = field(default=frozenset())
    """The path parameters that are UUIDs."""

    @property
    def names(self) -> list[str]:
        """The path parameters, in order."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


def get(
    path: str, summary: str, answer: Any, handle: Callable[[ApiCall], Awaitable[object]], **more: Any
) -> ApiEndpoint:
    """An endpoint that reads."""
    return ApiEndpoint(method="GET", path=path, summary=summary, answer=answer, handle=handle, **more)


def post(
    path: str, summary: str, answer: Any, handle: Callable[[ApiCall], Awaitable[object]], **more: Any
) -> ApiEndpoint:
    """An endpoint that changes something, with the body and the scope in `more`."""
    return ApiEndpoint(method="POST", path=path, summary=summary, answer=answer, handle=handle, **more)


def page(kind: str, items: Sequence[T], limit: int, key: Callable[[T], object]) -> Page[T]:
    """A page whose cursor continues after its last item. A page shorter than `limit` is the last one."""
    return Page(items, write_cursor(kind, key(items[-1])) if len(items) == limit else None)


def write_cursor(kind: str, key: object) -> str:
    """An opaque cursor: the key of the last item of a page of `kind`."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, key])).decode().rstrip("=")


def read_cursor(kind: str, given: str | None, read: Callable[[Any], T]) -> T | None:
    """Decodes a cursor of `write_cursor`. Raises `Problem` for a cursor of another list."""
    if given is None:
        return None
    try:
        found, key = orjson.loads(base64.urlsafe_b64decode(given + "=" * (-len(given) % 4)))
        if found == kind:
            return read(key)
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, OverflowError):
        pass
    raise Problem(400, "invalid_cursor", "the cursor is invalid for this list; start again without a cursor")


def number(key: object) -> int:
    """Reads a cursor key as an integer that both databases can store."""
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**31:
        raise ValueError("invalid cursor")
    return key


def text(key: object) -> str:
    """Reads a cursor key as a text that both databases can store."""
    if not isinstance(key, str) or not storable(key):
        raise ValueError("invalid cursor")
    return key


def record_cursor(key: Any) -> RecordCursor:
    """Reads a cursor key of the list of idempotency keys."""
    at, scope, name = key
    read = datetime.fromisoformat(at)
    if read.utcoffset() is None or not (storable(scope) and storable(name)):
        raise ValueError("invalid cursor")
    return RecordCursor(read, scope, name)
