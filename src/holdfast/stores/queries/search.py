"""Searching deliveries by text that no index serves, a bounded stretch at a time."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

STRETCH = 1_000
_DIGITS = 32


class Scanned(NamedTuple):
    """What one stretch gave: the deliveries that match, newest first, and where to continue, none at the end."""

    ids: list[UUID]
    next: UUID | None


@operation(reads=True)
def search_stretch(text: str, limit: int, before: UUID | None, *, dead: bool) -> Steps[Scanned]:
    """Scans the next deliveries below `before` for `text` in their ids, consumer, type, key, error, headers and payload,
    whatever the case: the dead letters, or those that are not."""
    base = ("where_failed", "where_not_discarded") if dead else ()
    below = {} if before is None else {"before": before}
    started = () if before is None else ("where_before",)
    far = yield Query("far_delivery", below, slots=(("where", (*base, *started)),), limit=STRETCH - 1)
    lowest = as_uuid(far[0][0]) if far else None
    where = (*(base or ("where_not_dead",)), *started)
    values: dict[str, object] = {**below, "text": text.lower()}
    if lowest is not None:
        where, values = (*where, "where_from"), {**values, "lowest": lowest}
    rows = yield Query("search_deliveries", values, slots=(("where", where),), limit=limit)
    ids = [as_uuid(row[0]) for row in rows]
    # A full stretch is continued behind its last match, not behind its end.
    return Scanned(ids, ids[-1] if len(ids) == limit else lowest)


@operation(reads=True)
def deliveries_by_prefix(prefix: str, limit: int) -> Steps[list[UUID]]:
    """The newest deliveries whose id begins with these hexadecimal digits; they begin as their message's does."""
    low, high = UUID(prefix.ljust(_DIGITS, "0")), UUID(prefix.ljust(_DIGITS, "f"))
    rows = yield Query("deliveries_by_range", {"low": low, "high": high}, limit=limit)
    return [as_uuid(row[0]) for row in rows]


@operation(reads=True)
def deliveries_of_messages(ids: Sequence[UUID], limit: int) -> Steps[list[UUID]]:
    """The deliveries of these messages."""
    rows = yield Query("deliveries_of_messages", {"ids": list(ids)}, limit=limit)
    return [as_uuid(row[0]) for row in rows]
