"""Keys of a consumer with flow control: what waits, runs and is dead under each.

Loose index scans find the keys, so a page costs the same with 100 keys and with 100,000. Each key is counted up to a bound.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from holdfast.core.flow import FlowSettings, effective_flow, rate_span
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.row import row_reader

MAX_COUNT = 1000
"""The deliveries of a key are counted up to this number."""
MAX_LANES = 200

_LANE = ("queue", "generation", "priority")


class KeySource(StrEnum):
    """Where the keys of a list come from."""

    WAITING = "waiting"
    RUNNING = "running"
    DEAD = "dead"
    PAUSED = "paused"
    RATED = "rated"


class KeyCounts(NamedTuple):
    """One key: its deliveries up to `MAX_COUNT`, and what decides whether the next one may run.

    `used` counts the claims within the window of the rate, which began with `first_bucket`. `head` is the first waiting
    delivery of an ordered key, `dead` its first dead letter.
    """

    n: int
    running: int
    waiting: int
    due: int
    oldest_at: datetime | None
    paused_at: datetime | None
    used: int
    first_bucket: datetime | None
    head_at: datetime | None
    head_seq: int | None
    dead_id: UUID | None
    dead_at: datetime | None
    dead_seq: int | None


class FlowTotals(NamedTuple):
    """The deliveries of a consumer and its queue together, for limits and rates without a key."""

    running: int
    queue_running: int
    used: int
    first_bucket: datetime | None
    queue_used: int
    queue_first_bucket: datetime | None
    pending: int
    now: datetime


_counts = row_reader(KeyCounts)
_totals = row_reader(FlowTotals)


@operation(reads=True)
def flow_keys(consumer: str, sources: Collection[KeySource], low: str, limit: int) -> Steps[list[str]]:
    """The first keys of a consumer from `low` on, in byte order, from these sources."""
    values: dict[str, object] = {"consumer": consumer, "low": low}
    found: set[str] = set()
    if KeySource.WAITING in sources:
        lanes = yield from keyed_lanes(consumer)
        if lanes:
            batch = {"lanes": columns(_LANE, lanes)}
            found |= {row[0] for row in (yield Query("lane_keys", {**values, "bound": limit}, batch))}
    for source, fragment in _WALKED.items():
        if source in sources:
            found |= {
                row[0] for row in (yield Query("walk_keys", values, slots=(("keyed", (fragment,)),), limit=limit))
            }
    for source, name in _LISTED.items():
        if source in sources:
            found |= {row[0] for row in (yield Query(name, values, limit=limit))}
    return sorted(found)[:limit]


_WALKED = {
    KeySource.WAITING: "keyed_ordered",
    KeySource.RUNNING: "keyed_running",
    KeySource.DEAD: "keyed_dead",
}
_LISTED = {KeySource.PAUSED: "paused_keys", KeySource.RATED: "rated_keys"}


@operation(reads=True)
def key_counts(consumer: str, settings: FlowSettings, keys: Sequence[str]) -> Steps[list[KeyCounts]]:
    """The counts of each of these keys, in the same order."""
    if not keys:
        return []
    lanes = yield from keyed_lanes(consumer)
    rows = yield Query(
        "key_counts",
        {"consumer": consumer, "bound": MAX_COUNT, "span": rate_span(settings), **lane_values(lanes)},
        {"keys": columns(("n", "flow_key"), enumerate(keys))},
    )
    return sorted((_counts(row) for row in rows), key=lambda one: one.n)


@operation(reads=True)
def flow_totals(
    consumer: str, queue: str, settings: FlowSettings, queue_settings: FlowSettings | None
) -> Steps[FlowTotals]:
    """The totals of a consumer and its queue."""
    span = timedelta(0) if queue_settings is None else rate_span(queue_settings)
    values = {"consumer": consumer, "queue": queue, "bound": MAX_COUNT * 50, "span": rate_span(settings)}
    (row,) = yield Query("flow_totals", {**values, "queue_span": span})
    return _totals(row)


@operation(reads=True)
def delivery_key(id: UUID) -> Steps[tuple[str | None, int | None]]:
    """The key of a delivery, and its position in the order of the key."""
    rows = yield Query("delivery_key", {"id": id})
    return (rows[0][0], rows[0][1]) if rows else (None, None)


@operation(reads=True)
def stored_queue_flows() -> Steps[dict[str, tuple[str, str | None]]]:
    """The declared settings of the queues that have any, and the values that an operator set."""
    return {str(name): (flow, override) for name, flow, override in (yield Query("flow_queues"))}


@operation(reads=True)
def queue_flows() -> Steps[dict[str, FlowSettings]]:
    """The effective settings of the queues that have any."""
    stored = yield from stored_queue_flows().start()
    return {name: effective_flow(flow, override) for name, (flow, override) in stored.items()}


def keyed_lanes(consumer: str) -> Steps[list[tuple[str, int, int]]]:
    """The lanes of a consumer in which deliveries with a key and without an order wait."""
    rows = yield Query("keyed_lanes", {"consumer": consumer}, limit=MAX_LANES)
    return [(str(queue), int(generation), int(priority)) for queue, generation, priority in rows]


def lane_values(lanes: Sequence[tuple[str, int, int]]) -> dict[str, list[object]]:
    """Lanes as values of a statement that reads them next to a batch of keys."""
    return columns(("queues", "generations", "priorities"), lanes)


def bounded(count: int) -> BoundedCount:
    """A count of a key, a lower bound if the counting stopped there."""
    return BoundedCount(count, count >= MAX_COUNT)
