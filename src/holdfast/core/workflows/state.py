"""The state of a step as it is shown: a view of its delivery, not a second state machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.delivery import Status


class StepState(StrEnum):
    """The states of a step."""

    IDLE = "idle"  # the steps before it are not done, or it waits for its trigger
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # suspended until a signal, a time, its items or a child run
    RETRY_WAIT = "retry_wait"
    DONE = "done"
    BLOCKED = "blocked"  # its attempts are used up, and the run waits for an operator
    DEAD = "dead"
    REPLAYING = "replaying"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFacts:
    """The facts from which the state of a step is derived."""

    status: Status
    is_due: bool
    attempts: int
    is_discarded: bool
    was_replayed: bool


def step_state(delivery: DeliveryFacts | None, *, is_done: bool, waits: bool, can_block: bool) -> StepState:
    """The state of a step. `waits`: it has an open wait; a step without a delivery is idle, unless it is done.

    `can_block`: the run does not end when the step is dead. So a dead step of a run that is compensated stays dead, and only
    an undo step can block that run.

    >>> step_state(None, is_done=False, waits=False, can_block=True)
    <StepState.IDLE: 'idle'>
    """
    if delivery is None:
        return StepState.DONE if is_done else StepState.IDLE
    match delivery.status:
        case Status.DELIVERED:
            return StepState.DONE
        case Status.IN_FLIGHT:
            return StepState.REPLAYING if delivery.was_replayed and delivery.attempts <= 1 else StepState.RUNNING
        case Status.FAILED:
            if delivery.is_discarded:
                return StepState.CANCELLED
            return StepState.BLOCKED if can_block else StepState.DEAD
        case Status.PENDING:
            if waits and not delivery.is_due:
                return StepState.WAITING
            if delivery.attempts:
                return StepState.RETRY_WAIT
            return StepState.REPLAYING if delivery.was_replayed else StepState.QUEUED
