"""Pruning: removes old rows that are done, in small transactions, with a cursor over the ids.

A batch is bounded by the rows that it reads, not by the rows that it removes: a million old rows that must stay cost
many small transactions, never a long one.
"""

from datetime import timedelta
from uuid import UUID

from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

FROM_THE_START = UUID(int=0)
_BATCH = 1000


@operation
def prune_deliveries(
    cursor: UUID, ceiling: UUID, older_than: timedelta, *, discarded: bool = False, by_keep: bool = False
) -> Steps[tuple[int, UUID | None]]:
    """Removes the delivered rows of the next batch with their runs; returns their number and the next cursor, if any.

    Failed rows stay; with `discarded` it removes the discarded ones instead. A consumer does not get pruned messages
    again: its catch-up starts above them. With `by_keep`, `older_than` is only for consumers that declare no `keep`.
    """
    end = yield from _end("delivery_window", cursor, ceiling)
    slots = _which(discarded, by_keep)
    values = {"cursor": cursor, "ceiling": end, "older_than": older_than}
    removed = yield Query("prune_deliveries", values, slots=slots)
    return len(removed), end if end < ceiling else None


@operation
def fill_failed_types() -> Steps[int]:
    """Adds the type to a batch of failed deliveries without one, which workers of an older version left; returns their number."""
    return len((yield Query("fill_failed_types", limit=_BATCH)))


@operation
def prune_messages(cursor: UUID, ceiling: UUID, older_than: timedelta) -> Steps[tuple[int, UUID | None]]:
    """Removes the messages of the next batch that no delivery and no subscription needs; returns the same values."""
    end = yield from _end("message_window", cursor, ceiling)
    removed = yield Query("prune_messages", {"cursor": cursor, "ceiling": end, "older_than": older_than})
    return len(removed), end if end < ceiling else None


@operation(reads=True)
def prunable(ceiling: UUID, older_than: timedelta, *, discarded: bool = False, by_keep: bool = False) -> Steps[int]:
    """The total number of rows that `prune_deliveries` would remove."""
    slots = _which(discarded, by_keep)
    rows = yield Query("prunable", {"ceiling": ceiling, "older_than": older_than}, slots=slots)
    return int(rows[0][0])


@operation(reads=True)
def shortest_keep() -> Steps[timedelta | None]:
    """The shortest `keep` that a consumer declares, if any does."""
    ((seconds,),) = yield Query("shortest_keep")
    return None if seconds is None else timedelta(seconds=float(seconds))


def _which(discarded: bool, by_keep: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("which", ("set_aside" if discarded else "done_by_keep" if by_keep else "done",)),)


def _end(window: str, cursor: UUID, ceiling: UUID) -> Steps[UUID]:
    """The end of the batch that begins at the cursor; the end belongs to the next batch."""
    rows = yield Query(window, {"cursor": cursor}, limit=_BATCH)
    return min(ceiling, as_uuid(rows[0][0])) if rows else ceiling
