"""Reader positions in the event store: one row per reader, moved by one owner at a time under its fence."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import orjson

from holdfast.stores.event_log.log import START, Cursor, end_of_log
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import json_or, row_reader


class Reader(StrEnum):
    """The kinds of readers that store a position."""

    RELAY = "relay"
    REBUILD = "rebuild"


class PositionLease(NamedTuple):
    """The right to move a position, until another owner increments the fence."""

    kind: Reader
    name: str
    owner: str
    fence: int
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in the store, read at the database's time `now`. `passed` counts the handled events."""

    kind: str
    name: str
    cursor: Cursor
    owner: str | None
    fence: int
    lease_until: datetime | None
    passed: int
    detail: Mapping[str, object]
    created_at: datetime
    updated_at: datetime
    now: datetime

    @property
    def held(self) -> bool:
        """Whether the lease of an owner has not expired."""
        return self.owner is not None and self.lease_until is not None and self.lease_until > self.now


_position = row_reader(Position, cursor=Cursor.parse, detail=json_or({}))


@operation
def take_position(
    kind: Reader,
    name: str,
    owner: str,
    lease: timedelta,
    *,
    from_now: bool = False,
    detail: Mapping[str, object] | None = None,
) -> Steps[PositionLease | None]:
    """Makes `owner` the owner of a position; None while the lease of another owner is valid.

    A new position starts at the first event, or with `from_now` after the last committed one.
    """
    key = {"kind": kind.value, "name": name}
    if not (yield Query("position", key)):
        start = (yield from end_of_log()) if from_now else START
        yield Query("make_position", {**key, "cursor": str(start)})
    written = None if detail is None else orjson.dumps(detail).decode()
    rows = yield Query("take_position", {**key, "owner": owner, "lease": lease, "detail": written})
    return PositionLease(kind, name, owner, int(rows[0][0]), Cursor.parse(str(rows[0][1]))) if rows else None


@operation(single=True)
def move_position(held: PositionLease, cursor: Cursor | None, lease: timedelta, passed: int = 0) -> Steps[bool]:
    """Stores the position of an owner and renews its lease; False if another owner took over, and nothing changed.

    Without a cursor it only renews the lease.
    """
    return (yield from moved(held, cursor, lease, passed))


def moved(held: PositionLease, cursor: Cursor | None, lease: timedelta, passed: int = 0) -> Steps[bool]:
    """`move_position` as part of another operation."""
    values = {"cursor": None if cursor is None else str(cursor), "lease": lease, "passed": passed}
    return bool((yield Query("move_position", {**_owned(held), **values})))


@operation(single=True)
def release_position(held: PositionLease) -> Steps[None]:
    """Ends the lease, so that another owner can take over immediately."""
    yield Query("release_position", _owned(held))


@operation(reads=True)
def positions(kind: Reader) -> Steps[list[Position]]:
    """All positions of a kind, by name."""
    return [_position(row) for row in (yield Query("positions", {"kind": kind.value}))]


@operation(reads=True)
def is_paused(consumer: str) -> Steps[bool]:
    """Whether an operator paused this consumer or its queue."""
    return bool((yield Query("is_paused", {"name": consumer})))


def _owned(held: PositionLease) -> dict[str, object]:
    return {"kind": held.kind.value, "name": held.name, "owner": held.owner, "fence": held.fence}
