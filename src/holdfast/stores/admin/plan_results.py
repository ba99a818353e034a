"""The results of replayed deliveries: how many were delivered, and how many are dead again.

A pass reads the deliveries without a result, one batch in each transaction, and stores the counts in the row of the plan, so
that showing them is one read.
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


class ResultBatch(NamedTuple):
    """How many deliveries of a batch had ended, how many were read, and whether the pass is complete."""

    ended: int
    read: int
    last: bool


@operation(reads=True)
def unsettled_plans() -> Steps[list[UUID]]:
    """The replay plans whose results are not complete yet."""
    return [as_uuid(row[0]) for row in (yield Query("unsettled_plans"))]


@operation
def follow_plan(id: UUID) -> Steps[ResultBatch]:
    """Reads the next replayed deliveries without a result and counts those that have ended, each once."""
    rows = yield Query("hold_plan", {"id": id})
    if not rows:
        return ResultBatch(0, 0, last=True)
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
    return ResultBatch(len(ended), len(items), last)


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
