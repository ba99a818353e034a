"""Slots: they limit how many deliveries of some queues run at the same time; other claimed deliveries wait for a slot."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

from holdfast._log import get_logger
from holdfast.engine.batches.batch import ClaimedBatch, Work, deliveries_of, fields_of
from holdfast.engine.claims.scheduler import ClaimScheduler, urgency
from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.deliveries.claim import Claimed

log = get_logger("holdfast.worker")


class WakeTimer:
    """Calls a function after a delay. A start while a call is pending can only make that call earlier."""

    def __init__(self) -> None:
        self._pending: asyncio.TimerHandle | None = None

    def start(self, seconds: float, wake: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._pending is not None:
            if self._pending.when() <= loop.time() + seconds:
                return
            self._pending.cancel()
        self._pending = loop.call_later(seconds, self._end, wake)

    def _end(self, wake: Callable[[], None]) -> None:
        self._pending = None
        wake()


class SlotPool:
    """Slots that serve some queues, and the claimed deliveries that wait for one."""

    def __init__(self, queues: tuple[str, ...] | None, slots: int, *, prefetch: bool = True) -> None:
        self.queues, self.slots = queues, slots
        self.scheduler = ClaimScheduler(slots, time.monotonic(), prefetch=prefetch)
        self.waiting: deque[Work] = deque()
        self.running: dict[asyncio.Task[None], Work | None] = {}
        self.spawn_scheduled = False
        """Whether this turn of the loop will check if one more slot is needed."""
        self.resting = 0
        """Slots that only yield to other tasks."""
        self.turn_started_at = 0.0
        """When this turn of the loop began."""
        self.flow_timer = WakeTimer()
        """Timer for the next token of a rate."""
        self.full_scan_timer = WakeTimer()
        """Timer for the next full scan; rate-limited because the last one was expensive."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def ids(self) -> set[UUID]:
        """The deliveries that wait or run here."""
        running = (work for work in self.running.values() if work is not None)
        return {claim.id for work in (*self.waiting, *running) for claim in deliveries_of(work)}

    @property
    def needs_slot(self) -> bool:
        """Whether deliveries wait, another slot is allowed, and no slot will take them in this turn of the loop."""
        return bool(self.waiting) and not self.resting and len(self.running) < self.slots

    def room(self) -> int:
        """How many deliveries to claim now."""
        return self.scheduler.room(len(self.running), len(self.waiting))

    def batch_room(self) -> int:
        """How many batches to claim now: each takes one slot, and there are at most as many batches as slots."""
        held = sum(type(work) is ClaimedBatch for work in (*self.waiting, *self.running.values()))
        return min(self.room(), max(0, self.slots - held))

    async def rest(self) -> None:
        """Yields to all other tasks for one turn of the loop."""
        self.resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.resting -= 1

    def accept(self, claims: "list[Claimed] | list[Work]", *, first: bool = False) -> None:
        """Queues claimed deliveries, most urgent first; with `first` in front of those that wait."""
        claims.sort(key=urgency)
        if first:
            self.waiting.extendleft(reversed(claims))
        else:
            self.waiting.extend(claims)

    def take_back(self, consumer: str | None = None) -> list[Claimed]:
        """Removes and returns the waiting deliveries: all of them, or those of one consumer."""
        taken = [work for work in self.waiting if consumer is None or work.consumer == consumer]
        if taken:
            self.waiting = deque(work for work in self.waiting if consumer is not None and work.consumer != consumer)
        return [claim for work in taken for claim in deliveries_of(work)]


def pools(options: WorkerOptions) -> list[SlotPool]:
    """The pools for a worker's options."""
    if options.suspects:
        # A prefetched delivery would lose an attempt if the suspect before it crashes the process.
        return [SlotPool(None if options.queues is None else tuple(options.queues), 1, prefetch=False)]
    if options.queues is None:
        return [SlotPool(None, options.concurrency)]
    return [SlotPool((name,), slots) for name, slots in options.queues.items()]


def has_waiting(all_pools: "Sequence[SlotPool]") -> bool:
    """Whether claimed deliveries wait for a slot."""
    return any(pool.waiting for pool in all_pools)


def running_tasks(pools: Sequence[SlotPool]) -> "list[asyncio.Task[None]]":
    """The tasks of all slots."""
    return [task for pool in pools for task in pool.running]


async def cancel_running(pools: Sequence[SlotPool], worker: str, patience: float) -> None:
    """Cancels running handlers. The second cancellation is for those that wait for the store after the first."""
    for seconds in (patience, patience / 4):
        for task in (running := running_tasks(pools)):
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=seconds)
    for pool in pools:
        for work in [work for work in pool.running.values() if work is not None]:
            log.error("handler ignored cancellation", **fields_of(work) | {"worker": worker})
