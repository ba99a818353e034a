"""Queries about runs for operators."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.core.identity import delivery_range
from holdfast.core.workflows.graph import Graph
from holdfast.core.workflows.names import COMMANDS, is_undo, item_parts, step_consumer, step_of
from holdfast.core.workflows.state import DeliveryFacts, StepState, step_state
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Row, Steps, operation
from holdfast.stores.row import row_reader
from holdfast.stores.workflows.definition import read_definition
from holdfast.stores.workflows.run import RunStatus

_ROWS = 1000
_COUNTED_ITEMS = 20_000


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run in a list."""

    id: UUID
    workflow: str
    version: int
    status: RunStatus
    key: str | None
    reason: str | None
    parent_run: UUID | None
    deadline: datetime | None
    started_at: datetime
    ended_at: datetime | None
    forked_from: UUID | None = None
    forked_step: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step of a run with its state. Times are those of its delivery; `result` is JSON text."""

    name: str
    state: StepState
    delivery_id: UUID | None = None
    occurrence: int = 0
    item_of: str | None = None
    """The step that called `ctx.map`, if this is an item of a map; `occurrence` is then the number of the item."""
    attempts: int = 0
    due_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_error: str | None = None
    result: str | None = None
    result_version: int | None = None
    """The version of the workflow whose form the result has, if it is not that of the run. Results are shown as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
    """The items of one `ctx.map` call by state: the mapped step, the step that called it, and the number of the call."""

    step: str
    item_of: str
    call: int
    states: Mapping[str, int]
    or_more: bool
    """Whether more items exist than were counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedRow:
    """What a step remembers: a memo, a wait, items or a child run. `outcome` is `signal` or `timeout` for a wait."""

    name: str
    occurrence: int
    waiting: int | None
    signal: str | None
    wake_at: datetime | None
    outcome: str | None
    result: str | None
    done_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """A signal that was sent to a run. `consumed_by` is the wait that got it."""

    id: UUID
    name: str
    payload: str | None
    consumed_by: str | None
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run with its steps in the order of its graph, what they remember, its signals, its children and its forks.

    `steps` has a limited number of items of maps, those that failed or are not done first; `items` counts all.
    """

    run: RunRecord
    graph: Graph | None
    payload: str
    steps: Sequence[StepRecord]
    items: Sequence[ItemCounts]
    remembered: Sequence[RememberedRow]
    signals: Sequence[SignalRecord]
    children: Sequence[RunRecord]
    forks: Sequence[RunRecord]


@operation
def workflow_run(run_id: UUID) -> Steps[RunDetail]:
    """One run with everything about it; raises `NotFound` for an unknown run."""
    rows = yield Query("workflow_run", {"run_id": run_id})
    if not rows:
        raise NotFound("run", run_id)
    *record, payload = rows[0]
    run = read_run_record(record)
    graph = yield from read_definition(run.workflow, run.version)
    stored = yield Query("workflow_run_steps", {"run_id": run_id}, limit=_ROWS)
    low, high = delivery_range(run_id)
    mapped = [] if graph is None else [node.name for node in graph.nodes.values() if node.mapped]
    others = [COMMANDS, *(step_consumer(run.workflow, name) for name in mapped)]
    deliveries = yield Query(
        "workflow_run_deliveries", {"run_id": run_id, "low": low, "high": high, "others": others}, limit=_ROWS
    )
    listed: Sequence[Row] = []
    counted: Sequence[Row] = []
    if mapped:
        listed = yield Query("workflow_run_items", {"run_id": run_id}, limit=_ROWS)
        counted = yield Query("workflow_run_item_counts", {"run_id": run_id}, limit=_COUNTED_ITEMS)
    signals = yield Query("workflow_run_signals", {"run_id": run_id}, limit=_ROWS)
    children = yield Query("child_runs", {"run_id": run_id}, limit=_ROWS)
    forks = yield Query("forked_runs", {"run_id": run_id}, limit=_ROWS)
    return RunDetail(
        run=run,
        graph=graph,
        payload=str(payload),
        steps=_steps(run, graph, stored, deliveries, listed),
        items=_item_counts(run.status, counted),
        remembered=[_remembered(row) for row in stored if "/" in str(row[0])],
        signals=[_read_signal(row) for row in signals],
        children=[read_run_record(row) for row in children],
        forks=[read_run_record(row) for row in forks],
    )


def _steps(
    run: RunRecord, graph: Graph | None, stored: Sequence[Row], deliveries: Sequence[Row], items: Sequence[Row]
) -> list[StepRecord]:
    results = {(str(row[0]), row[1]): row for row in stored}
    waits = {as_uuid(row[2]) for row in stored if "/" in str(row[0]) and row[8] is None}
    # A step that ran again after a retry has several deliveries; the last one counts.
    newest = {step_of(str(row[1])): row for row in deliveries}
    shown = [_step(run, row, results, waits) for row in newest.values()]
    shown += [_item(run, row) for row in items]
    known = {step.name for step in shown}
    order = {name: n for n, name in enumerate(() if graph is None else graph.order)}
    for name in order:
        if name not in known:
            row = results.get((name, 0))
            is_done = row is not None and row[8] is not None
            state = step_state(None, is_done=is_done, waits=False, can_block=False)
            result, version = (None, None) if row is None or not is_done else (row[7], row[9])
            shown.append(StepRecord(name=name, state=state, result=result, result_version=version))
    # The sort is stable: items stay in the order of the query.
    return sorted(shown, key=lambda step: (order.get(step.name, len(order)), step.name))


def _step(run: RunRecord, row: Row, results: Mapping[tuple[str, int], Row], waits: Collection[UUID] = ()) -> StepRecord:
    id, consumer, status, is_due, run_at, attempts, claimed, completed, discarded, error, replayed = row
    delivery, name = as_uuid(id), step_of(str(consumer))
    stored = results.get((name, 0))
    facts = DeliveryFacts(
        status=Status(status),
        is_due=bool(is_due),
        attempts=attempts,
        is_discarded=discarded is not None,
        was_replayed=bool(replayed),
    )
    return StepRecord(
        name=name,
        state=step_state(facts, is_done=False, waits=delivery in waits, can_block=_can_block(run.status, name)),
        delivery_id=delivery,
        attempts=attempts,
        due_at=aware_time(run_at),
        started_at=optional_time(claimed),
        ended_at=optional_time(completed),
        last_error=error,
        result=None if stored is None or stored[8] is None else stored[7],
        result_version=None if stored is None or stored[8] is None else stored[9],
    )


def _item(run: RunRecord, row: Row) -> StepRecord:
    name, occurrence, result, version, *delivery = row
    _, parent, _ = item_parts(str(name))
    shown = _step(run, delivery, {})
    return replace(shown, occurrence=occurrence, item_of=parent, result=result, result_version=version)


def _item_counts(run: RunStatus, rows: Sequence[Row]) -> list[ItemCounts]:
    counts: dict[str, Counter[str]] = {}
    for name, status, is_due, attempts, is_discarded, was_replayed, count in rows:
        facts = DeliveryFacts(
            status=Status(status),
            is_due=bool(is_due),
            attempts=attempts,
            is_discarded=bool(is_discarded),
            was_replayed=bool(was_replayed),
        )
        state = step_state(facts, is_done=False, waits=False, can_block=run is RunStatus.RUNNING)
        counts.setdefault(str(name), Counter())[state.value] += count
    or_more = sum(states.total() for states in counts.values()) >= _COUNTED_ITEMS
    return [
        ItemCounts(step=step, item_of=parent, call=call, states=dict(sorted(states.items())), or_more=or_more)
        for name, states in sorted(counts.items())
        for step, parent, call in [item_parts(name)]
    ]


def _can_block(status: RunStatus, step: str) -> bool:
    """Whether a dead step leaves a run with this status waiting for an operator."""
    return status is RunStatus.RUNNING or (status is RunStatus.COMPENSATING and is_undo(step))


def _remembered(row: Row) -> RememberedRow:
    name, occurrence, _delivery, *rest, _version = row
    return _read_remembered((name, occurrence, *rest))


_read_remembered = row_reader(RememberedRow)
_read_signal = row_reader(SignalRecord)
read_run_record = row_reader(RunRecord)
