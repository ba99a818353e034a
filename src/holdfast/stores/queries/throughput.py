"""Throughput: accepted deliveries per time slot and their outcomes, and dead letters per minute."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.delivery_counts import BUDGET

LANES = 500
"""The number of consumers and queues whose dead letters are counted by time."""


@dataclass(frozen=True, slots=True)
class ThroughputSample:
    """The deliveries of the first messages of a time slot; `waiting` of them are not done.
    `whole` is true if the slot has no more messages.

    `first` is the position of the slot's first message, or of the next one after it; `last` is the newest position.
    """

    first: int | None
    made: int
    waiting: int
    whole: bool
    last: int | None


@dataclass(frozen=True, slots=True)
class ThroughputCount:
    """The deliveries created in a time slot, None if not counted, and how many of them failed."""

    made: int | None
    failed: int


@operation(reads=True)
def accepted_samples(edges: Sequence[UUID], messages: int) -> Steps[list[ThroughputSample]]:
    """A sample for each time slot, bounded by two ids of `edges`: the deliveries of its first `messages` messages."""
    rows = yield Query("accepted_samples", _slots(edges), limit=messages)
    found = []
    for _, first, figures, whole, last in rows:
        made, waiting = map(int, str(figures).split(","))
        found.append(ThroughputSample(first, made, waiting, bool(whole), last))
    return found


@operation(reads=True)
def position_gaps(edges: Sequence[UUID], messages: int) -> Steps[dict[int, int]]:
    """The span of positions of the first `messages` messages of each time slot, by its number; slots with fewer messages
    are omitted.

    A rolled-back transaction or a duplicate key leaves a gap in the positions.
    """
    return {int(n): int(span) for n, span in (yield Query("position_gaps", _slots(edges), limit=messages))}


@operation(reads=True)
def accepted_counts(edges: Sequence[UUID], *, exact: bool, bound: int = BUDGET) -> Steps[list[ThroughputCount]]:
    """The deliveries created and failed in each slot between two ids: created ones are counted only if `exact`, failed
    ones up to `bound`."""
    rows = yield Query("accepted_counts", {**_slots(edges), "exact": exact, "bound": bound})
    return [ThroughputCount(made, failed) for _, made, failed in rows]


@operation(reads=True)
def died(starts: Sequence[datetime], width: timedelta, bound: int = BUDGET) -> Steps[dict[datetime, int]]:
    """The number of dead letters in each time slot of this width, of each of the first `LANES` consumers and queues up to
    `bound`."""
    rows = yield Query("died", {"starts": list(starts), "width": width, "bound": bound}, limit=LANES)
    return {aware_time(start): int(count) for start, count in rows if count}


@operation(reads=True)
def slot_bound(slots: int) -> Steps[int]:
    """The bound for counting failed deliveries in each of several slots; not reached with up to `BUDGET` failed ones."""
    return max(1, BUDGET // (4 * slots)) if (yield Query("failures_beyond", limit=BUDGET)) else BUDGET


@dataclass(frozen=True, slots=True)
class Retrying:
    """Deliveries of a consumer that failed with one type of error and wait for a retry."""

    consumer: str
    error_type: str
    count: int
    since: datetime | None
    example: UUID
    last_error: str | None


@operation(reads=True)
def retrying(lanes: Sequence[tuple[str, str]], looked_at: int) -> Steps[list[Retrying]]:
    """The failing deliveries that wait for a retry in these queues and consumers; reads at most `looked_at` of each."""
    found = []
    for queue, consumer in lanes:
        rows = yield Query("retrying", {"queue": queue, "consumer": consumer}, limit=looked_at)
        found += [
            Retrying(consumer, error_type, count, optional_time(since), as_uuid(example), error)
            for error_type, count, since, example, error in rows
        ]
    return sorted(found, key=lambda one: (-one.count, one.consumer, one.error_type))


def _slots(edges: Sequence[UUID]) -> dict[str, object]:
    return {"lows": list(edges[:-1]), "highs": list(edges[1:])}
