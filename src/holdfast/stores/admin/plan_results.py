"""Following the deliveries that a plan replayed: how many were delivered, and how many died again.

A pass looks at those that have not ended, a batch in each transaction, and keeps the counts in the plan's row, so that
showing them costs one read however many there are.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.delivery import Status
from holdfast.stores.admin.plan import PlanState, ReplayResult
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, columns, operation

_BATCH = 500
_UNFINISHED = (PlanState.RUNNING, PlanState.PAUSED)


class FollowedBatch(NamedTuple):
    """What one batch found: how many had ended of how many it looked at; `last` when the pass is over."""

    ended: int
    looked_at: int
    last: bool


@operation(reads=True)
def unsettled_plans() -> Steps[list[UUID]]:
    """The plans with replayed deliveries that are not known to have ended."""
    return [as_uuid(row[0]) for row in (yield Query("unsettled_plans"))]


@operation
def follow_plan(id: UUID) -> Steps[FollowedBatch]:
    """Looks at the next replayed deliveries of a plan and counts those that have ended; each is counted once."""
    rows = yield Query("hold_plan", {"id": id})
    if not rows:
        return FollowedBatch(0, 0, last=True)
    state, done, followed, stored = rows[0]
    values = {"plan": id, "after": followed}
    items = yield Query("unsettled_plan_items", values, limit=_BATCH)
    ended = [(n, result.value) for n, status, discarded in items if (result := _result(status, discarded)) is not None]
    if ended:
        yield Query("record_plan_results", {"plan": id}, {"results": columns(("n", "result"), ended)})
    before: Mapping[str, int] = {} if stored is None else orjson.loads(stored)
    results = Counter(before) + Counter(result for _, result in ended)
    last = len(items) < _BATCH
    settled = last and PlanState(state) not in _UNFINISHED and results.total() == done
    after = 0 if last else items[-1][0]
    if ended or settled or after != followed:
        counted = orjson.dumps(dict(results)).decode()
        yield Query("follow_plan", {"id": id, "followed": after, "results": counted, "settled": settled})
    return FollowedBatch(len(ended), len(items), last)


def _result(status: str | None, discarded: bool) -> ReplayResult | None:
    match status:
        case None:
            return ReplayResult.PRUNED
        case Status.DELIVERED:
            return ReplayResult.DELIVERED
        case Status.FAILED:
            return ReplayResult.DISCARDED if discarded else ReplayResult.DEAD
        case _:
            return None
