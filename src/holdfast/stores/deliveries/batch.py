"""Batches: several deliveries of one lane, claimed together and completed together."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from holdfast.core.delivery import Claim
from holdfast.core.errors import LeaseLost
from holdfast.stores.deliveries.claim import Claimed, Lane, read_claims, serving
from holdfast.stores.errors import LEASE_LOST
from holdfast.stores.operation import Columns, Query, Steps, operation

NOT_SUSPECT = (("suspicion", ("not_suspect",)),)


class BatchLane(NamedTuple):
    """A lane with due deliveries of a batch consumer: how many, up to a limit, and how long the oldest has been due."""

    lane: Lane
    due: int
    waited: timedelta


@operation(reads=True, hot=True)
def batch_lanes(
    consumers: Sequence[str], generation: int, most: int, *, queues: Sequence[str] | None = None
) -> Steps[list[BatchLane]]:
    """The lanes of these consumers with due deliveries, of which at most `most` are counted; it locks nothing.

    Excluded are the lanes that `lanes` excludes, and blocked consumers.
    """
    rows = yield Query("batch_lanes", serving(consumers, generation, queues), slots=NOT_SUSPECT, limit=most)
    return [
        BatchLane(Lane(queue, consumer, generation, priority), due, timedelta(seconds=float(waited)))
        for queue, consumer, generation, priority, due, waited in rows
        if due
    ]


@operation(single=True, hot=True)
def claim_batch(
    lane: Lane, size: int, within: timedelta, attempts: int, worker: str, lease: timedelta
) -> Steps[list[Claimed]]:
    """Claims `size` due deliveries of a lane, or all that are due if the oldest has been due for `within`; else none.

    Deliveries that another worker has locked do not count. Each delivery has its own attempt and fence. `attempts` is the
    consumer's budget: if the next run of an item may be its last, one crash of the batch makes it suspect, and it runs alone.
    """
    values = {
        "queue": lane.queue,
        "consumer": lane.consumer,
        "generation": lane.generation,
        "priority": lane.priority,
        "floor_at": lane.floor_at,
        "floor_id": lane.floor_id,
        "within": within,
        "attempts": attempts,
        "worker": worker,
        "lease": lease,
    }
    return read_claims((yield Query("claim_batch", values, limit=size)))


@operation
def complete_batch(claims: Sequence[Claim], idle_timeout: timedelta, *, keep_run: bool = False) -> Steps[None]:
    """Marks all claims of a batch delivered in the caller's transaction.

    When one of them is lost, the database raises and rolls back the whole transaction.
    """
    worker = claims[0].worker
    batch: Columns = {"delivery_id": [c.delivery_id for c in claims], "fence": [c.fence for c in claims]}
    yield Query(
        "complete_batch",
        {"worker": worker, "idle_timeout_ms": round(idle_timeout.total_seconds() * 1000)},
        {"claims": batch},
        raises=(LEASE_LOST, lambda: LeaseLost(claims[0].delivery_id, claims[0].fence, len(claims))),
    )
    if keep_run:
        for claim in claims:
            values = {"delivery_id": claim.delivery_id, "fence": claim.fence, "worker": worker}
            yield Query("record_run", values)
