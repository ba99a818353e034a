"""Cancelled runs: how a worker is notified of them, and how it stops their handlers."""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.worker import forget_cancellations
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    # They import the context, which imports this module.
    from holdfast.engine.claims.slot_pool import SlotPool
    from holdfast.engine.handlers.handler import Handler

log = get_logger("holdfast.worker")

Run = tuple[UUID, int]
"""A delivery and the fence of its run."""

_current: ContextVar["Cancellations | None"] = ContextVar("holdfast_cancellations", default=None)


def is_cancelled(run: Run) -> bool:
    """Whether the worker knows that this run, which the caller is part of, was cancelled."""
    known = _current.get()
    return known is not None and run in known.runs


class Cancellations:
    """The cancelled runs of a session. The renewal of its lease returns them, so they need no separate query.

    The delivery has another fence already: nothing that such a run returns is stored. An async handler gets a
    `CancelledError`. A thread cannot be stopped: its handler reads `ctx.cancelled`.
    """

    def __init__(
        self, store: Store, worker: str, pools: "Sequence[SlotPool]", handlers: "Mapping[str, Handler]"
    ) -> None:
        self._store, self._worker, self._pools, self._handlers = store, worker, pools, handlers
        self.runs: set[Run] = set()
        self._forgetting: set[asyncio.Task[None]] = set()

    def enter(self) -> None:
        """Makes the cancelled runs known to the handlers that run in this task."""
        _current.set(self)

    def received(self, text: str) -> None:
        """Stops the handlers of cancelled runs; each run is stopped once."""
        runs = {(UUID(id), int(fence)) for id, fence in orjson.loads(text)}
        fresh = runs - self.runs
        for pool in self._pools:
            for task, work in pool.running.items():
                # A batch continues: its other deliveries are not cancelled.
                if isinstance(work, Claimed) and (work.id, work.fence) in fresh:
                    log.info("run cancelled", delivery_id=str(work.id), consumer=work.consumer, worker=self._worker)
                    if self._handlers[work.consumer].is_async:
                        task.cancel()
        self.runs |= fresh
        self._forgetting.add(task := asyncio.create_task(self._forget(runs)))
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, runs: set[Run]) -> None:
        try:
            await self._store.run(forget_cancellations(self._worker, sorted(runs)))
        except Exception as error:  # noqa: BLE001
            # The next renewal returns them again.
            log.warning("cancellation not removed", worker=self._worker, error=str(error))
