"""Claims batches for the slots of a worker."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.engine.batches.scheduler import BatchScheduler
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.deliveries.batch import batch_lanes, claim_batch
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.protocol import Store


class BatchClaimer:
    """Claims batches as soon as they are complete or old enough.

    `handlers` are the batch handlers. `is_held_back` excludes consumers. `accept` gets each claimed batch at once, as its deliveries.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        pools: Sequence[SlotPool],
        is_held_back: Callable[[str], bool],
        accept: Callable[[SlotPool, list[Claimed]], None],
    ) -> None:
        self._store, self._worker, self._options = store, worker, options
        self._is_held_back, self._accept = is_held_back, accept
        self._batches = {name: handler.batch for name, handler in handlers.items() if handler.batch is not None}
        self._attempts = {name: handler.retry.attempts for name, handler in handlers.items()}
        self._pools = [(pool, BatchScheduler(self._batches)) for pool in pools] if handlers else []

    async def claim(self) -> bool:
        """Claims at most one batch of each lane, if there is room; returns whether there may be more."""
        more = False
        for pool, scheduler in self._pools:
            if room := pool.batch_room():
                more |= await self._claim(pool, scheduler, room)
        return more

    def wait(self) -> float | None:
        """Seconds until the next check is needed; None if only new work or a poll can bring a batch."""
        now = time.monotonic()
        return _earliest(scheduler.wait(now) for pool, scheduler in self._pools if pool.batch_room())

    def due_in(self) -> float | None:
        """Seconds until the next incomplete batch is old enough; None if none is known."""
        now = time.monotonic()
        return _earliest(scheduler.due_in(now) for _, scheduler in self._pools)

    async def _claim(self, pool: SlotPool, scheduler: BatchScheduler, room: int) -> bool:
        started = time.monotonic()
        if scheduler.check_due(started):
            check = batch_lanes(sorted(self._batches), self._options.generation, scheduler.largest, queues=pool.queues)
            scheduler.checked(await self._store.run(check), started, time.monotonic())
        more = False
        for lane in scheduler.ready(self._is_held_back)[:room]:
            batch = self._batches[lane.consumer]
            claims = await self._store.run(
                claim_batch(
                    lane, batch.size, batch.within, self._attempts[lane.consumer], self._worker, self._options.lease
                )
            )
            scheduler.claimed(lane, claims)
            if claims:
                self._accept(pool, claims)
                more = True
        return more


def _earliest(waits: Iterable[float | None]) -> float | None:
    return min((seconds for seconds in waits if seconds is not None), default=None)
