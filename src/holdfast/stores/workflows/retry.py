"""Retry of a run from a step: the step and everything after it run again, with new deliveries."""

from collections.abc import Collection
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.core.identity import delivery_range
from holdfast.core.workflows.graph import Graph, nearest_step
from holdfast.core.workflows.names import step_consumer, step_delivery_id, step_of, undo_of, undone_step
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.workflows.advance import advance_row, next_steps, steps_json
from holdfast.stores.workflows.definition import read_definition
from holdfast.stores.workflows.event import WorkflowEvents
from holdfast.stores.workflows.run import LockedRun, RunStatus, lock_run, step_marks

_RESET = ("run_id", "step", "delivery_id", "was_done", "consumer", "undo_consumer")
COUNTER = ("run_id", "step", "delivery_id", "waiting", "arrived")


@operation
def retry_run(run_id: UUID, from_step: str | None, events: WorkflowEvents) -> Steps[list[str]]:
    """Runs a step and all steps after it again; returns the steps that run again. Without a step: those that failed.

    If the run has ended, every other step that is not done runs again too, and steps that were undone count as not
    done. A step that was not done keeps what it remembers, so that its effects are not repeated; one that was done
    starts without it. Raises `Refused` while the run is compensated.
    """
    run = yield from lock_run(run_id)
    graph = None if run is None else (yield from read_definition(run.name, run.version))
    if run is None or graph is None:
        raise NotFound("run", run_id)
    if run.status is RunStatus.COMPENSATING:
        raise Refused("retry", f"run {run_id}", "being compensated", "wait until its undo steps are done")
    if (yield from _advance_completed(run_id, run, graph, events)):
        run = yield from lock_run(run_id)
        assert run is not None
    marks = yield from step_marks(run_id)
    done = {name for name, is_done in marks.items() if is_done and name in graph.nodes}
    again = yield from _chosen(run_id, run, graph, from_step, done)
    kept = done - again
    order = [name for name in graph.order if name in again]
    ready, counters = waiting_steps(graph, order, kept, triggered={name for name in marks if name.endswith(":trigger")})
    epoch = run.epoch + 1
    ids = {name: step_delivery_id(run_id, run.name, name, epoch) for name in order}
    resets = [
        (run_id, n, ids[n], n in done, step_consumer(run.name, n), step_consumer(run.name, undo_of(n))) for n in order
    ]
    low, high = delivery_range(run_id)
    yield Query("reset_steps", {"run": run_id, "low": low, "high": high}, {"steps": columns(_RESET, resets)})
    if counters:
        rows = [(run_id, name, ids[name], waiting, arrived) for name, waiting, arrived in counters]
        yield Query("store_counters", batches={"steps": columns(COUNTER, rows)})
    waiting = len([name for name in graph.last if name not in kept])
    yield Query("restart_run", {"run_id": run_id, "waiting": waiting})
    if ready:
        # Without a step that follows, the advance would count a last step as done: all may wait for a trigger.
        yield Query("store_trigger", {"run_id": run_id, "step": f"retry:{epoch}", "delivery_id": run_id})
        row = (run_id, f"retry:{epoch}", 0, steps_json(run_id, run.name, [(name, 1) for name in ready], epoch))
        yield from advance_row(row, run.source, run.generation, events)
    return order


def _advance_completed(run_id: UUID, run: LockedRun, graph: Graph, events: WorkflowEvents) -> Steps[bool]:
    """Advances steps that `ctx.complete` settled and no worker advanced yet; whether there were any.

    Otherwise they would be advanced after the retry, which already counts them as done: a second time, and for deliveries
    of the last epoch. A run that has ended is not advanced, and the retry makes everything due that is not done.
    """
    rows = yield Query("unadvanced_of_run", {"run_id": run_id})
    for step, occurrence, stored in rows:
        next = stored or next_steps(run_id, graph, str(step), run.epoch)
        yield from advance_row((run_id, str(step), occurrence, next), run.source, run.generation, events)
    if rows:
        yield Query("forget_unadvanced_of_run", {"run_id": run_id})
    return bool(rows)


def _chosen(
    run_id: UUID, run: LockedRun, graph: Graph, from_step: str | None, done: Collection[str]
) -> Steps[set[str]]:
    """The steps that run again."""
    low, high = delivery_range(run_id)
    rows = yield Query("failed_steps", {"run_id": run_id, "low": low, "high": high})
    failed = {step_of(str(consumer)) for consumer, _ in rows}
    dead = {step_of(str(consumer)) for consumer, discarded in rows if not discarded} & graph.nodes.keys()
    undone = {undone_step(step) for step in (yield from _undo_steps(run_id))}
    if from_step is not None and from_step not in graph.nodes:
        raise Refused("retry", f"run {run_id} from step {from_step}", "unknown", nearest_step(from_step, graph.nodes))
    first = {from_step} if from_step is not None else dead
    if run.status is not RunStatus.RUNNING:
        first |= graph.nodes.keys() - set(done) if run.status is not RunStatus.DONE else set()
        first |= undone
    if not first:
        raise Refused("retry", f"run {run_id}", f"{run.status} without a failed step", "name the step to retry from")
    if from_step is not None and not graph.ancestors(from_step) <= {*done, *first, *failed}:
        raise Refused("retry", f"run {run_id} from step {from_step}", "not reached yet", "wait for the steps before it")
    mapped = {name for name, node in graph.nodes.items() if node.mapped}
    return first.union(*(graph.descendants(name) for name in first)) - mapped


def _undo_steps(run_id: UUID) -> Steps[list[str]]:
    marks = yield from step_marks(run_id)
    return [name for name in marks if name.endswith(":undo") and name != "compensation:undo"]


def waiting_steps(
    graph: Graph, again: list[str], kept: Collection[str], triggered: Collection[str]
) -> tuple[list[str], list[tuple[str, int, int]]]:
    """The steps that can start now, and for the joins what is left to wait for, from the predecessors that are not done."""
    ready: list[str] = []
    counters: list[tuple[str, int, int]] = []
    for name in again:
        node = graph.nodes[name]
        left = sum(before not in kept for before in node.after) + (node.manual and f"{name}:trigger" not in triggered)
        if not left:
            ready.append(name)
        elif left < node.joins:
            counters.append((name, left, node.joins - left))
    return ready, counters
