"""Repeated log lines: the first of a kind in full, a few more without their stack trace, the rest as one counted line.

A kind is an event, a consumer and a fingerprint. Within a minute the first line of a kind is written with its stack trace and
the next nine without; further ones are counted. At the end of that minute one line with `folded` says how many were counted,
with the fields of the last of them. If one event has more than a hundred kinds in a minute, further ones are folded per consumer.
"""

import asyncio
import time
from collections.abc import Callable

from holdfast.core.failures.frame import own_frame

INTERVAL = 60.0
SHOWN = 10
MOST_KINDS = 100

Write = Callable[..., None]
"""A method of a logger."""


class _Kind:
    __slots__ = ("fields", "folded", "seen", "started", "write")

    def __init__(self, started: float) -> None:
        self.started, self.seen, self.folded = started, 0, 0
        self.write: Write | None = None
        self.fields: dict[str, object] = {}


class Repeats:
    """Folds the repeated log lines of one app. In an event loop a timer ends each minute."""

    def __init__(self, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock = interval, clock
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._per_event: dict[str, int] = {}

    def log(self, write: Write, event: str, consumer: str, fingerprint: str, fields: dict[str, object]) -> None:
        """Writes the line, or counts it."""
        key = (event, consumer, fingerprint)
        if key not in self._kinds and self._per_event.get(event, 0) >= MOST_KINDS:
            key = (event, consumer, "")
        kind = self._kinds.get(key)
        if kind is not None and self._clock() - kind.started >= self._interval:
            self._end(key)
            kind = None
        if kind is None:
            kind = self._kinds[key] = _Kind(self._clock())
            self._per_event[event] = self._per_event.get(event, 0) + 1
            self._end_later(key, kind)
        kind.seen += 1
        if kind.seen > SHOWN:
            kind.folded += 1
            kind.write, kind.fields = write, fields
            return
        write(event, **fields if kind.seen == 1 else _short(fields))

    def close(self) -> None:
        """Writes what was counted so far."""
        for key in list(self._kinds):
            self._end(key)

    def _end_later(self, key: tuple[str, str, str], kind: _Kind) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(self._interval, lambda: self._end(key) if self._kinds.get(key) is kind else None)

    def _end(self, key: tuple[str, str, str]) -> None:
        kind, event = self._kinds.pop(key), key[0]
        self._per_event[event] -= 1
        if kind.write is not None:
            seconds = round(self._clock() - kind.started, 1)
            kind.write(event, **_short(kind.fields), folded=kind.folded, folded_seconds=seconds)


def _short(fields: dict[str, object]) -> dict[str, object]:
    """The same line with the source location instead of the stack trace."""
    if not isinstance(trace := fields.get("stack_trace"), str):
        return fields
    return {name: value for name, value in fields.items() if name != "stack_trace"} | {"where": own_frame(trace)}
