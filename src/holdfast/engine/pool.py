"""Slots: how many deliveries of which queues run at once, and what waits for a slot."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from holdfast.engine.lanes import Lanes
from holdfast.engine.options import MAX_CLAIM
from holdfast.stores.claim import Claimed

_WINDOW = 0.25
_AHEAD = 0.1


class Pool:
    """Slots that serve some queues. Claims ahead only what it will start within a tenth of a second:
    short work is fetched in large batches, long work is left for others."""

    def __init__(self, queues: tuple[str, ...] | None, slots: int, *, ahead: bool = True) -> None:
        self.queues, self.slots, self._ahead = queues, slots, ahead
        self.waiting: deque[Claimed] = deque()
        self.running: dict[asyncio.Task[None], Claimed | None] = {}
        self.lanes = Lanes()
        self._rate = 0.0
        self._finished = 0
        self._window_from = time.monotonic()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def ids(self) -> set[UUID]:
        """The deliveries that wait or run here."""
        running = (claim for claim in self.running.values() if claim is not None)
        return {claim.id for claim in (*self.waiting, *running)}

    def room(self) -> int:
        """How many more to claim now; none while there is still enough to do."""
        ahead = min(MAX_CLAIM, int(self._rate * _AHEAD)) if self._ahead else 0
        target = self.slots + ahead
        have = len(self.running) + len(self.waiting)
        if len(self.waiting) > ahead // 2:
            return 0
        return max(0, target - have)

    def finished(self) -> None:
        """Counts one delivery that left its slot."""
        self._finished += 1
        now = time.monotonic()
        if (passed := now - self._window_from) >= _WINDOW:
            self._rate = 0.5 * self._rate + 0.5 * self._finished / passed
            self._finished, self._window_from = 0, now

    def accept(self, claims: Iterable[Claimed]) -> None:
        """Takes claimed deliveries in, most urgent first."""
        self.waiting.extend(sorted(claims, key=lambda claim: (claim.priority, claim.run_at, claim.id.int)))

    def take_back(self, consumer: str | None = None) -> list[Claimed]:
        """Gives up what has not started: all of it, or one consumer's."""
        taken = [claim for claim in self.waiting if consumer is None or claim.consumer == consumer]
        if taken:
            self.waiting = deque(claim for claim in self.waiting if consumer is not None and claim.consumer != consumer)
        return taken
