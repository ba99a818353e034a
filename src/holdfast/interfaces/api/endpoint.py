"""Endpoints as values: the server and the OpenAPI document are both made from them."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

import orjson

from holdfast.core.errors import NotFound
from holdfast.interfaces.api.fields import NoParams, RequestModel
from holdfast.interfaces.api.problem import Problem
from holdfast.ops.service import Operations
from holdfast.stores.token import Scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from; `name` is what the audit says. `id` keeps one caller's idempotency keys from another's."""

    name: str
    scope: Scope
    id: str = "anonymous"


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was read and allowed."""

    ops: Operations
    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def name(self) -> str:
        return self.path["name"]

    def id(self, what: str) -> UUID:
        """The id in the path; one that is no id names nothing."""
        try:
            return UUID(self.path["id"])
        except ValueError:
            raise NotFound(what, self.path["id"], "an id is a UUID") from None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list. `next` is the cursor of the following one, none at the end."""

    items: Sequence[T]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What came of a change: false when everything was so already."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path: who may call it, what it takes, what it answers."""

    method: str
    path: str
    summary: str
    answer: Any
    handle: Callable[[Call], Awaitable[object]]
    scope: Scope = Scope.READ
    query: type[RequestModel] = NoParams
    body: type[RequestModel] | None = None
    status: int = 200
    ids: frozenset[str] = field(default=frozenset())
    """The names in the path that are UUIDs."""

    @property
    def names(self) -> list[str]:
        """The names in braces, in order."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


def page(kind: str, items: Sequence[T], limit: int, key: Callable[[T], object]) -> Page[T]:
    """A page whose cursor leads on from its last item; a short page is the last one."""
    return Page(items, write_cursor(kind, key(items[-1])) if len(items) == limit else None)


def write_cursor(kind: str, key: object) -> str:
    """An opaque mark of where a page of `kind` ended."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, key])).decode().rstrip("=")


def read_cursor(kind: str, given: str | None, read: Callable[[Any], T]) -> T | None:
    """What `write_cursor` was given; a cursor that is not from this list is a problem."""
    if given is None:
        return None
    try:
        found, key = orjson.loads(base64.urlsafe_b64decode(given + "=" * (-len(given) % 4)))
        if found == kind:
            return read(key)
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, OverflowError):
        pass
    raise Problem(400, "invalid_cursor", "the cursor is not from this list; begin again without one")


def number(key: object) -> int:
    """A cursor's key that is a whole number both databases can hold."""
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**31:
        raise ValueError("no such place")
    return key
