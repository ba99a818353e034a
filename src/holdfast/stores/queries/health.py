"""Health checks: lanes without workers, expired leases, settings without durability, old transactions."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import FAILURE_HISTORY_LIMIT
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import row_reader


class LaneCount(NamedTuple):
    """The pending deliveries of one queue, consumer and generation."""

    queue: str
    consumer: str
    generation: int
    size: int
    oldest_at: datetime


class Overdue(NamedTuple):
    """In-flight deliveries that no live worker holds."""

    size: int
    since: timedelta | None


class SubscriptionLag(NamedTuple):
    """The number of messages that a subscription still has to catch up on, counted up to a bound."""

    pattern: str
    consumer: str
    behind: int


class OldTransaction(NamedTuple):
    """A transaction or replication slot that prevents the removal of dead rows. A slot has no `age`."""

    kind: str
    name: str
    application: str
    state: str
    age: timedelta | None


class TableHealth(NamedTuple):
    """The number of live rows of a table, and of dead rows that are not removed yet."""

    table: str
    live: int
    dead: int
    vacuumed_at: datetime | None


_lane_count = row_reader(LaneCount)
_table_health = row_reader(TableHealth)


@operation(reads=True)
def lane_counts() -> Steps[list[LaneCount]]:
    """The pending deliveries by queue, consumer and generation."""
    return [_lane_count(row) for row in (yield Query("lane_counts"))]


@operation(reads=True)
def overdue(grace: timedelta) -> Steps[Overdue]:
    """In-flight deliveries whose lease and worker lease expired more than `grace` ago."""
    ((count, oldest, now),) = yield Query("overdue", {"grace": grace})
    return Overdue(int(count), None if oldest is None else aware_time(now) - aware_time(oldest))


@operation(reads=True)
def at_history_bound(limit: int = 100) -> Steps[list[tuple[UUID, str]]]:
    """Unfinished deliveries whose failure history is full, newest first, with their consumer."""
    rows = yield Query("history_bound", {"bound": FAILURE_HISTORY_LIMIT}, limit=limit)
    return [(as_uuid(id), str(consumer)) for id, consumer in rows]


@operation(reads=True)
def subscription_lag(bound: int = 10_000) -> Steps[list[SubscriptionLag]]:
    """The lag of each subscription; reads at most `bound` messages."""
    return [SubscriptionLag(*row) for row in (yield Query("subscription_lag", limit=bound))]


@operation(reads=True)
def server_settings() -> Steps[dict[str, str]]:
    """The settings that affect durability, by their names in the database."""
    return {str(name): str(value) for name, value in (yield Query("server_settings"))}


@operation(reads=True)
def old_transactions(older_than: timedelta) -> Steps[list[OldTransaction]]:
    """Transactions that have been open for longer than `older_than`, oldest first."""
    return [OldTransaction(*row) for row in (yield Query("old_transactions", {"older_than": older_than}))]


@operation(reads=True)
def table_health() -> Steps[list[TableHealth]]:
    """Live and dead rows per table, if the database counts them."""
    return [_table_health(row) for row in (yield Query("table_health"))]
