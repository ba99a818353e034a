"""The event store as a log: events in an order that every reader can rely on, none of them ever skipped.

Positions are given when an event is written and seen when it commits, so a reader that remembers a position would skip
whoever commits late. On PostgreSQL a reader therefore remembers what it could see: it reads, in order of position,
what one snapshot shows and the one before did not. A transaction that stays open for long holds nobody up, and an
event written after another had committed comes after it. On SQLite one writes at a time: there the position is enough.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import ConfigurationError, LogRewound
from holdfast.core.events.pattern import ANY, check_pattern
from holdfast.core.message import Message
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages_with

PAGE = 500
_PAGE_BYTES = 4_000_000
# A step of the log is sorted once for so many events: 200 bytes of memory each, while they wait to be read.
_AHEAD = 50_000
_LOOK, _MOST = 1000, 10_000
_BEFORE_ALL = "1:1:"
_SNAPSHOT = r"((?:\d+:\d+:[\d,]*)?)"
_CURSOR = re.compile(rf"{_SNAPSHOT};{_SNAPSHOT};(\d{{1,18}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the log. `done` and `target` are snapshots: all that `done` shows was read, and what `target` shows
    up to `position`. SQLite needs the position alone."""

    done: str = ""
    target: str = ""
    position: int = 0

    def __str__(self) -> str:
        return f"{self.done};{self.target};{self.position}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor that was written as this text; `ConfigurationError` if none was."""
        written = _CURSOR.fullmatch(text)
        if written is None:
            raise ConfigurationError(f"{text!r} is no cursor of this log; pass one that it gave you, or none to start")
        return cls(written[1], written[2], int(written[3]))


START = Cursor()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a reader wants: types, prefixes such as `order.*`, or `*`. Jobs and other addressed messages are
    no events."""

    patterns: tuple[str, ...] = (ANY,)

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ConfigurationError("no event is named; give types, prefixes such as order.*, or *")
        for pattern in self.patterns:
            check_pattern(pattern)

    @property
    def values(self) -> dict[str, object]:
        return {
            "every": ANY in self.patterns,
            "types": [pattern for pattern in self.patterns if pattern != ANY],
            "prefixes": [pattern[:-1] for pattern in self.patterns if pattern.endswith(".*")],
        }


class LogEntry(NamedTuple):
    """An event's place in the step that is being read, and about how many bytes it has."""

    position: int
    id: UUID
    size: int


class LogAhead(NamedTuple):
    """The next events of a step: it started at the cursor `step`, and behind them is `end`. `more` when others may wait."""

    entries: list[LogEntry]
    step: Cursor
    end: Cursor
    more: bool


class LogPage(NamedTuple):
    """Events in order, and the cursor behind them. Without `more` there were no others when it was read."""

    events: list[Message]
    cursor: Cursor
    more: bool


class LogBacklog(NamedTuple):
    """How many events wait behind a cursor, counted up to a bound, and for how long the oldest has; `or_more` when
    the bound was met, `rewound` when the log is not the one that the cursor was made for."""

    waiting: int
    age: timedelta
    or_more: bool
    rewound: bool


@operation(reads=True)
def log_end() -> Steps[Cursor]:
    """The cursor behind everything that is committed now."""
    return (yield from end_of_log())


def end_of_log() -> Steps[Cursor]:
    """`log_end` as a part of another operation."""
    ((snapshot, position, _, _),) = yield Query("log_end", {"done": _BEFORE_ALL})
    return Cursor(str(snapshot), "", int(position))


@operation(reads=True)
def look_ahead(cursor: Cursor, wanted: EventFilter, limit: int = _AHEAD) -> Steps[LogAhead]:
    """The events behind a cursor, without their payloads; looks at `limit` messages at most.

    `LogRewound` when the log is not the one that the cursor was made for.
    """
    return (yield from _look_ahead(cursor, wanted, limit))


@operation(reads=True)
def read_log(cursor: Cursor, wanted: EventFilter, limit: int = PAGE) -> Steps[LogPage]:
    """The next events behind a cursor, up to `limit`; fewer, or none, though `more` may wait."""
    if not 1 <= limit <= _MOST:
        raise ConfigurationError(f"limit is {limit}; a page holds 1 to {_MOST:,} events, page on for more")
    entries, step, end, more = yield from _look_ahead(cursor, wanted, max(limit, _LOOK))
    taken = _page(entries, limit)
    events = yield from _events(taken)
    if len(taken) < len(entries):
        return LogPage(events, replace(step, position=taken[-1].position), True)
    return LogPage(events, end, more)


@operation(reads=True)
def behind(cursor: Cursor, wanted: EventFilter, bound: int = 10_000) -> Steps[LogBacklog]:
    """How much waits behind a cursor, looking at `bound` messages at most."""
    place = _place(replace(cursor, target=""))
    ((_, _, _, rewound),) = yield Query("log_end", {"done": place["done"]})
    ((waiting, oldest, seen, now),) = yield Query("log_behind", {**place, **wanted.values}, limit=bound)
    first = optional_time(oldest)
    age = timedelta(0) if first is None else max(timedelta(0), aware_time(now) - first)
    return LogBacklog(int(waiting), age, int(seen) >= bound, bool(rewound))


class LogReader:
    """Reads the log from a cursor on, page by page. A long backlog is sorted once, not for each page."""

    def __init__(self, store: Store, wanted: EventFilter, cursor: Cursor = START) -> None:
        self._store, self._wanted = store, wanted
        self._ahead = LogAhead([], cursor, cursor, True)
        self._next = 0

    async def read(self, limit: int = PAGE) -> LogPage:
        """The next page; after one without `more`, all was read for now. When it raises, the next call is the same."""
        if self._next >= len(self._ahead.entries):
            self._ahead = await self._store.run(look_ahead(self._ahead.end, self._wanted))
            self._next = 0
        entries, step, end, more = self._ahead
        taken = _page(entries[self._next : self._next + limit], limit)
        events = await self._store.run(_read_events(taken)) if taken else []
        first, self._next = self._next == 0, self._next + len(taken)
        if self._next < len(entries):
            return LogPage(events, replace(step, position=taken[-1].position), True)
        return LogPage(events, end, more or not first)


def _look_ahead(cursor: Cursor, wanted: EventFilter, limit: int) -> Steps[LogAhead]:
    step = cursor
    if not cursor.target:
        ((snapshot, last, newest, rewound),) = yield Query("log_end", {"done": cursor.done or _BEFORE_ALL})
        if rewound:
            raise LogRewound(cursor.done, str(newest))
        if snapshot == cursor.done and cursor.position >= int(last):
            return LogAhead([], cursor, cursor, False)
        step = replace(cursor, target=str(snapshot))
    rows = yield Query("log_ahead", {**_place(step), **wanted.values}, limit=limit)
    entries = [LogEntry(int(position), as_uuid(id), int(size)) for position, id, size, _ in rows if id is not None]
    reached = int(rows[-1][0]) if rows else step.position
    if rows and int(rows[-1][3]) >= limit:
        return LogAhead(entries, step, replace(step, position=reached), True)
    # Without snapshots the position goes on; with them it starts anew in the next step. One that was begun earlier does
    # not show what has committed since.
    end = Cursor(step.target) if step.target else replace(step, position=reached)
    return LogAhead(entries, step, end, bool(cursor.target))


def _place(cursor: Cursor) -> dict[str, object]:
    return {"done": cursor.done or _BEFORE_ALL, "target": cursor.target or None, "position": cursor.position}


def _page(entries: Sequence[LogEntry], limit: int) -> Sequence[LogEntry]:
    """As many as are wanted and as memory bears, at least one."""
    size = 0
    for at, entry in enumerate(entries[:limit]):
        size += entry.size
        if at and size > _PAGE_BYTES:
            return entries[:at]
    return entries[:limit]


@operation(reads=True)
def _read_events(entries: Sequence[LogEntry]) -> Steps[list[Message]]:
    return (yield from _events(entries))


def _events(entries: Sequence[LogEntry]) -> Steps[list[Message]]:
    if not entries:
        return []
    found = yield from messages_with([entry.id for entry in entries]).start()
    return [found[entry.id] for entry in entries if entry.id in found]
