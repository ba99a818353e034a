"""Forks: a new run that begins at a step of another run, with the results of the steps before it."""

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.core.message import NewMessage
from holdfast.core.workflows.graph import Graph, nearest_step
from holdfast.core.workflows.names import start_type, step_delivery_id
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.publish import Published
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.workflows.advance import advance_completed_step, steps_json
from holdfast.stores.workflows.definition import read_definition
from holdfast.stores.workflows.retry import COUNTER, waiting_steps
from holdfast.stores.workflows.run import NewRun, RunStatus, StepResult, start_runs

_RESULT = ("run_id", "step", "delivery_id", "result", "version")
_BEGIN = "start:fork"
"""The row of a fork that stands for its start: advancing it makes the first steps due."""


class Origin(NamedTuple):
    """The run and the step that a fork begins with."""

    run_id: UUID
    step: str


@operation
def fork_run(start: NewMessage, origin: Origin) -> Steps[Published]:
    """Forks a run: a new run of the same version begins at a step; the steps before it are done, with their results.

    That step, all steps after it and those that were not done or were undone run in the fork. The other run is only read and
    not locked, so a caller's transaction may do this. `start` is a start message of the same workflow; it gets the values of
    the other start. A repeated key returns the first fork. Raises `NotFound` or `Refused` before anything is stored.
    """
    if (known := (yield from _first_fork(start, origin))) is not None:
        return known
    rows = yield Query("fork_origin", {"run_id": origin.run_id})
    if not rows or start_type(str(rows[0][0])) != start.type:
        raise NotFound("run", origin.run_id)
    name, version, status, payload = rows[0]
    graph = yield from read_definition(str(name), version)
    if graph is None:
        remedy = "start a worker whose code has that version, then fork it"
        raise Refused("fork", f"run {origin.run_id}", f"of version {version}, whose steps are not stored", remedy)
    if RunStatus(status) is RunStatus.COMPENSATING:
        raise Refused("fork", f"run {origin.run_id}", "being compensated", "wait until its undo steps are done")
    found = yield Query("finished_steps", {"run_id": origin.run_id})
    _check_reached(origin, graph, {str(step) for step, *_ in found})
    kept = _kept(origin, graph, {str(step): StepResult(*result) for step, *result, undone in found if not undone})
    waiting = len([step for step in graph.last if step not in kept])
    run = NewRun(start._replace(payload=str(payload)), graph.workflow, graph.version, waiting)
    (published,) = yield from start_runs([run]).start()
    if not published.created:
        return (yield from _first_fork(start, origin)) or published
    yield from _begin(published.id, origin, graph, kept)
    return published


def _first_fork(start: NewMessage, origin: Origin) -> Steps[Published | None]:
    """The fork that this key started; raises `Refused` if the key belongs to another run."""
    if start.key is None:
        return None
    keys = columns(("source", "key", "key_scope"), [(start.source, start.key, start.key_scope)])
    rows = yield Query("find_keyed", batches={"keys": keys})
    if not rows:
        return None
    # A key of the same workflow from any source wins over a key that only has the same source.
    *_, found, type, _ = max(rows, key=lambda row: bool(row[3]))
    id = as_uuid(found)
    links = yield Query("fork_link", {"run_id": id})
    # A run that was pruned has no link any more.
    is_fork = all(run is not None and (as_uuid(run), str(step)) == origin for run, step in links)
    if type != start.type or not is_fork:
        what = f"key {start.key} for a fork of run {origin.run_id} from step {origin.step}"
        raise Refused("use", what, f"the key of {id}", "use another key")
    return Published(id, False)


def _check_reached(origin: Origin, graph: Graph, done: Collection[str]) -> None:
    what = f"run {origin.run_id} from step {origin.step}"
    node = graph.nodes.get(origin.step)
    if node is None:
        raise Refused("fork", what, "unknown", nearest_step(origin.step, graph.nodes))
    if node.mapped:
        raise Refused("fork", what, "a step for the items of a map", "fork from the step that calls ctx.map")
    if left := graph.ancestors(origin.step).difference(done):
        first = next(step for step in graph.order if step in left)
        raise Refused("fork", what, f"not reached yet: step {first} is not done", "fork from a step that was reached")


def _kept(origin: Origin, graph: Graph, done: Mapping[str, StepResult]) -> dict[str, StepResult]:
    """The steps that stay done in the fork, with their results: no step before them runs again."""
    again = {origin.step, *(step for step in graph.order if step not in done)}
    again = again.union(*(graph.descendants(step) for step in again))
    return {step: result for step, result in done.items() if step in graph.nodes and step not in again}


def _begin(run_id: UUID, origin: Origin, graph: Graph, kept: Mapping[str, StepResult]) -> Steps[None]:
    """Stores the results of a new run and makes its first steps due. Triggers are not copied."""
    ids = {step: step_delivery_id(run_id, graph.workflow, step) for step in graph.order}
    yield Query("link_fork", {"run_id": run_id, "origin": origin.run_id, "step": origin.step})
    if kept:
        rows = [(run_id, step, ids[step], *result) for step, result in kept.items()]
        yield Query("copy_results", batches={"steps": columns(_RESULT, rows)})
    again = [step for step in graph.order if step not in kept and not graph.nodes[step].mapped]
    ready, counters = waiting_steps(graph, again, kept, triggered=())
    if counters:
        joins = [(run_id, step, ids[step], waiting, arrived) for step, waiting, arrived in counters]
        yield Query("store_counters", batches={"steps": columns(COUNTER, joins)})
    if ready:
        # Without a step that follows, the advance would count a last step as done. It cannot end the run.
        yield Query("store_trigger", {"run_id": run_id, "step": _BEGIN, "delivery_id": run_id})
        due = (run_id, _BEGIN, 0, steps_json(run_id, graph.workflow, [(step, 1) for step in ready], 0))
        yield advance_completed_step(due)
