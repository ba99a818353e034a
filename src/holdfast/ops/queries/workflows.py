"""Workflows: counts of their runs, lists of runs, and one run with its steps, waits and signals, all redacted."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from holdfast.core.errors import NotFound
from holdfast.core.redaction.redact import redacted
from holdfast.core.workflows.graph import Node
from holdfast.core.workflows.names import start_type
from holdfast.core.workflows.state import StepState
from holdfast.ops.queries.pages import first_match
from holdfast.ops.queries.redaction import Hide, redactor, shown_entry, shown_value
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.actions import AuditEntry, audit
from holdfast.stores.queries import query
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.workflows import query as runs
from holdfast.stores.workflows import run_page
from holdfast.stores.workflows.query import ItemCounts, RememberedRow, RunDetail, RunRecord, SignalRecord, StepRecord
from holdfast.stores.workflows.run_page import ListedRun, RunFilter, WorkflowCounts

AUDITED = "run"
"""The kind of audit entries about a run."""
_ENTRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRunDetail:
    """A run with its steps in the order of its graph, what they remember and wait for, its signals, children and forks.

    `steps` has a limited number of items of maps, those that failed or are not done first; `items` counts all. `graph` has the
    steps of its version; it is empty if the definition is not stored. Results and payloads are JSON text
    without declared secrets.
    """

    listed: ListedRun
    payload: str
    graph: tuple[Node, ...]
    steps: tuple[StepRecord, ...]
    items: tuple[ItemCounts, ...]
    remembered: tuple[RememberedRow, ...]
    signals: tuple[SignalRecord, ...]
    children: tuple[RunRecord, ...]
    forks: tuple[RunRecord, ...]
    audit: tuple[AuditEntry, ...]
    now: datetime


def workflows() -> TaskSteps[list[WorkflowCounts]]:
    """All declared workflows by name, with the states of their newest runs."""
    return (yield from transact(run_page.workflow_counts()))


def workflow_runs(
    wanted: RunFilter | None = None,
    *,
    limit: int = 50,
    before: UUID | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> TaskSteps[Slice[ListedRun]]:
    """A page of runs, newest first; pass `next` as `before` for the next.

    A filter without an index is scanned within a bound: a page may have fewer items than `limit`, even none, and is the
    last only if `next` is None.
    """
    wanted = wanted or RunFilter()
    found = yield from first_match(lambda below: run_page.run_page(wanted, limit, below), before, timer)
    return Slice([replace(one, run=_shown_record(one.run, None)) for one in found.items], found.next)


def workflow_run(id: UUID) -> TaskSteps[WorkflowRunDetail]:
    """One run with everything about it."""
    found = yield from transact(runs.workflow_run(run_id(id)))
    known = yield from redactor()
    entries = yield from transact(audit(_ENTRIES, target=(AUDITED, str(found.run.id))))
    type = start_type(found.run.workflow)
    hide = known.hide(type, found.payload)
    return WorkflowRunDetail(
        listed=ListedRun(_shown_record(found.run, hide), is_blocked=_is_blocked(found)),
        payload=known.payload(type, found.payload),
        graph=() if found.graph is None else tuple(found.graph.nodes[name] for name in found.graph.order),
        steps=tuple(
            replace(one, last_error=_text(one.last_error, hide), result=shown_value(known, type, one.result, hide))
            for one in found.steps
        ),
        items=tuple(found.items),
        remembered=tuple(replace(one, result=shown_value(known, type, one.result, hide)) for one in found.remembered),
        signals=tuple(replace(one, payload=shown_value(known, type, one.payload, hide)) for one in found.signals),
        children=tuple(_shown_record(one, hide) for one in found.children),
        forks=tuple(_shown_record(one, hide) for one in found.forks),
        audit=tuple(shown_entry(entry, hide) for entry in entries),
        now=(yield from transact(query.clock())),
    )


def run_id(given: UUID | str) -> UUID:
    """The id of a run; raises `NotFound` for a text that is not an id."""
    try:
        return given if isinstance(given, UUID) else UUID(given)
    except ValueError:
        raise NotFound("run", given, "an id is a UUID; `holdfast workflows list` shows the ids") from None


def _is_blocked(found: RunDetail) -> bool:
    return any(step.state is StepState.BLOCKED for step in found.steps)


def _shown_record(record: RunRecord, hide: Hide) -> RunRecord:
    return record if record.reason is None else replace(record, reason=_text(record.reason, hide))


def _text(text: str | None, hide: Hide) -> str | None:
    return None if text is None else redacted(text, hide)
