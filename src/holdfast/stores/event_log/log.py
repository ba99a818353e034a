"""The event store as a log: a stable order in which a reader never skips an event.

An event gets its position when it is written and becomes visible when it commits, so a reader that only stored a
position would skip events that commit late. On PostgreSQL a reader therefore stores snapshots: it reads the events that
one snapshot shows and the previous one did not, in order of position. A long transaction does not delay other events,
and an event that was written after the commit of another one comes after it. SQLite has one writer at a time, so the
position is enough.
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
# One query sorts this many entries; each takes 200 bytes of memory until it is read.
_AHEAD = 50_000
_LOOK, _MOST = 1000, 10_000
_BEFORE_ALL = "1:1:"
_SNAPSHOT = r"((?:\d+:\d+:[\d,]*)?)"
_CURSOR = re.compile(rf"{_SNAPSHOT};{_SNAPSHOT};(\d{{1,18}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the log. `done` and `target` are snapshots: the reader has read everything that `done` shows, and
    what `target` shows up to `position`. SQLite needs only the position."""

    done: str = ""
    target: str = ""
    position: int = 0

    def __str__(self) -> str:
        return f"{self.done};{self.target};{self.position}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parses the text form of a cursor; raises `ConfigurationError` for any other text."""
        written = _CURSOR.fullmatch(text)
        if written is None:
            raise ConfigurationError(
                f"{text!r} is not a cursor of this log; pass a cursor that the log returned, or none to start"
            )
        return cls(written[1], written[2], int(written[3]))


START = Cursor()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a reader receives: types, prefixes such as `order.*`, or `*`. Jobs and other addressed messages are not
    events."""

    patterns: tuple[str, ...] = (ANY,)

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ConfigurationError("the list of events is empty; pass types, prefixes such as order.*, or *")
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
    """The position of an event in the current step, and its approximate size in bytes."""

    position: int
    id: UUID
    size: int


class LogAhead(NamedTuple):
    """The next events of a step, which started at the cursor `step`; `end` is the cursor after them. `more`: there may
    be others."""

    entries: list[LogEntry]
    step: Cursor
    end: Cursor
    more: bool


class LogPage(NamedTuple):
    """Events in order, and the cursor after them. If `more` is false, there were no others at the time of the query."""

    events: list[Message]
    cursor: Cursor
    more: bool


class LogBacklog(NamedTuple):
    """The number of events after a cursor, counted up to a bound, and the age of the oldest.

    `or_more`: the bound was reached. `rewound`: the cursor belongs to another log.
    """

    waiting: int
    age: timedelta
    or_more: bool
    rewound: bool


def end_of_log() -> Steps[Cursor]:
    """The cursor after everything that is committed now."""
    ((snapshot, position, _, _),) = yield Query("log_end", {"done": _BEFORE_ALL})
    return Cursor(str(snapshot), "", int(position))


@operation(reads=True)
def look_ahead(cursor: Cursor, wanted: EventFilter, limit: int = _AHEAD) -> Steps[LogAhead]:
    """The events after a cursor, without payloads; reads at most `limit` messages.

    `LogRewound` when the cursor belongs to another log.
    """
    return (yield from _look_ahead(cursor, wanted, limit))


@operation(reads=True)
def read_log(cursor: Cursor, wanted: EventFilter, limit: int = PAGE) -> Steps[LogPage]:
    """The next events after a cursor, at most `limit`; the page may be short or empty although `more` is set."""
    if not 1 <= limit <= _MOST:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {_MOST:,} events, read the next page for more")
    entries, step, end, more = yield from _look_ahead(cursor, wanted, max(limit, _LOOK))
    taken = _page(entries, limit)
    events = yield from _events(taken)
    if len(taken) < len(entries):
        return LogPage(events, replace(step, position=taken[-1].position), True)
    return LogPage(events, end, more)


@operation(reads=True)
def behind(cursor: Cursor, wanted: EventFilter, bound: int = 10_000) -> Steps[LogBacklog]:
    """The backlog after a cursor; reads at most `bound` messages."""
    position = _position(replace(cursor, target=""))
    ((_, _, _, rewound),) = yield Query("log_end", {"done": position["done"]})
    ((waiting, oldest, seen, now),) = yield Query("log_behind", {**position, **wanted.values}, limit=bound)
    first = optional_time(oldest)
    age = timedelta(0) if first is None else max(timedelta(0), aware_time(now) - first)
    return LogBacklog(int(waiting), age, int(seen) >= bound, bool(rewound))


class LogReader:
    """Reads the log page by page from a cursor. A long backlog is sorted once, not for each page."""

    def __init__(self, store: Store, wanted: EventFilter, cursor: Cursor = START) -> None:
        self._store, self._wanted = store, wanted
        self._ahead = LogAhead([], cursor, cursor, True)
        self._next = 0

    async def read(self, limit: int = PAGE) -> LogPage:
        """The next page; a page without `more` is the last one for now. After an error the next call reads it again."""
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
    rows = yield Query("log_ahead", {**_position(step), **wanted.values}, limit=limit)
    entries = [LogEntry(int(position), as_uuid(id), int(size)) for position, id, size, _ in rows if id is not None]
    reached = int(rows[-1][0]) if rows else step.position
    if rows and int(rows[-1][3]) >= limit:
        return LogAhead(entries, step, replace(step, position=reached), True)
    # Without snapshots the position continues; with snapshots it restarts in the next step. A step that began earlier
    # does not show later commits, so there may be more.
    end = Cursor(step.target) if step.target else replace(step, position=reached)
    return LogAhead(entries, step, end, bool(cursor.target))


def _position(cursor: Cursor) -> dict[str, object]:
    return {"done": cursor.done or _BEFORE_ALL, "target": cursor.target or None, "position": cursor.position}


def _page(entries: Sequence[LogEntry], limit: int) -> Sequence[LogEntry]:
    """At most `limit` entries and a bounded number of bytes, at least one entry."""
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
