"""The meaning of a step's settlement for its run."""

from holdfast.core.change import Change, Deliver, Discard, Suspend
from holdfast.core.outcome import Succeeded
from holdfast.engine.settlement.settler import Ack
from holdfast.engine.workflows.settler import CompletedStep, RunCancellation, StepOutcome
from holdfast.engine.workflows.step_context import StepContext
from holdfast.stores.deliveries.settle import Settlement


def for_run(ack: Ack, change: Change, step: StepContext) -> Ack:
    """The settlement of a step with what it means for its run; retries and releases mean nothing for it."""
    if step.deadline is not None:
        brought = step.deadline.brought_forward(change)
        ack = ack if brought is change else ack._replace(settlement=ack.settlement._replace(change=brought))
    outcome: StepOutcome | None = ack.step
    match change:
        case Deliver():
            outcome = step.end()
        case Suspend():
            assert step.suspension is not None
            outcome = step.suspension
        case Discard(reason):
            outcome = RunCancellation(step.run_id, reason)
    return ack if outcome is ack.step else Ack(*ack[:4], outcome)


def completed(step: StepContext) -> Ack:
    """Advances the run of a step that the handler's transaction settled."""
    settlement = Settlement(step.delivery_id, step.fence, Deliver(), Succeeded.name)
    return Ack(settlement, step=CompletedStep(step.end()))
