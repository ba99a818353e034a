"""Slots: how many deliveries of which queues run at once, and what waits for a slot."""

import asyncio
import time
from collections import deque
from uuid import UUID

from holdfast.engine.lanes import Lanes, urgency
from holdfast.engine.options import MAX_CLAIM, WorkerOptions
from holdfast.stores.deliveries.claim import Claimed

_WINDOW = 0.05
_AHEAD = 0.1
_MOST_AHEAD = 4 * MAX_CLAIM


class SlotPool:
    """Slots that serve some queues. Claims ahead only what it will start within a tenth of a second:
    short work is fetched in large batches, long work is left for others."""

    def __init__(self, queues: tuple[str, ...] | None, slots: int, *, ahead: bool = True) -> None:
        self.queues, self.slots, self._ahead = queues, slots, ahead
        self.waiting: deque[Claimed] = deque()
        self.running: dict[asyncio.Task[None], Claimed | None] = {}
        self.lanes = Lanes()
        self.spawn_scheduled = False
        """Whether somebody will look, in this turn_started_at of the loop, if one more slot is needed."""
        self.resting = 0
        """Slots that have only made way for others."""
        self.turn_started_at = 0.0
        """When this turn_started_at of the loop began."""
        self.full_scan_timer: asyncio.TimerHandle | None = None
        """What wakes the claiming for a look at everything that was too dear to be repeated at once."""
        self._rate = 0.0
        self._most = self._enough = 0
        self._finished = 0
        self._window_from = time.monotonic()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def ids(self) -> set[UUID]:
        """The deliveries that wait or run here."""
        running = (claim for claim in self.running.values() if claim is not None)
        return {claim.id for claim in (*self.waiting, *running)}

    @property
    def low(self) -> bool:
        """Whether it is time to claim: a claim takes about as long as what it brings takes to run."""
        return len(self.waiting) <= self._enough

    def room(self) -> int:
        """How many more to claim now; none while there is enough to do."""
        return max(0, self.slots + self._most - len(self.running) - len(self.waiting)) if self.low else 0

    def finished(self) -> None:
        """Counts one delivery that left its slot."""
        self._finished += 1
        now = time.monotonic()
        if (passed := now - self._window_from) >= _WINDOW:
            self._rate = 0.5 * self._rate + 0.5 * self._finished / passed
            self._finished, self._window_from = 0, now
            if self._ahead:
                self._most = min(_MOST_AHEAD, int(self._rate * _AHEAD))
                self._enough = self._most // 2

    async def rest(self) -> None:
        """Makes way for everything else in the loop, for one turn_started_at."""
        self.resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.resting -= 1

    def accept(self, claims: list[Claimed]) -> None:
        """Takes claimed deliveries in, and puts them in order: most urgent first."""
        claims.sort(key=urgency)
        self.waiting.extend(claims)

    def take_back(self, consumer: str | None = None) -> list[Claimed]:
        """Gives up what has not started: all of it, or one consumer's."""
        taken = [claim for claim in self.waiting if consumer is None or claim.consumer == consumer]
        if taken:
            self.waiting = deque(claim for claim in self.waiting if consumer is not None and claim.consumer != consumer)
        return taken


def pools(options: WorkerOptions) -> list[SlotPool]:
    """The pools that a worker's options ask for."""
    if options.suspects:
        # One claimed ahead would be burnt by the guilty one before it.
        return [SlotPool(None if options.queues is None else tuple(options.queues), 1, ahead=False)]
    if options.queues is None:
        return [SlotPool(None, options.concurrency)]
    return [SlotPool((name,), slots) for name, slots in options.queues.items()]
