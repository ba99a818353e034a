"""Slots: the deliveries of some queues that run at the same time, and those that wait for a slot."""

import asyncio
import time
from collections import deque
from uuid import UUID

from holdfast.engine.claim_scheduler import ClaimScheduler, urgency
from holdfast.engine.options import WorkerOptions
from holdfast.stores.deliveries.claim import Claimed


class SlotPool:
    """Slots that serve some queues, and the claimed deliveries that wait for one."""

    def __init__(self, queues: tuple[str, ...] | None, slots: int, *, prefetch: bool = True) -> None:
        self.queues, self.slots = queues, slots
        self.scheduler = ClaimScheduler(slots, time.monotonic(), prefetch=prefetch)
        self.waiting: deque[Claimed] = deque()
        self.running: dict[asyncio.Task[None], Claimed | None] = {}
        self.spawn_scheduled = False
        """Whether this turn of the loop will check if one more slot is needed."""
        self.resting = 0
        """Slots that only yield to other tasks."""
        self.turn_started_at = 0.0
        """When this turn of the loop began."""
        self.full_scan_timer: asyncio.TimerHandle | None = None
        """Timer for the next full scan; rate-limited because the last one was expensive."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def ids(self) -> set[UUID]:
        """The deliveries that wait or run here."""
        running = (claim for claim in self.running.values() if claim is not None)
        return {claim.id for claim in (*self.waiting, *running)}

    @property
    def low(self) -> bool:
        """Whether it is time to claim."""
        return self.scheduler.is_low(len(self.waiting))

    def room(self) -> int:
        """How many deliveries to claim now."""
        return self.scheduler.room(len(self.running), len(self.waiting))

    async def rest(self) -> None:
        """Yields to all other tasks for one turn of the loop."""
        self.resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.resting -= 1

    def accept(self, claims: list[Claimed]) -> None:
        """Queues claimed deliveries, most urgent first."""
        claims.sort(key=urgency)
        self.waiting.extend(claims)

    def take_back(self, consumer: str | None = None) -> list[Claimed]:
        """Removes and returns the waiting deliveries: all of them, or those of one consumer."""
        taken = [claim for claim in self.waiting if consumer is None or claim.consumer == consumer]
        if taken:
            self.waiting = deque(claim for claim in self.waiting if consumer is not None and claim.consumer != consumer)
        return taken


def pools(options: WorkerOptions) -> list[SlotPool]:
    """The pools for a worker's options."""
    if options.suspects:
        # A prefetched delivery would lose an attempt if the suspect before it crashes the process.
        return [SlotPool(None if options.queues is None else tuple(options.queues), 1, prefetch=False)]
    if options.queues is None:
        return [SlotPool(None, options.concurrency)]
    return [SlotPool((name,), slots) for name, slots in options.queues.items()]
