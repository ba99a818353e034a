"""Ends runs without success, after a dead step or a cancellation, and starts their undo steps."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.core.identity import delivery_id, delivery_range
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.values.text import sanitize
from holdfast.core.workflows.graph import Exhausted, Graph, nearest_step
from holdfast.core.workflows.names import (
    CANCEL,
    COMMANDS,
    DEADLINE,
    is_undo,
    memo_name,
    step_delivery_id,
    step_of,
    undo_of,
    undone_step,
)
from holdfast.stores.deliveries.settle import SETTLEMENT, Settlement, settlement_row
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.workflows.advance import advance_row, steps_json
from holdfast.stores.workflows.definition import read_definition
from holdfast.stores.workflows.event import EndedRun, WorkflowEvents, announce
from holdfast.stores.workflows.run import LockedRun, RunStatus, discard_steps, lock_run, step_marks

_REASON = 1000
UNDO_BEGUN = "compensation:undo"
"""The row that represents the decision to compensate; its completion makes the first undo step due."""


class FailedStep(NamedTuple):
    """Whether the claim was still held, and whether the run is compensated now."""

    settled: bool
    compensating: bool = False


@operation
def fail_step(
    worker: str, settlement: Settlement, run_id: UUID, consumer: str, events: WorkflowEvents
) -> Steps[FailedStep]:
    """Settles a step whose attempts are used up, and blocks it or ends its run, by the graph of the run's version."""
    run = yield from lock_run(run_id)
    batch = {"settlements": columns(SETTLEMENT, [settlement_row(settlement)])}
    if not (yield Query("settle", {"worker": worker}, batch)):
        return FailedStep(False)
    if run is None or not run.status.is_active:
        return FailedStep(True)
    step = step_of(consumer)
    yield Query("forget_deadline", {"run_id": run_id, "step": memo_name(step, DEADLINE)})
    graph = yield from read_definition(run.name, run.version)
    node = None if graph is None else graph.nodes.get(undone_step(step))
    error = "" if settlement.error is None else f": {settlement.error.type}: {settlement.error.message}"
    reason = sanitize(f"step {step} is dead{error}", _REASON)
    if is_undo(step) or (node is not None and node.exhausted is Exhausted.BLOCK):
        yield from events.publish([_step_event(events, "blocked", run_id, run, step, settlement)])
        return FailedStep(True)
    if run.status is RunStatus.COMPENSATING:
        # It ran when another step failed. It is undone like all steps that ever started.
        return FailedStep(True, compensating=True)
    yield from events.publish([_step_event(events, "dead", run_id, run, step, settlement)])
    return FailedStep(True, (yield from _fail(run_id, run, graph, reason, events)))


@operation
def cancel_step(worker: str, settlement: Settlement, run_id: UUID, reason: str, events: WorkflowEvents) -> Steps[bool]:
    """Settles a step that cancelled its run, and ends the run; False if the claim was lost."""
    run = yield from lock_run(run_id)
    batch = {"settlements": columns(SETTLEMENT, [settlement_row(settlement)])}
    if not (yield Query("settle", {"worker": worker}, batch)):
        return False
    if run is not None and run.status is RunStatus.RUNNING:
        yield from _end(run_id, run, RunStatus.CANCELLED, sanitize(reason or "cancelled", _REASON), events)
    return True


@operation
def expire_run(run_id: UUID, events: WorkflowEvents) -> Steps[bool]:
    """Fails a run whose deadline has passed; True if it is compensated now."""
    run = yield from lock_run(run_id)
    if run is None or run.status is not RunStatus.RUNNING:
        return False
    graph = yield from read_definition(run.name, run.version)
    return (yield from _fail(run_id, run, graph, "its deadline has passed", events))


@operation(reads=True)
def expired_runs() -> Steps[list[UUID]]:
    """Active runs whose deadline has passed."""
    return [as_uuid(row[0]) for row in (yield Query("expired_runs"))]


@operation(reads=True)
def compensating_runs() -> Steps[list[UUID]]:
    """Runs that must be compensated, and whose undo steps have not begun although nothing is in flight."""
    return [as_uuid(row[0]) for row in (yield Query("compensating_runs"))]


@operation
def cancel_run(run_id: UUID, reason: str | None, events: WorkflowEvents) -> Steps[bool]:
    """Ends a run and discards its deliveries with a new fence, without undo steps; its children are cancelled after it.

    False if the run has ended already. Raises `NotFound` for an unknown run.
    """
    run = yield from lock_run(run_id)
    if run is None:
        raise NotFound("run", run_id)
    if not run.status.is_active:
        return False
    why = sanitize(reason or "cancelled", _REASON)
    yield from _end(run_id, run, RunStatus.CANCELLED, why, events)
    return True


@operation
def trigger_step(run_id: UUID, step: str, events: WorkflowEvents) -> Steps[bool]:
    """Triggers a manual step of a run, once; False if it was triggered before.

    The step starts when the steps before it are done. Raises `Refused` for a run that has ended or a step without a trigger.
    """
    run = yield from lock_run(run_id)
    if run is None:
        raise NotFound("run", run_id)
    graph = yield from read_definition(run.name, run.version)
    node = None if graph is None else graph.nodes.get(step)
    if node is None:
        known = () if graph is None else [n.name for n in graph.nodes.values() if n.manual]
        remedy = nearest_step(step, known) if known else "no step of this workflow has a trigger"
        raise Refused("trigger", f"step {step} of run {run_id}", "unknown", remedy)
    if not node.manual:
        raise Refused("trigger", f"step {step} of run {run_id}", "not manual", "it starts after the steps before it")
    if run.status is not RunStatus.RUNNING:
        raise Refused("trigger", f"step {step} of run {run_id}", f"part of a run that is {run.status}")
    name, id = f"{step}:trigger", step_delivery_id(run_id, run.name, step, run.epoch)
    if not (yield Query("store_trigger", {"run_id": run_id, "step": name, "delivery_id": id})):
        return False
    row = (run_id, name, 0, steps_json(run_id, run.name, [(step, node.joins)], run.epoch))
    yield from advance_row(row, run.source, run.generation, events)
    return True


@operation
def begin_compensation(run_id: UUID, events: WorkflowEvents) -> Steps[bool]:
    """Makes the first undo step due, once nothing of the run is in flight; False while something is.

    Every step that was ever claimed is undone, the latest first, one after another: a worker may have died after the
    effect and before its outcome. So an undo step must tolerate an effect that never happened.
    """
    run = yield from lock_run(run_id)
    if run is None or run.status is not RunStatus.COMPENSATING:
        return True
    graph = yield from read_definition(run.name, run.version)
    assert graph is not None, f"run {run_id} is compensated without a graph"
    low, high = delivery_range(run_id)
    rows = yield Query("run_deliveries", {"run_id": run_id, "low": low, "high": high, "commands": COMMANDS})
    marks = yield from step_marks(run_id)
    if UNDO_BEGUN in marks:
        return True
    states = {str(status) for _, status, _ in rows}
    if "pending" in states:
        # A retry that was settled after the failure.
        yield discard_steps(run_id, "its run is compensated", running=False)
    if "in_flight" in states:
        return False
    claimed = {step_of(str(consumer)) for consumer, _, was_claimed in rows if was_claimed}
    undone = [name for name in graph.order if graph.nodes[name].undo and name in claimed]
    if not undone:
        yield from _end(run_id, run, RunStatus.FAILED, None, events)
        return True
    yield from _undo(run_id, run, undone, events)
    return True


def _undo(run_id: UUID, run: LockedRun, undone: Sequence[str], events: WorkflowEvents) -> Steps[None]:
    """Stores the chain of undo steps, the latest step first, and makes its first one due."""
    names = [undo_of(step) for step in reversed(undone)]
    chain = [
        steps_json(run_id, run.name, [(name, 1) for name in names[n : n + 1]], run.epoch) for n in range(len(names) + 1)
    ]
    rows = [
        (run_id, UNDO_BEGUN, delivery_id(run_id, UNDO_BEGUN), chain[0]),
        *(
            (run_id, name, step_delivery_id(run_id, run.name, name, run.epoch), chain[n + 1])
            for n, name in enumerate(names)
        ),
    ]
    planned = columns(("run_id", "step", "delivery_id", "next"), rows)
    yield Query("plan_undo", {"run": run_id}, {"steps": planned})
    yield from advance_row((run_id, UNDO_BEGUN, 0, chain[0]), run.source, run.generation, events)


def _fail(run_id: UUID, run: LockedRun, graph: Graph | None, reason: str, events: WorkflowEvents) -> Steps[bool]:
    """Fails a run, or begins to compensate it; True in the second case. Steps in flight may still end then."""
    if graph is not None and any(node.undo for node in graph.nodes.values()):
        yield Query("end_run", {"run_id": run_id, "status": RunStatus.COMPENSATING.value, "reason": reason})
        yield discard_steps(run_id, reason, running=False)
        yield from _cancel_children(run_id, run, "failed", events)
        return True
    yield from _end(run_id, run, RunStatus.FAILED, reason, events)
    return False


def _end(run_id: UUID, run: LockedRun, status: RunStatus, reason: str | None, events: WorkflowEvents) -> Steps[None]:
    ((parent, why),) = yield Query("end_run", {"run_id": run_id, "status": status.value, "reason": reason})
    yield discard_steps(run_id, why or str(status), running=True)
    parent_run = None if parent is None else as_uuid(parent)
    yield from announce([EndedRun(run_id, status, run.name, parent_run, why, run.source, run.generation)], events)
    what = "was cancelled" if status is RunStatus.CANCELLED else "failed"
    yield from _cancel_children(run_id, run, what, events)


def _cancel_children(run_id: UUID, run: LockedRun, what: str, events: WorkflowEvents) -> Steps[None]:
    """Stores a command that cancels each active child: its result is not used. No other run is locked here."""
    children = [str(as_uuid(row[0])) for row in (yield Query("active_children", {"run_id": run_id}))]
    if children:
        yield from events.publish(
            [
                new_message(
                    id=id,
                    type=CANCEL,
                    source=run.source,
                    payload={"run": child, "reason": f"parent run {run_id} {what}"},
                    generation=run.generation,
                    addressed=[Address(consumer=COMMANDS)],
                )
                for id, child in zip(events.new_ids(len(children)), children, strict=True)
            ]
        )


def _step_event(
    events: WorkflowEvents, what: str, run_id: UUID, run: LockedRun, step: str, end: Settlement
) -> NewMessage:
    return events.message(
        f"workflow.step.{what}",
        run.source,
        run.generation,
        run=str(run_id),
        workflow=run.name,
        step=step,
        delivery=str(end.delivery_id),
        error=None if end.error is None else end.error.message,
    )
