"""The number of pending deliveries of one queue: the cheap call for autoscalers and limits on publishing."""

import time
from math import isinf

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.core.values.names import check_name
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.queries.delivery_counts import BUDGET
from holdfast.stores.queries.pending_count import pending_count
from holdfast.stores.queries.query import clock

MOST_PENDING = BUDGET


def pending(queue: str, *, consumer: str | None = None, most: int = 10_000) -> TaskSteps[BoundedCount]:
    """The number of pending deliveries of a queue, or of one consumer in it; includes retry waits, later ones and suspects.

    The count stops at `most` and is then `or_more`. It reads a part of one index, so it may be called every second. While
    an old snapshot keeps PostgreSQL from removing dead rows, a process that calls it repeatedly reads each lane from
    shortly before its oldest delivery. Such a count is `or_more`, because an older delivery may have been added. All lanes
    are then counted from their start at most for one percent of the time.
    """
    check_name("queue", queue)
    if consumer is not None:
        check_name("consumer", consumer)
    if not 1 <= most <= MOST_PENDING:
        raise ConfigurationError(f"most is {most}; a count stops at 1 to {MOST_PENDING:,} deliveries")
    floors = yield from call_store(lambda store: store.lane_floors)
    started = time.monotonic()
    known = None if floors is None else floors.known(started)
    found = yield from transact(pending_count(queue, consumer, most, known))
    ended = time.monotonic()
    if floors is not None:
        if isinf(floors.round_trip):
            yield from transact(clock())
            floors.round_trip = time.monotonic() - ended
        floors.counted(known, found.floors, found.size, started, ended)
    return found.size
