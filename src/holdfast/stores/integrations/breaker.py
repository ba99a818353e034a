"""Circuit breakers in SQL: one row each, changed under its lock with the database's clock."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TypeVar

from holdfast.core.circuit import Change, Circuit, reset, trip
from holdfast.core.errors import NotFound
from holdfast.stores.admin.actions import audited
from holdfast.stores.dialect import aware_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import row_reader

T = TypeVar("T")

_COLUMNS = tuple(field.name for field in fields(Circuit))
_circuit = row_reader(Circuit)


@dataclass(frozen=True, slots=True)
class StoredBreaker:
    """A circuit with its name, read at the database's time `now`."""

    name: str
    circuit: Circuit
    now: datetime


@operation(reads=True)
def read_breaker(name: str) -> Steps[tuple[Circuit, datetime]]:
    """The current circuit, closed if it is not stored, and the database's time."""
    return (yield from _read(name))


@operation(reads=True)
def breakers() -> Steps[list[StoredBreaker]]:
    """All stored circuits, by name."""
    rows = yield Query("breakers")
    return [StoredBreaker(name, _circuit(stored), aware_time(now)) for name, now, *stored in rows]


@operation
def change_breaker(name: str, change: Change[T]) -> Steps[tuple[Circuit, T, datetime]]:
    """Applies a change to a circuit; concurrent changes wait for the lock of its row."""
    return (yield from _changed(name, change))


@operation
def trip_breaker(name: str, duration: timedelta, actor: str, reason: str | None) -> Steps[Circuit]:
    """Opens a circuit for `duration`, even if it was never used."""
    circuit, _, _ = yield from _changed(name, trip(duration, _by(actor, "tripped", reason)))
    yield audited(actor, "trip", "breaker", name, reason)
    return circuit


@operation
def reset_breaker(name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Closes a circuit and clears its failures; False if it was closed without failures."""
    if not any(one == name for one, *_ in (yield Query("breakers"))):
        raise NotFound("breaker", name, "only circuits that had a failure are stored; see `holdfast breakers list`")
    before, _ = yield from _read(name)
    yield from _changed(name, reset(_by(actor, "reset", reason)))
    yield audited(actor, "reset", "breaker", name, reason)
    return before.open_until is not None or before.failures > 0


def _by(actor: str, done: str, reason: str | None) -> str:
    return f"{done} by {actor}: {reason}" if reason else f"{done} by {actor}"


def _read(name: str) -> Steps[tuple[Circuit, datetime]]:
    ((now, found, *stored),) = yield Query("breaker", {"name": name})
    return _circuit(stored) if found is not None else Circuit(), aware_time(now)


def _changed(name: str, change: Change[T]) -> Steps[tuple[Circuit, T, datetime]]:
    yield Query("make_breaker", {"name": name})
    yield Query("lock_breaker", {"name": name})
    # Read after the lock, so that row and clock are current.
    before, now = yield from _read(name)
    after, outcome = change(before, now)
    if after is not before:
        yield Query("save_breaker", {"name": name} | {column: getattr(after, column) for column in _COLUMNS})
    return after, outcome, now
