"""Claims of consumers with debounce: the newest delivery of a key runs and supersedes the others."""

from datetime import timedelta
from typing import NamedTuple

from holdfast.core.flow import FlowSettings
from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.deliveries.flow import claimed_with_messages
from holdfast.stores.operation import Query, Steps, operation


class DebounceClaim(NamedTuple):
    """The deliveries that were claimed, and how many others were discarded or postponed or have no key yet."""

    claims: list[Claimed]
    changed: int
    unkeyed: int


@operation(single=True, hot=True)
def claim_debounced(
    lane: Lane, worker: str, lease: timedelta, size: int, *, suspects: bool = False
) -> Steps[DebounceClaim]:
    """Claims the newest delivery of up to `size` keys of a lane whose quiet time or longest wait is over.

    Older deliveries of a claimed key are discarded with the reason `superseded by <id>`. One delivery of a key runs at a
    time: on PostgreSQL under the lock of the consumer, on SQLite there is one writer.
    """
    return (yield from debounce_steps(lane, worker, lease, size, suspects=suspects))


def debounce_steps(
    lane: Lane, worker: str, lease: timedelta, size: int, *, suspects: bool = False
) -> Steps[DebounceClaim]:
    """The steps of `claim_debounced`, for an operation that has its own transaction."""
    assert lane.flow is not None
    settings = lane.flow.consumer or FlowSettings()
    assert settings.debounce is not None
    values = {
        "queue": lane.queue,
        "consumer": lane.consumer,
        "generation": lane.generation,
        "priority": lane.priority,
        "worker": worker,
        "lease": lease,
        "debounce": settings.debounce,
        "max_wait": settings.longest_wait,
    }
    slots = (("suspicion", ("suspect" if suspects else "not_suspect",)),)
    rows = yield Query("claim_debounced", values, slots=slots, limit=size, locks=lane.flow.locks(lane))
    (changed, unkeyed) = next(row[15:] for row in rows if row[0] is None)
    claims = yield from claimed_with_messages([row for row in rows if row[0] is not None])
    return DebounceClaim(claims, int(changed), int(unkeyed))
