"""Pruning: removing what is done and old, in small transactions, by a cursor over the key.

A batch is bounded by the rows it looks at, not by those it removes: a million old rows that must stay cost many
small transactions and never a long one.
"""

from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.identity import uuid7
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

FROM_THE_START = UUID(int=0)
_BATCH = 1000


def ceiling(now: datetime, older_than: timedelta) -> UUID:
    """The lowest id that anything made after `now - older_than` can have: ids begin with their time."""
    return uuid7(max(0, int((now - older_than).timestamp() * 1000)), 0)


@operation
def prune_deliveries(
    cursor: UUID, ceiling: UUID, older_than: timedelta, *, discarded: bool = False
) -> Steps[tuple[int, UUID | None]]:
    """Removes delivered rows with their runs from the next batch; how many, and the cursor to go on from, if any.

    Failed rows are never touched; with `discarded`, the discarded ones are what is removed. A consumer does not get
    again what was pruned: its catch-up starts above it.
    """
    end = yield from _end("delivery_window", cursor, ceiling)
    slots = (("which", ("set_aside" if discarded else "done",)),)
    values = {"cursor": cursor, "ceiling": end, "older_than": older_than}
    removed = yield Query("prune_deliveries", values, slots=slots)
    return len(removed), end if end < ceiling else None


@operation
def prune_messages(cursor: UUID, ceiling: UUID, older_than: timedelta) -> Steps[tuple[int, UUID | None]]:
    """Removes messages that no delivery and no subscription needs any more from the next batch, likewise."""
    end = yield from _end("message_window", cursor, ceiling)
    removed = yield Query("prune_messages", {"cursor": cursor, "ceiling": end, "older_than": older_than})
    return len(removed), end if end < ceiling else None


@operation(reads=True)
def prunable(ceiling: UUID, older_than: timedelta, *, discarded: bool = False) -> Steps[int]:
    """How many rows `prune_deliveries` would remove in all."""
    slots = (("which", ("set_aside" if discarded else "done",)),)
    rows = yield Query("prunable", {"ceiling": ceiling, "older_than": older_than}, slots=slots)
    return int(rows[0][0])


def _end(window: str, cursor: UUID, ceiling: UUID) -> Steps[UUID]:
    """Where the batch that begins at the cursor ends; that key belongs to the next one."""
    rows = yield Query(window, {"cursor": cursor}, limit=_BATCH)
    return min(ceiling, as_uuid(rows[0][0])) if rows else ceiling
