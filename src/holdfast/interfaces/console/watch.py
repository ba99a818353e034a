"""The watch: figures shared by everybody who looks, so that ten open pages ask the store as often as one."""

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
"""How many times as long as a reading took it is shown: watching must not become the store's main business."""
_SPACING_SECONDS = 10
_SAMPLES = 361


@dataclass(frozen=True, slots=True)
class Sampled:
    """How things stood at one moment. `oldest` is in seconds."""

    at: datetime
    oldest: float
    waiting: int
    dead: int


class Watch:
    """Readings of one store, kept for a moment; and one hour of how they went, as long as somebody looks."""

    def __init__(self, ops: Callable[[], Operations]) -> None:
        self._ops = ops
        self._kept: dict[str, tuple[float, Any]] = {}
        self._asking: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._changes = 0
        self._history: deque[Sampled] = deque(maxlen=_SAMPLES)

    @property
    def history(self) -> Sequence[Sampled]:
        """What was sampled so far, oldest first, ten seconds or more apart."""
        return tuple(self._history)

    def forget(self) -> None:
        """The next reading is a new one, begun after this: somebody has just changed something."""
        self._changes += 1
        self._kept.clear()

    async def stats(self) -> Stats:
        found = await self.read("stats", lambda ops: ops.stats())
        if not self._history or (found.now - self._history[-1].at).total_seconds() >= _SPACING_SECONDS:
            self._history.append(Sampled(found.now, found.oldest.total_seconds(), found.pending, found.failed))
        return found

    async def read(self, name: str, ask: Callable[[Operations], Awaitable[T]]) -> T:
        """What `ask` answers, or answered a moment ago. Whoever asks at the same time waits for the same answer."""
        until, value = self._kept.get(name, (0.0, None))
        if time.monotonic() < until:
            return value  # type: ignore[no-any-return]
        now = (name, self._changes)
        if now not in self._asking:
            self._asking[now] = asyncio.ensure_future(self._look(now, ask))
            # Whoever asked may be gone when it fails.
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
        """Samples until it is cancelled. A store that is out is asked again later: the pages say that it is."""
        while True:
            with contextlib.suppress(HoldfastError):
                await self.stats()
            await asyncio.sleep(_SPACING_SECONDS)
