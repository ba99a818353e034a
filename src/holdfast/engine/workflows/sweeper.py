"""Continues runs whose worker died between two transactions, and ends runs at their deadline."""

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.workflows.settler import new_events
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.advance import UnadvancedStep, advance_completed, next_steps, unadvanced_steps
from holdfast.stores.workflows.definition import definition
from holdfast.stores.workflows.failure import begin_compensation, compensating_runs, expire_run, expired_runs

log = get_logger("holdfast.worker")

_AGE = timedelta(seconds=2)


class RunSweeper:
    """Advances steps that `ctx.complete` settled, begins undo steps, and fails runs that are past their deadline.

    Any worker may do it for any workflow: the graph of each version is in the store.
    """

    interval = timedelta(seconds=1)

    def __init__(self, store: Store, age: timedelta = _AGE) -> None:
        self._store, self._events, self._age = store, new_events(), age

    async def perform(self, worker: str) -> None:
        for step in await self._store.run(unadvanced_steps(self._age)):
            await self._one(step.run_id, self._advance(step))
        for run_id in await self._store.run(expired_runs()):
            await self._one(run_id, self._expire(run_id))
        for run_id in await self._store.run(compensating_runs()):
            await self._one(run_id, self._compensate(run_id))

    async def _one(self, run_id: UUID, work: Coroutine[Any, Any, None]) -> None:
        """Continues one run; a run that cannot continue does not keep the others waiting."""
        try:
            await work
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001
            log.error("periodic task failed", task="RunSweeper", run=str(run_id), **error_fields(error))

    async def _expire(self, run_id: UUID) -> None:
        if await self._store.run(expire_run(run_id, self._events)):
            await self._compensate(run_id)

    async def _compensate(self, run_id: UUID) -> None:
        await self._store.run(begin_compensation(run_id, self._events))

    async def _advance(self, step: UnadvancedStep) -> None:
        next = step.next
        if next is None:
            graph = await self._store.run(definition(step.workflow, step.version))
            if graph is None:
                log.error("workflow definition missing", workflow=step.workflow, version=step.version)
                return
            next = next_steps(step.run_id, graph, step.step, step.epoch)
        operation = advance_completed(
            step.run_id, step.step, step.occurrence, next, step.source, step.generation, self._events
        )
        advanced = await self._store.run(operation)
        for run_id in advanced.compensating:
            await self._compensate(run_id)
