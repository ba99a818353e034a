"""Loads the runs of claimed steps: one query for all steps of a claim."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.delivery import Claim
from holdfast.core.errors import StoreUnavailable
from holdfast.core.workflows.graph import Graph
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.log_fields import delivery_fields
from holdfast.engine.workflows.declaration import StepSpec
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.definition import definition
from holdfast.stores.workflows.run import LoadedRun, RunStatus, StepRequest, load_steps
from holdfast.stores.workflows.wait import DeadlineRow, begin_deadline

log = get_logger("holdfast.worker")

T = TypeVar("T")

_MOST_LOADED = 5000
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_LONGEST_WAIT = 0.05
"""Seconds; other deliveries must not wait longer for a slot because the read of a step takes long."""


class StepLoader:
    """Reads runs before their steps start. A value from before the start is safe: a wait compares it with the run, and a
    settlement checks that the run is active.
    """

    def __init__(self, store: Store, handlers: Mapping[str, Handler]) -> None:
        self._store, self._handlers = store, handlers
        self.waiting = 0
        """Steps that have waited for a short time for a read that is under way; more slots would only wait for it too."""
        self.loaded: Sequence[Callable[[], None]] = ()
        """Called when such a step no longer waits."""
        self._slow: asyncio.Task[list[LoadedRun | None]] | None = None
        self._loading: dict[tuple[UUID, int], tuple[asyncio.Task[list[LoadedRun | None]], int]] = {}
        self._graphs: dict[tuple[str, int], Graph] = {}

    def prefetch(self, claims: Sequence[Claimed]) -> None:
        """Starts to load the runs of all steps in a claim."""
        steps = [
            (claimed, handler.step)
            for claimed in claims
            if (handler := self._handlers.get(claimed.consumer)) is not None and handler.step is not None
        ]
        if not steps:
            return
        if len(self._loading) > _MOST_LOADED:
            # Deliveries that were released before they started.
            self._loading.clear()
        wanted = [_request(claimed, spec) for claimed, spec in steps]
        task = asyncio.create_task(self._store.run(load_steps(wanted)))
        task.add_done_callback(_retrieve)
        for n, (claimed, _) in enumerate(steps):
            self._loading[claimed.id, claimed.fence] = task, n

    async def load(self, claimed: Claimed, spec: StepSpec) -> LoadedRun | None:
        """The run of a claimed step; waits while the store is unavailable. None if the run does not exist."""
        task, n = self._loading.pop((claimed.id, claimed.fence), (None, 0))
        if task is not None:
            if not task.done() and task is not self._slow:
                await self._wait(task)
            try:
                return (task.result() if task.done() else await asyncio.shield(task))[n]
            except StoreUnavailable as error:
                _log_unavailable(claimed, error)
            await asyncio.sleep(_SHORTEST_PAUSE)
        return (await self._patiently(claimed, lambda: load_steps([_request(claimed, spec)])))[0]

    async def _wait(self, task: "asyncio.Task[list[LoadedRun | None]]") -> None:
        self.waiting += 1
        try:
            if (await asyncio.wait({task}, timeout=_LONGEST_WAIT))[1]:
                self._slow = task
        finally:
            self.waiting -= 1
            for call in self.loaded:
                call()

    async def begin_deadline(self, worker: str, claimed: Claimed, step: str, limit: timedelta) -> DeadlineRow | None:
        """When a step must be done; waits while the store is unavailable. None if the claim was lost."""
        claim = Claim(claimed.id, worker, claimed.fence)
        return await self._patiently(claimed, lambda: begin_deadline(claim, claimed.message_id, step, limit))

    async def _patiently(self, claimed: Claimed, operation: Callable[[], Operation[T]]) -> T:
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return await self._store.run(operation())
            except StoreUnavailable as error:
                _log_unavailable(claimed, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def graph(self, spec: StepSpec, version: int) -> Graph | None:
        """The graph of a run's version; None if this code cannot continue runs of that version."""
        own = spec.workflow
        if version == own.version:
            return own.graph
        if version not in own.compatible_with:
            return None
        known = own.name, version
        if known not in self._graphs:
            if (found := await self._store.run(definition(own.name, version))) is None:
                return None
            self._graphs[known] = found
        return self._graphs[known]


def has_steps(handlers: Mapping[str, Handler]) -> bool:
    """Whether one of the handlers is a step."""
    return any(handler.step is not None for handler in handlers.values())


def may_run(status: RunStatus, spec: StepSpec) -> bool:
    """Whether a step of a run with this status may start: an undo step only while the run is compensated."""
    return status is (RunStatus.COMPENSATING if spec.is_undo else RunStatus.RUNNING)


def _request(claimed: Claimed, spec: StepSpec) -> StepRequest:
    return StepRequest(claimed.message_id, spec.name, spec.stored_results, claimed.id, spec.item is not None)


def _log_unavailable(claimed: Claimed, error: StoreUnavailable) -> None:
    log.warning("store unavailable", **delivery_fields(claimed) | {"task": "load run", "error": str(error)})


def _retrieve(task: "asyncio.Task[list[LoadedRun | None]]") -> None:
    """Marks an error as seen: each step that waits for the task gets it."""
    if not task.cancelled():
        task.exception()
