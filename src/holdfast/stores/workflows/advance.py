"""Progress: completed steps make the steps that waited for them due, or end their run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from holdfast.core.workflows.graph import Graph
from holdfast.core.workflows.names import is_item, item_parts, map_join, step_delivery_id
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Operation, Query, Row, Rows, Steps, columns, operation
from holdfast.stores.workflows.event import EndedRun, WorkflowEvents, announce
from holdfast.stores.workflows.run import RunStatus

NO_NEXT = "[]"
_JOINS, _ALONE = '"joins"', '"joins":1}'
_STEP = ("run_id", "step", "occurrence", "delivery_id", "fence", "result", "next")
_WITH_JOINS = (("woken_runs", ("joins_done",)), ("joined", ("joined_steps",)))
_LARGE = 8192
_LOCK_WAIT = timedelta(seconds=2)
_SWEPT = 500


class StepEnd(NamedTuple):
    """A completed step: its claim, its result as JSON text, and the steps that wait for it as JSON text."""

    run_id: UUID
    step: str
    occurrence: int
    delivery_id: UUID
    fence: int
    result: str | None
    next: str
    source: str
    generation: int
    version: int | None = None
    """The version of the workflow whose form the result has, if it is not that of the run."""


class Advanced(NamedTuple):
    """The deliveries that were settled, the runs that ended, and the runs that are being compensated."""

    settled: frozenset[UUID]
    ended: tuple[EndedRun, ...]
    compensating: frozenset[UUID]


class UnadvancedStep(NamedTuple):
    """A step that was completed in a handler's transaction and not advanced yet."""

    run_id: UUID
    step: str
    occurrence: int
    next: str | None
    workflow: str
    version: int
    epoch: int
    source: str
    generation: int


def next_steps(run_id: UUID, graph: Graph, step: str, epoch: int) -> str:
    """The steps that wait for this one, or the join of an item, as `advance` takes them."""
    if is_item(step):
        return items_join(run_id, step)
    return steps_json(run_id, graph.workflow, graph.next_joins(step), epoch)


@lru_cache(maxsize=64)
def items_join(run_id: UUID, name: str) -> str:
    """What waits for the items of this name, as `advance` takes it: a join that `start_items` stored with its delivery."""
    step, parent, call = item_parts(name)
    return f'[{{"name":"{map_join(parent, step, call)}","id":"{run_id}","joins":2}}]'


def steps_json(run_id: UUID, workflow: str, steps: Sequence[tuple[str, int]], epoch: int) -> str:
    """Steps of a run and the number of completions that each waits for, as `advance` takes them."""
    if not steps:
        return NO_NEXT
    # Names of steps need no escapes.
    return (
        "["
        + ",".join(
            f'{{"name":"{name}","id":"{step_delivery_id(run_id, workflow, name, epoch)}","joins":{joins}}}'
            for name, joins in steps
        )
        + "]"
    )


def advance(worker: str, ends: Sequence[StepEnd], events: WorkflowEvents, *, wait: bool = False) -> Operation[Advanced]:
    """Settles completed steps under their fences and advances their runs.

    A step that is not returned was lost, its run has ended, or another transaction has locked its run. With `wait` it
    waits for such a lock, for a limited time.
    """
    # By the number of the id: to compare the objects takes three times as long.
    ends = sorted(ends, key=lambda end: (end.run_id.int, end.step, end.occurrence))
    single = not wait and not any(end.next == NO_NEXT or _is_large(end) or end.version for end in ends)
    return Operation(lambda: _advance(worker, ends, events, wait), single=single, hot=True)


def _advance(worker: str, ends: Sequence[StepEnd], events: WorkflowEvents, wait: bool) -> Steps[Advanced]:
    if wait:
        yield Query("limit_lock_wait", {"milliseconds": str(round(_LOCK_WAIT.total_seconds() * 1000))})
    batch = [(*end[:5], None if _is_large(end) else end.result, end.next) for end in ends]
    rows = yield Query(
        "advance",
        {"worker": worker},
        {"steps": columns(_STEP, batch)},
        slots=(("locking", () if wait else ("skip_locked",)), *_parts(ends)),
    )
    ids = [end.delivery_id for end in ends]
    advanced = _read(rows, ids, lambda: {end.run_id: (end.source, end.generation) for end in ends})
    for end in ends:
        if _is_large(end) and end.delivery_id in advanced.settled:
            values = {"run_id": end.run_id, "step": end.step, "occurrence": end.occurrence, "result": end.result}
            yield Query("store_result", values)
        if end.version is not None and end.delivery_id in advanced.settled:
            yield _store_version(end)
    yield from announce(advanced.ended, events)
    return advanced


def complete_step(completion: Operation[None], end: StepEnd) -> Operation[None]:
    """Runs `completion`, which completes a step's delivery in the caller's transaction, and stores its result.

    It only appends: the run is advanced after the commit.
    """

    def steps() -> Steps[None]:
        yield from completion.start()
        values = dict(zip(_STEP[:6], end, strict=False))
        yield Query("complete_step", values)
        if end.version is not None:
            yield _store_version(end)

    return Operation(steps)


@operation
def advance_completed(
    run_id: UUID, step: str, occurrence: int, next: str, source: str, generation: int, events: WorkflowEvents
) -> Steps[Advanced]:
    """Advances the run of a step that `ctx.complete` settled; only the first call for a step changes anything."""
    return (yield from advance_row((run_id, step, occurrence, next), source, generation, events))


def advance_completed_step(row: tuple[UUID, str, int, str | None]) -> Query:
    """Advances the run of a step that was settled in a handler's transaction: its run, name, number, and `next`."""
    return Query(
        "advance_completed",
        batches={"steps": columns(("run_id", "step", "occurrence", "next"), [row])},
        slots=_WITH_JOINS,
    )


def advance_row(
    row: tuple[UUID, str, int, str], source: str, generation: int, events: WorkflowEvents
) -> Steps[Advanced]:
    """`advance_completed` in the transaction of another operation."""
    rows = yield advance_completed_step(row)
    advanced = _read(rows, (), lambda: {row[0]: (source, generation)})
    yield from announce(advanced.ended, events)
    return advanced


@operation
def unadvanced_steps(older_than: timedelta) -> Steps[list[UnadvancedStep]]:
    """Completed steps of active runs whose worker did not advance them; clears the mark of those whose run has ended."""
    yield Query("forget_unadvanced", {"older_than": older_than})
    rows = yield Query("unadvanced_steps", {"older_than": older_than}, limit=_SWEPT)
    return [
        UnadvancedStep(
            as_uuid(run), str(step), occurrence, next, str(workflow), version, epoch, str(source), generation
        )
        for run, step, occurrence, next, workflow, version, epoch, source, generation in rows
    ]


def _parts(ends: Sequence[StepEnd]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The parts of `advance` that this batch needs. On SQLite each is a separate statement."""
    # All items of a map have the same text.
    texts = {end.next for end in ends}
    ends_runs = NO_NEXT in texts
    wakes = any("/" in text for text in texts)
    follows = any(text != NO_NEXT and ("/" not in text or text.count(_JOINS) > 1) for text in texts)
    joins = wakes or any(text.count(_ALONE) != text.count(_JOINS) for text in texts)
    yield "counted_joins", ("join_counters",) if joins else ()
    yield "next_steps", ("successors",) if follows else ()
    yield "joined", ("joined_steps",) if joins else ()
    yield "woken_steps", ("woken_step",) if wakes else ()
    yield "changed_runs", ("run_progress",) if ends_runs or wakes else ()
    yield "woken_runs", ("joins_done",) if wakes else ()
    yield "result", ("settled_rows", "advanced_rows") if ends_runs else ()


def _read(rows: Rows, ids: Sequence[UUID], runs: Callable[[], Mapping[UUID, tuple[str, int]]]) -> Advanced:
    """What a batch with these deliveries changed. `runs` gives the source and generation of its runs; most batches do not
    need them."""
    # The delivery of a step and the status of its run, or a run that has ended.
    steps = [row for row in rows if row[0] is not None]
    ends = [row for row in rows if row[0] is None and not RunStatus(row[1]).is_active]
    compensating = any(row[1] == RunStatus.COMPENSATING for row in steps)
    # To read the ids that are known already takes longer than the rest.
    settled = ids if len(steps) == len(ids) else [as_uuid(row[0]) for row in steps]
    if not ends and not compensating:
        return Advanced(frozenset(settled), (), frozenset())
    known = runs()
    ended = tuple(_ended(row, known) for row in ends)
    # A batch rarely contains a run that is being compensated; then all its runs are checked.
    checked = frozenset(known) - {run.run_id for run in ended} if compensating else frozenset()
    return Advanced(frozenset(settled), ended, frozenset(checked))


def _ended(row: Row, known: Mapping[UUID, tuple[str, int]]) -> EndedRun:
    _, status, run_id, name, parent, reason = row
    run = as_uuid(run_id)
    parent_run = None if parent is None else as_uuid(parent)
    return EndedRun(run, RunStatus(status), str(name), parent_run, reason, *known[run])


def _store_version(end: StepEnd) -> Query:
    values = {"run_id": end.run_id, "step": end.step, "occurrence": end.occurrence, "version": end.version}
    return Query("store_version", values)


def _is_large(end: StepEnd) -> bool:
    return end.result is not None and len(end.result) > _LARGE
