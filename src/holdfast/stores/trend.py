"""Trends: how much was accepted and what became of it, read in bounded samples however much there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.stores.dialect import as_uuid, optional_time
from holdfast.stores.operation import Query, Steps, operation


@dataclass(frozen=True, slots=True)
class Sample:
    """The first deliveries made in a stretch of time, of how many messages; those of the whole stretch lie from
    position `first` up to `end`."""

    first: int | None
    end: int | None
    made: int
    messages: int
    delivered: int
    failed: int


@operation(reads=True)
def accepted(edges: Sequence[UUID], sample: int) -> Steps[list[Sample]]:
    """A sample of each stretch between one id and the next; at most `sample` deliveries of each are read."""
    values = {"lows": list(edges[:-1]), "highs": list(edges[1:])}
    rows = yield Query("accepted", values, limit=sample)
    return [Sample(first, end, *map(int, figures.split(","))) for _, first, end, figures in rows]


@operation(reads=True)
def recent_dead(newest: int) -> Steps[dict[int, int]]:
    """How many of the newest dead letters died in which minute since 1970."""
    return {int(minute): count for minute, count in (yield Query("recent_dead", limit=newest))}


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
