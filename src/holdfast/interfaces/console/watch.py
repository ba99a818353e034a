"""Cache of store statistics that all pages share, so that ten open pages cause as many queries as one."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.ops.service import Operations
from holdfast.ops.stats import Stats

T = TypeVar("T")

_FRESH_SECONDS = 1.5
_REST = 10
"""A value is cached for this many times its query duration, so that the console cannot dominate the load."""
_SPACING_SECONDS = 10
_SAMPLES = 361


@dataclass(frozen=True, slots=True)
class Sampled:
    """Store totals at one time. `oldest` is in seconds."""

    at: datetime
    oldest: float
    waiting: int
    dead: int


class Watch:
    """Caches query results of one store for a short time and keeps one hour of samples for the charts."""

    def __init__(self, ops: Callable[[], Operations]) -> None:
        self._ops = ops
        self._kept: dict[str, tuple[float, Any]] = {}
        self._asking: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._changes = 0
        self._history: deque[Sampled] = deque(maxlen=_SAMPLES)

    @property
    def history(self) -> Sequence[Sampled]:
        """Samples, oldest first, at least ten seconds apart."""
        return tuple(self._history)

    def forget(self) -> None:
        """Clears the cache after a change. Later reads start a new query, even if an older one is still running."""
        self._changes += 1
        self._kept.clear()

    async def stats(self) -> Stats:
        found = await self.read("stats", lambda ops: ops.stats())
        if not self._history or (found.now - self._history[-1].at).total_seconds() >= _SPACING_SECONDS:
            self._history.append(Sampled(found.now, found.oldest.total_seconds(), found.pending, found.failed))
        return found

    async def read(self, name: str, ask: Callable[[Operations], Awaitable[T]]) -> T:
        """Returns the cached or new result of `ask`. Concurrent callers share one query."""
        until, value = self._kept.get(name, (0.0, None))
        if time.monotonic() < until:
            return value  # type: ignore[no-any-return]
        now = (name, self._changes)
        if now not in self._asking:
            self._asking[now] = asyncio.ensure_future(self._look(now, ask))
            # Retrieves the exception, since every caller may have been cancelled.
            self._asking[now].add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        asking: asyncio.Future[T] = self._asking[now]
        return await asyncio.shield(asking)

    async def _look(self, now: tuple[str, int], ask: Callable[[Operations], Awaitable[T]]) -> T:
        began = time.monotonic()
        try:
            value = await ask(self._ops())
        finally:
            del self._asking[now]
        ended = time.monotonic()
        name, changes = now
        if changes == self._changes:
            self._kept[name] = (ended + max(_FRESH_SECONDS, _REST * (ended - began)), value)
        return value

    async def keep_watching(self) -> None:
        """Samples until cancelled. Ignores store errors, which the pages report."""
        while True:
            with contextlib.suppress(HoldfastError):
                await self.stats()
            await asyncio.sleep(_SPACING_SECONDS)
