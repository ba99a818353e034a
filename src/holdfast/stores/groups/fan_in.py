"""Stages: whether a job of a later stage may run, and what it receives."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.errors import LeaseLost
from holdfast.core.group import GroupSummary, OnFailure, StageInput
from holdfast.stores.dialect import as_uuid
from holdfast.stores.groups.query import read_counts
from holdfast.stores.operation import Query, Steps, operation

_PAGE = 1000


class StageWaiting(NamedTuple):
    """The stage before is unfinished. `age` is the age of the group in seconds."""

    age: float


class StageBlocked(NamedTuple):
    """Jobs of the stage before failed, and the job must not run: it is skipped, or it becomes a dead letter."""

    summary: GroupSummary
    on_failure: OnFailure


class StageOpened(NamedTuple):
    """The job may run."""

    summary: GroupSummary
    input: StageInput
    stage: int


@operation
def open_stage(claim: Claim) -> Steps[StageWaiting | StageBlocked | StageOpened | None]:
    """Decides about a claimed job of a later stage; None if the delivery is no such job.

    The decision to run it is stored under the fence, so a later attempt does not wait for a job that was replayed after
    the decision. A replay of the job itself means that an operator wants it to run in spite of failures.
    """
    rows = yield Query("stage_of", {"delivery_id": claim.delivery_id})
    if not rows:
        return None
    group, stage, position, input, on_failure, is_decided, is_replayed, age, is_unfinished = rows[0]
    if is_unfinished:
        return StageWaiting(float(age))
    group_id = as_uuid(group)
    before = read_counts((yield Query("stage_counts", {"ids": [group_id]}))).get((group_id, stage - 1))
    if before is None:
        summary, left = GroupSummary(group_id, 0, 0, 0, 0), 0
    else:
        summary = GroupSummary(group_id, before.total, before.done, before.failed, before.cancelled)
        left = before.left
    if not is_decided:
        if left:
            return StageWaiting(float(age))
        policy = OnFailure(on_failure)
        if summary.failed + summary.cancelled and policy is not OnFailure.RUN and not is_replayed:
            return StageBlocked(summary, policy)
        owned = {"group_id": group_id, "stage": stage, "position": position, "fence": claim.fence}
        if not (yield Query("decide_stage", {**owned, "worker": claim.worker})):
            raise LeaseLost(claim.delivery_id, claim.fence)
    return StageOpened(summary, StageInput(input), stage)


@operation(single=True)
def wake_stages(ids: Iterable[UUID]) -> Steps[bool]:
    """Makes the waiting jobs of these groups due, if the stage before them has ended; returns whether there were any."""
    return bool((yield Query("wake_stages", {"ids": list(ids)})))


@operation(reads=True)
def stage_results(group_id: UUID, stage: int, start: int) -> Steps[Sequence[str | None]]:
    """The next results of a stage as JSON texts, in the order of its jobs; None for a job without one."""
    values = {"group_id": group_id, "stage": stage, "start": start}
    return [row[0] for row in (yield Query("stage_results", values, limit=_PAGE))]
