"""Lists of runs, in a time that does not depend on their number, and counts of the newest ones.

A page is one index scan if the filter is a workflow or nothing. Another filter has no index, because each index would slow
down every start and end of a run: a page then scans a bounded number of runs and says where to continue.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from holdfast.core.identity import first_id
from holdfast.core.values.bounded_count import NONE, BoundedCount
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.filter_index import far_id
from holdfast.stores.queries.pagination import SKEW, Slice, first_below
from holdfast.stores.queries.query import page_size
from holdfast.stores.workflows.query import RunRecord, read_run_record
from holdfast.stores.workflows.run import RunStatus

BLOCKED = "blocked"
"""The state of an active run with a blocked step; it is not a status of the run."""
RUN_STATES = (*(status.value for status in RunStatus), BLOCKED)

_STRETCH = 5_000
_STRETCHES = 2
_COUNTED = 20_000
_MAX_WORKFLOWS = 200
_MAX_VERSIONS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a list has. `state` is a status or `blocked`; times compare with the start of the run."""

    workflow: str | None = None
    state: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether an index serves it in the order of ids."""
        return self.key is not None or (self.state is None and self.since is None and self.until is None)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list, and whether one of its steps is blocked."""

    run: RunRecord
    is_blocked: bool

    @property
    def state(self) -> str:
        """The state that is shown: `blocked`, or the status of the run."""
        return BLOCKED if self.is_blocked else self.run.status.value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCounts:
    """The newest runs of a workflow by status, and its declared versions, newest first."""

    workflow: str
    versions: tuple[int, ...]
    running: BoundedCount = NONE
    compensating: BoundedCount = NONE
    done: BoundedCount = NONE
    failed: BoundedCount = NONE
    cancelled: BoundedCount = NONE


@operation(reads=True)
def run_page(wanted: RunFilter, limit: int = 50, before: UUID | None = None) -> Steps[Slice[ListedRun]]:
    """A page of runs, newest first; scans a bounded number of runs, so it may be short without being the last."""
    limit, before = page_size(limit), first_below(before, wanted.until)
    oldest = None if wanted.since is None else first_id(wanted.since, -SKEW)
    if wanted.is_indexed:
        found = yield from _runs(wanted, limit, before, None)
        return Slice(found, found[-1].run.id if len(found) == limit else None)
    found = []
    for _ in range(_STRETCHES):
        lowest = yield from _end_of_range(wanted.workflow, before)
        is_last = lowest is None or (oldest is not None and lowest <= oldest)
        found += yield from _runs(wanted, limit - len(found), before, oldest if is_last else lowest)
        if len(found) == limit:
            return Slice(found, found[-1].run.id)
        if is_last:
            return Slice(found, None)
        before = lowest
    return Slice(found, before)


@operation(reads=True)
def workflow_counts() -> Steps[list[WorkflowCounts]]:
    """The declared workflows by name with the states of their newest runs. Further runs make the counts lower bounds."""
    versions: dict[str, list[int]] = {}
    for name, version in (yield Query("declared_workflows", limit=_MAX_VERSIONS)):
        versions.setdefault(str(name), []).append(version)
    found = []
    names = list(versions)[:_MAX_WORKFLOWS]
    bound = max(1_000, _COUNTED // max(1, len(names)))
    for name in names:
        rows = yield Query("run_counts", {"name": name}, limit=bound)
        counted = {str(status): size for status, size in rows}
        more = sum(counted.values()) >= bound
        counts = {status.value: BoundedCount(counted.get(status.value, 0), more) for status in RunStatus}
        found.append(WorkflowCounts(workflow=name, versions=tuple(versions[name]), **counts))
    return found


COUNTED_STATES = tuple(field.name for field in fields(WorkflowCounts) if field.name not in ("workflow", "versions"))


def _runs(wanted: RunFilter, limit: int, before: UUID | None, lowest: UUID | None) -> Steps[list[ListedRun]]:
    chosen = {
        "run_name": wanted.workflow,
        "run_status": None if wanted.state == BLOCKED else wanted.state,
        "run_key": wanted.key,
        "run_since": wanted.since,
        "run_until": wanted.until,
        "run_before": before,
        "run_from": lowest,
    }
    where = [f"where_{name}" for name, value in chosen.items() if value is not None]
    if wanted.state == BLOCKED:
        where.append("where_run_blocked")
    rows = yield Query("list_runs", dict(_values(chosen)), slots=(("where", tuple(where)),), limit=limit)
    return [ListedRun(read_run_record(record), bool(blocked)) for *record, blocked in rows]


def _values(chosen: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    names = {"run_from": "lowest"}
    for name, value in chosen.items():
        if value is not None:
            yield names.get(name, name.removeprefix("run_")), value


def _end_of_range(workflow: str | None, before: UUID | None) -> Steps[UUID | None]:
    where, values = ((), {}) if workflow is None else (("where_run_name",), {"name": workflow})
    return (yield from far_id("far_run", where, values, "where_run_before", before, _STRETCH))
