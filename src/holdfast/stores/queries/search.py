"""Text search in deliveries. No index serves it, so each call scans a bounded range."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

STRETCH = 1_000
_DIGITS = 32


class Scanned(NamedTuple):
    """The matches of one range, newest first, and where to continue; None at the end."""

    ids: list[UUID]
    next: UUID | None


@operation(reads=True)
def search_stretch(text: str, limit: int, before: UUID | None, *, dead: bool) -> Steps[Scanned]:
    """Searches the next deliveries below `before` for `text` in ids, consumer, type, key, error, headers and payload,
    ignoring case: among dead letters, or among all others."""
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
    # With `limit` matches the search continues after the last match, not after the range.
    return Scanned(ids, ids[-1] if len(ids) == limit else lowest)


@operation(reads=True)
def deliveries_by_prefix(prefix: str, limit: int) -> Steps[list[UUID]]:
    """The newest deliveries whose id begins with these hexadecimal digits; message ids begin with the same digits."""
    low, high = UUID(prefix.ljust(_DIGITS, "0")), UUID(prefix.ljust(_DIGITS, "f"))
    rows = yield Query("deliveries_by_range", {"low": low, "high": high}, limit=limit)
    return [as_uuid(row[0]) for row in rows]


@operation(reads=True)
def deliveries_of_messages(ids: Sequence[UUID], limit: int) -> Steps[list[UUID]]:
    """The deliveries of these messages."""
    rows = yield Query("deliveries_of_messages", {"ids": list(ids)}, limit=limit)
    return [as_uuid(row[0]) for row in rows]
