"""Queries about groups: pages, counts by stage, and their jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Rows, Steps, operation
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.row import row_reader

FAILED_SHOWN = 20
"""The maximum number of dead letters, and of running jobs with their progress, in the detail of a group."""


class GroupState(StrEnum):
    """The state of a group. When no job is left, it is the state of its last stage."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StageCounts(NamedTuple):
    """The jobs of a stage by state. `left` is the number of pending and running ones; a pruned job counts as done."""

    stage: int
    job: str
    total: int
    done: int
    failed: int
    cancelled: int
    running: int
    pending: int

    @property
    def left(self) -> int:
        """The jobs that have not ended."""
        return self.running + self.pending


class GroupRow(NamedTuple):
    """A stored group."""

    id: UUID
    label: str
    key: str | None
    created_at: datetime
    cancelled_at: datetime | None


class GroupMember(NamedTuple):
    """A job of a group. `result` is None if none is kept; the store returns it as JSON text, a handle as JSON values."""

    position: int
    job: str
    message_id: UUID
    delivery_id: UUID
    status: Status
    discarded: bool
    error_type: str | None
    error: str | None
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """The progress of a group: its state, and the number of jobs by state, in total and by stage."""

    id: UUID
    label: str
    key: str | None
    state: GroupState
    created_at: datetime
    cancelled_at: datetime | None
    total: int
    done: int
    failed: int
    cancelled: int
    left: int
    stages: tuple[StageCounts, ...]


class FailedMember(NamedTuple):
    """A job of a group that is a dead letter."""

    stage: int
    position: int
    job: str
    delivery_id: UUID
    error_type: str | None
    error: str | None


class MemberProgress(NamedTuple):
    """A running job of a group that reported its progress, from 0 to 1."""

    stage: int
    position: int
    job: str
    delivery_id: UUID
    fraction: float
    note: str | None
    reported_at: datetime


class UnfinishedMember(NamedTuple):
    """The handler and queue of jobs of a group that have not ended; `is_own` is 1 if one of them has the message of the caller."""

    consumer: str
    queue: str
    is_own: int


_group, _member, _failed = row_reader(GroupRow), row_reader(GroupMember), row_reader(FailedMember)
_running, _unfinished = row_reader(MemberProgress), row_reader(UnfinishedMember)


def read_counts(rows: Rows) -> Mapping[tuple[UUID, int], StageCounts]:
    """The rows of `stage_counts` by group and stage."""
    return {
        (as_uuid(id), stage): StageCounts(stage, job if jobs == 1 else f"{jobs} jobs", *counts)
        for id, stage, job, jobs, *counts in rows
    }


@operation(reads=True)
def groups_page(limit: int, before: UUID | None) -> Steps[Slice[GroupProgress]]:
    """A page of groups, newest first."""
    where = () if before is None else ("where_job_groups_before",)
    values = {} if before is None else {"before": before}
    rows = yield Query("list_groups", values, slots=(("where", where),), limit=limit + 1)
    found = [_group(row) for row in rows[:limit]]
    counts = yield from _stages([one.id for one in found])
    return Slice([_progress(one, counts[one.id]) for one in found], found[-1].id if len(rows) > limit else None)


@operation(reads=True)
def group_progress(id: UUID) -> Steps[GroupProgress]:
    """A group with its counts; raises `NotFound` for an unknown one."""
    rows = yield Query("list_groups", {"id": id}, slots=(("where", ("where_job_group",)),), limit=1)
    if not rows:
        raise NotFound(
            "group", id, "commit the transaction that enqueued it first; `holdfast groups list` shows the ids"
        )
    return _progress(_group(rows[0]), (yield from _stages([id]))[id])


@operation(reads=True)
def group_members(id: UUID, stage: int, start: int, limit: int) -> Steps[list[GroupMember]]:
    """Jobs of a stage from a position on, with their results."""
    values = {"id": id, "stage": stage, "start": start}
    return [_member(row) for row in (yield Query("list_members", values, limit=limit))]


@operation(reads=True)
def failed_members(id: UUID) -> Steps[list[FailedMember]]:
    """The first dead letters of a group."""
    return [_failed(row) for row in (yield Query("failed_members", {"id": id}, limit=FAILED_SHOWN))]


@operation(reads=True)
def running_members(id: UUID) -> Steps[list[MemberProgress]]:
    """The first running jobs of a group that reported their progress."""
    return [_running(row) for row in (yield Query("running_members", {"id": id}, limit=FAILED_SHOWN))]


@operation(reads=True)
def unfinished_members(id: UUID, message_id: UUID) -> Steps[list[UnfinishedMember]]:
    """The handlers and queues of the jobs of a group that have not ended, in all stages; the job of `message_id` comes first."""
    return [_unfinished(row) for row in (yield Query("unfinished_members", {"id": id, "message_id": message_id}))]


@operation(reads=True)
def last_member(id: UUID) -> Steps[tuple[int, UUID, str] | None]:
    """The stage, the message and the handler of the job of the last stage."""
    rows = yield Query("last_member", {"id": id})
    return None if not rows else (rows[0][0], as_uuid(rows[0][1]), str(rows[0][2]))


def _stages(ids: Sequence[UUID]) -> Steps[dict[UUID, tuple[StageCounts, ...]]]:
    stages: dict[UUID, tuple[StageCounts, ...]] = dict.fromkeys(ids, ())
    if ids:
        for (id, _), counts in read_counts((yield Query("stage_counts", {"ids": list(ids)}))).items():
            stages[id] = (*stages[id], counts)
    return stages


def _progress(group: GroupRow, stages: tuple[StageCounts, ...]) -> GroupProgress:
    left = sum(one.left for one in stages)
    last = stages[-1] if stages else None
    if left:
        state = GroupState.RUNNING
    elif group.cancelled_at is not None:
        state = GroupState.CANCELLED
    else:
        state = GroupState.FAILED if last is not None and last.done < last.total else GroupState.DONE
    return GroupProgress(
        id=group.id,
        label=group.label,
        key=group.key,
        state=state,
        created_at=group.created_at,
        cancelled_at=group.cancelled_at,
        total=sum(one.total for one in stages),
        done=sum(one.done for one in stages),
        failed=sum(one.failed for one in stages),
        cancelled=sum(one.cancelled for one in stages),
        left=left,
        stages=stages,
    )
