"""The number of pending deliveries of a queue, counted up to a bound."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.values.bounded_count import BoundedCount
from holdfast.stores.deliveries.claim import Lane, known_lanes
from holdfast.stores.dialect import aware_time
from holdfast.stores.operation import Query, Steps, operation


class PendingCount(NamedTuple):
    """The number of pending deliveries, and the floors of all lanes of the store if they were read."""

    size: BoundedCount
    floors: list[Lane]


@operation(reads=True)
def pending_count(
    queue: str, consumer: str | None, most: int, known: Sequence[Lane] | None = None
) -> Steps[PendingCount]:
    """Counts the pending deliveries of a queue up to `most`, also retry waits, later ones and suspects.

    With `known`, each known lane is read from its floor only, so the count is a lower bound; if no lane is known, all of them
    are read from their start and the count is exact. `most` is the bound in either case.
    """
    values = {"queue": queue, "consumer": consumer, "bound": most + 1}
    chosen = ("consumer_choice", ("any_consumer" if consumer is None else "one_consumer",))
    if known is None:
        ((size,),) = yield Query("pending_size", values, slots=(chosen,))
        return PendingCount(_bounded(size, most), [])
    # A lane in which nothing is pending is not found, but the dead rows in it would be read again and again.
    empty = () if known else (yield Query("declared_lanes"))
    slots = (("suspicion", ("not_suspect",)), chosen)
    rows = yield Query("pending_size_above", values, {"known": known_lanes(known)}, slots=slots)
    size = sum(row[-1] for row in rows)
    floors = [
        Lane(q, c, g, p, aware_time(at)) for q, c, g, p, at in (*empty, *(row[:-1] for row in rows)) if at is not None
    ]
    return PendingCount(_bounded(size, most, lower=bool(known)), floors)


def _bounded(size: int, most: int, *, lower: bool = False) -> BoundedCount:
    return BoundedCount(min(size, most), lower or size > most)
