"""Settles steps of workflows: their outcome and the progress of their run are one transaction."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.change import Discard
from holdfast.core.delivery import Claim
from holdfast.core.errors import StoreTimeout
from holdfast.core.identity import uuid7s
from holdfast.stores.deliveries.settle import ClaimState, Settlement, claim_states, settle
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.advance import Advanced, StepEnd, advance, advance_completed
from holdfast.stores.workflows.event import WorkflowEvents
from holdfast.stores.workflows.failure import begin_compensation, cancel_step, fail_step
from holdfast.stores.workflows.run import run_states
from holdfast.stores.workflows.wait import Suspension, suspend

log = get_logger("holdfast.worker")

_SKIPS = 3
"""The number of times that a step is left for the next batch because its run is locked; then it waits for the lock."""


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """A step whose attempts are used up."""

    run_id: UUID
    consumer: str


@dataclass(frozen=True, slots=True)
class RunCancellation:
    """A step that cancelled its run."""

    run_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that `ctx.complete` settled in the handler's transaction. If it is not advanced now, a sweep does it."""

    end: StepEnd

    @property
    def run_id(self) -> UUID:
        return self.end.run_id


StepOutcome = CompletedStep | StepEnd | Suspension | FinalFailure | RunCancellation


class StepSettlement(NamedTuple):
    """A settlement of a step, what it means for its run, and how often it was left for a later batch."""

    settlement: Settlement
    outcome: StepOutcome
    skips: int


def new_events() -> WorkflowEvents:
    """Publishes events about runs, with ids of this process."""
    return WorkflowEvents(lambda count: uuid7s(time.time_ns(), secrets.token_bytes(8 * count)))


class StepSettler:
    """Writes the outcomes of steps. Each outcome is written once, under the fence of its claim."""

    def __init__(self, store: Store, worker: str, run_ended: Callable[[], None] = lambda: None) -> None:
        self._store, self._worker, self._events, self._run_ended = store, worker, new_events(), run_ended

    async def settle(self, steps: Sequence[StepSettlement]) -> tuple[set[UUID], set[UUID]]:
        """The deliveries whose outcome is durable, and those to settle again because their run is locked."""
        settled: set[UUID] = set()
        for patient in (False, True):
            some = [step for step in steps if (step.skips >= _SKIPS) is patient]
            if ends := [step.outcome for step in some if isinstance(step.outcome, StepEnd)]:
                settled |= await self._advance(ends, wait=patient)
            if waits := [step.outcome for step in some if isinstance(step.outcome, Suspension)]:
                settled |= await self._suspend(waits, wait=patient)
        for step in steps:
            if isinstance(step.outcome, CompletedStep):
                await self._completed(step.outcome.end)
                settled.add(step.settlement.delivery_id)
            elif isinstance(step.outcome, FinalFailure | RunCancellation) and await self._end(step):
                settled.add(step.settlement.delivery_id)
                self._run_ended()
        if len(settled) == len(steps):
            return settled, set()
        missing = [step for step in steps if step.settlement.delivery_id not in settled]
        return await self._check(missing, settled)

    async def _completed(self, end: StepEnd) -> None:
        operation = advance_completed(*end[:3], end.next, end.source, end.generation, self._events)
        await self._advanced(await self._store.run(operation))

    async def _advance(self, ends: Sequence[StepEnd], *, wait: bool) -> frozenset[UUID]:
        try:
            advanced = await self._store.run(advance(self._worker, ends, self._events, wait=wait))
        except StoreTimeout:
            if not wait:
                raise
            return frozenset()
        await self._advanced(advanced)
        return advanced.settled

    async def _advanced(self, advanced: Advanced) -> None:
        if advanced.ended:
            self._run_ended()
        await self._compensate(advanced.compensating)

    async def _suspend(self, waits: Sequence[Suspension], *, wait: bool) -> frozenset[UUID]:
        try:
            return await self._store.run(suspend(self._worker, waits, wait=wait))
        except StoreTimeout:
            if not wait:
                raise
            return frozenset()

    async def _end(self, step: StepSettlement) -> bool:
        match step.outcome:
            case FinalFailure(run_id, consumer):
                failed = await self._store.run(fail_step(self._worker, step.settlement, run_id, consumer, self._events))
                if failed.compensating:
                    await self._compensate([run_id])
                return failed.settled
            case RunCancellation(run_id, reason):
                operation = cancel_step(self._worker, step.settlement, run_id, reason, self._events)
                return await self._store.run(operation)
            case _:
                raise AssertionError(step.outcome)

    async def _compensate(self, runs: Sequence[UUID] | frozenset[UUID]) -> None:
        for run_id in runs:
            await self._store.run(begin_compensation(run_id, self._events))

    async def _check(self, missing: list[StepSettlement], settled: set[UUID]) -> tuple[set[UUID], set[UUID]]:
        """Distinguishes lost claims, outcomes of an earlier attempt, runs that have ended, and runs that are locked."""
        claims = [Claim(s.settlement.delivery_id, self._worker, s.settlement.fence) for s in missing]
        holds = await self._store.run(claim_states(claims))
        settled |= {id for id, hold in holds.items() if hold is ClaimState.SETTLED}
        held = [s for s in missing if holds[s.settlement.delivery_id] is ClaimState.HELD]
        if not held:
            return settled, set()
        states = await self._store.run(run_states([s.outcome.run_id for s in held]))
        ended = [s for s in held if (state := states.get(s.outcome.run_id)) is None or not state.is_active]
        if ended:
            settled |= await self._store.run(settle(self._worker, [_without_run(s) for s in ended]))
        ids = {s.settlement.delivery_id for s in ended}
        return settled, {s.settlement.delivery_id for s in held} - ids


def _without_run(step: StepSettlement) -> Settlement:
    """The settlement of a step whose run has ended: a completed one is delivered, one that waits is discarded."""
    if isinstance(step.outcome, Suspension):
        return step.settlement._replace(change=Discard("its run has ended"))
    return step.settlement
