"""Finds out whether a worker that runs until idle is done."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.engine.claims.scheduler import ClaimScheduler, IdleWait, wait_when_idle
from holdfast.engine.worker.deps import WorkerDeps
from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import next_due_in

log = get_logger("holdfast.worker")

_NOT_CLAIMABLE = "the remaining deliveries are suspect or belong to another generation"


class IdleCheck:
    """Queries when the next delivery is due, once the worker has nothing to run or to write."""

    def __init__(
        self,
        store: Store,
        worker: str,
        deps: WorkerDeps,
        options: WorkerOptions,
        schedulers: Sequence[ClaimScheduler],
    ) -> None:
        self._store, self._worker, self._deps, self._options = store, worker, deps, options
        self._schedulers, self._scanned_since = schedulers, 0.0

    async def wait(self, claimed_at: float, woken: Callable[[], bool], batch_due_in: float | None) -> IdleWait:
        """Whether to stop, or the seconds to wait. `batch_due_in`: seconds until an incomplete batch is old enough.

        `woken` is called after the query. It returns true if work came during the query; then there is no wait.
        """
        names, batches = sorted(self._deps.handlers), self._deps.batches
        next_in = await self._next_in([name for name in names if name not in batches])
        if batches:
            # Due deliveries of an incomplete batch wait for others, at most until `batch_due_in`.
            batch_in = await self._next_in(sorted(batches))
            if batch_in is not None and batch_in <= 0 and batch_due_in is not None:
                batch_in = batch_due_in
            next_in = min((due for due in (next_in, batch_in) if due is not None), default=None)
        idle = wait_when_idle(
            next_in,
            limit=self._options.idle_limit.total_seconds(),
            poll=self._options.poll.total_seconds(),
            since_claim=time.monotonic() - claimed_at,
            woken=woken(),
            receiving=self._deps.receiving(),
        )
        if idle.stalled and self._scanned_since != claimed_at:
            # The last claim took from known lanes only, and what is due may be in another one.
            self._scanned_since = claimed_at
            for scheduler in self._schedulers:
                scheduler.scan_again()
            return IdleWait(0.0)
        if idle.stalled:
            log.warning("worker stopped before idle", worker=self._worker, reason=_NOT_CLAIMABLE)
        return idle

    async def _next_in(self, consumers: list[str]) -> float | None:
        queues = None if self._options.queues is None else tuple(self._options.queues)
        found: timedelta | None = await self._store.run(next_due_in(consumers, queues))
        return None if found is None else found.total_seconds()
