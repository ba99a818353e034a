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
from holdfast.core.query_interval import next_query
from holdfast.ops.queries.stats import Stats
from holdfast.ops.service import Operations
from holdfast.stores.queries.delivery_counts import DeadLetterCounts

T = TypeVar("T")

_MIN_CACHE_SECONDS, _MAX_CACHE_SECONDS = 1.5, 30.0
_CACHE_FACTOR = 10
"""A value is cached for this many times its query duration, so that the console cannot dominate the load."""
_SAMPLE_SECONDS = 10
_MAX_SAMPLES = 361


@dataclass(frozen=True, slots=True)
class StatsSample:
    """Store totals at one time. `oldest` is in seconds."""

    at: datetime
    oldest: float
    waiting: int
    dead: int


class StatsCache:
    """Caches query results of one store for a short time and keeps one hour of samples for the charts."""

    def __init__(self, ops: Callable[[], Operations]) -> None:
        self._ops = ops
        self._cached: dict[str, tuple[float, Any]] = {}
        self._running: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._changes = 0
        self._history: deque[StatsSample] = deque(maxlen=_MAX_SAMPLES)

    @property
    def history(self) -> Sequence[StatsSample]:
        """Samples, oldest first, at least ten seconds apart."""
        return tuple(self._history)

    def invalidate(self) -> None:
        """Clears the cache after a change. Later reads start a new query, even if an older one is still running."""
        self._changes += 1
        self._cached.clear()

    async def stats(self, dead: DeadLetterCounts | None = None) -> Stats:
        found = await self.read("stats", lambda ops: ops.stats(dead=dead))
        if not self._history or (found.now - self._history[-1].at).total_seconds() >= _SAMPLE_SECONDS:
            self._history.append(StatsSample(found.now, found.oldest.total_seconds(), found.pending, found.failed))
        return found

    async def read(self, name: str, query: Callable[[Operations], Awaitable[T]]) -> T:
        """Returns the cached or new result of `query`. Concurrent callers share one query."""
        until, value = self._cached.get(name, (0.0, None))
        if time.monotonic() < until:
            return value  # type: ignore[no-any-return]
        key = (name, self._changes)
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(self._query(key, query))
            # Retrieves the exception, since every caller may have been cancelled.
            self._running[key].add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        running: asyncio.Future[T] = self._running[key]
        return await asyncio.shield(running)

    async def _query(self, key: tuple[str, int], query: Callable[[Operations], Awaitable[T]]) -> T:
        began = time.monotonic()
        try:
            value = await query(self._ops())
        finally:
            del self._running[key]
        name, changes = key
        if changes == self._changes:
            until = next_query(
                began, time.monotonic(), factor=_CACHE_FACTOR, longest=_MAX_CACHE_SECONDS, shortest=_MIN_CACHE_SECONDS
            )
            self._cached[name] = (until, value)
        return value

    async def sample_forever(self) -> None:
        """Samples until cancelled. Ignores store errors, which the pages report."""
        while True:
            with contextlib.suppress(HoldfastError):
                await self.stats()
            await asyncio.sleep(_SAMPLE_SECONDS)
