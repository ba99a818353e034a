"""Backfill: creates a consumer's missing deliveries of earlier events, in batches by message id."""

from uuid import UUID

from holdfast.core.identity import delivery_id
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.publish import insert_absent
from holdfast.stores.operation import Query, Row, Steps, operation

_BATCH = 1000
FIRST = UUID(int=0)


@operation(reads=True)
def pruned_to(consumer: str) -> Steps[UUID | None]:
    """The newest message whose delivery to this consumer was done and pruned; the consumer does not get it again."""
    found: UUID | None = None
    for row in (yield Query("pruned_to", {"name": consumer})):
        found = None if row[0] is None else as_uuid(row[0])
    return found


@operation
def backfill(consumer: str, cursor: UUID, ceiling: UUID) -> Steps[tuple[int, UUID | None]]:
    """Creates the missing deliveries of the next batch; returns their number and the next cursor, None at the end."""
    rows = yield Query("message_window", {"cursor": cursor}, limit=_BATCH)
    end = min(ceiling, as_uuid(rows[0][0])) if rows else ceiling
    found = yield Query("unserved", {"name": consumer, "cursor": cursor, "ceiling": end})
    added = 0
    if found:
        # Sorted, so that two concurrent backfills do not deadlock.
        deliveries = sorted((absent(consumer, row) for row in found), key=lambda row: str(row[0]))
        added = len((yield insert_absent(deliveries)))
    return added, end if end < ceiling else None


def absent(consumer: str, row: Row) -> tuple[object, ...]:
    """The missing delivery of a message to a consumer."""
    id, generation, queue, priority, since = row
    message = as_uuid(id)
    return delivery_id(message, consumer), message, consumer, queue, priority, max(generation, since)
