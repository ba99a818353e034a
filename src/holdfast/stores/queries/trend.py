"""Trends: how much was accepted in a time and what became of it, and when dead letters died."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Steps, operation


@dataclass(frozen=True, slots=True)
class ThroughputSample:
    """The deliveries of the first messages of a slot of time, of which `waiting` are not done; `whole` when the slot
    has no more messages.

    `first` is the position of the slot's first message, or of the next one after it; `last` that of the newest of all.
    """

    first: int | None
    made: int
    waiting: int
    whole: bool
    last: int | None


@dataclass(frozen=True, slots=True)
class ThroughputCount:
    """How many deliveries were made in a slot of time, none if that was not counted, and how many of them failed."""

    made: int | None
    failed: int


@operation(reads=True)
def accepted_samples(edges: Sequence[UUID], messages: int) -> Steps[list[ThroughputSample]]:
    """A sample of each slot between one id and the next: the deliveries of its first `messages` messages."""
    rows = yield Query("accepted_samples", _slots(edges), limit=messages)
    found = []
    for _, first, figures, whole, last in rows:
        made, waiting = map(int, str(figures).split(","))
        found.append(ThroughputSample(first, made, waiting, bool(whole), last))
    return found


@operation(reads=True)
def position_gaps(edges: Sequence[UUID], messages: int) -> Steps[list[int]]:
    """How many positions the first `messages` messages of each slot span; slots with fewer are left out.

    Positions have gaps where a transaction was rolled back or a key was published before.
    """
    return [int(span) for _, span in (yield Query("position_gaps", _slots(edges), limit=messages))]


@operation(reads=True)
def accepted_counts(edges: Sequence[UUID], *, exact: bool) -> Steps[list[ThroughputCount]]:
    """What was made in each slot between one id and the next, all of it if `exact`, and what failed of it."""
    rows = yield Query("accepted_counts", {**_slots(edges), "exact": exact})
    return [ThroughputCount(made, failed) for _, made, failed in rows]


@operation(reads=True)
def died(minutes: Sequence[datetime]) -> Steps[dict[datetime, int]]:
    """How many of the dead letters died in each of these minutes; the time it takes grows with them."""
    rows = yield Query("died", {"minutes": list(minutes)})
    return {aware_time(minute): int(count) for minute, count in rows if count}


@dataclass(frozen=True, slots=True)
class Retrying:
    """Deliveries of a consumer that failed with one kind of error and wait for their next run."""

    consumer: str
    error_type: str
    count: int
    since: datetime | None
    example: UUID
    last_error: str | None


@operation(reads=True)
def retrying(lanes: Sequence[tuple[str, str]], looked_at: int) -> Steps[list[Retrying]]:
    """What fails and is retried in these queues and consumers; of each at most `looked_at` deliveries are read."""
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
