"""What a doctor looks at: lanes nobody runs, leases nobody took over, settings that cost durability, old snapshots."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import FAILURE_HISTORY_LIMIT
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Steps, operation


class LaneCount(NamedTuple):
    """How much waits in the lanes of one queue, consumer and generation."""

    queue: str
    consumer: str
    generation: int
    size: int
    oldest_at: datetime


class Overdue(NamedTuple):
    """What is in flight although nobody holds it any more."""

    size: int
    since: timedelta | None


class SubscriptionLag(NamedTuple):
    """How many messages a subscription has yet to be given, counted up to a bound."""

    pattern: str
    consumer: str
    behind: int


class OldTransaction(NamedTuple):
    """Something that keeps dead rows from being removed. `age` is unknown for a replication slot."""

    kind: str
    name: str
    application: str
    state: str
    age: timedelta | None


class TableHealth(NamedTuple):
    """How many rows of a table live and how many are dead and not yet removed."""

    table: str
    live: int
    dead: int
    vacuumed_at: datetime | None


@operation(reads=True)
def lane_counts() -> Steps[list[LaneCount]]:
    """What waits, by queue, consumer and generation."""
    return [
        LaneCount(queue, consumer, generation, int(size), aware_time(oldest))
        for queue, consumer, generation, size, oldest in (yield Query("lane_counts"))
    ]


@operation(reads=True)
def overdue(grace: timedelta) -> Steps[Overdue]:
    """What is in flight past its lease, its worker's lease and a grace."""
    ((count, oldest, now),) = yield Query("overdue", {"grace": grace})
    return Overdue(int(count), None if oldest is None else aware_time(now) - aware_time(oldest))


@operation(reads=True)
def at_history_bound(limit: int = 100) -> Steps[list[tuple[UUID, str]]]:
    """Unfinished deliveries whose failure history is full, newest first, with their consumer."""
    rows = yield Query("history_bound", {"bound": FAILURE_HISTORY_LIMIT}, limit=limit)
    return [(as_uuid(id), str(consumer)) for id, consumer in rows]


@operation(reads=True)
def subscription_lag(bound: int = 10_000) -> Steps[list[SubscriptionLag]]:
    """How far each subscription is behind, looking at `bound` messages at most."""
    return [SubscriptionLag(*row) for row in (yield Query("subscription_lag", limit=bound))]


@operation(reads=True)
def server_settings() -> Steps[dict[str, str]]:
    """The settings durability depends on, by the database's own names for them."""
    return {str(name): str(value) for name, value in (yield Query("server_settings"))}


@operation(reads=True)
def old_transactions(older_than: timedelta) -> Steps[list[OldTransaction]]:
    """Transactions open for longer than that, oldest first."""
    return [OldTransaction(*row) for row in (yield Query("old_transactions", {"older_than": older_than}))]


@operation(reads=True)
def table_health() -> Steps[list[TableHealth]]:
    """Live and dead rows, where the database counts them."""
    return [
        TableHealth(table, live, dead, optional_time(vacuumed))
        for table, live, dead, vacuumed in (yield Query("table_health"))
    ]
