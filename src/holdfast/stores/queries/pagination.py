"""Pages of deliveries and messages, in a time that does not depend on the size of the tables.

Lists are ordered by id, newest first. If an index serves the filter in that order, a page is one index scan. Other
filters have no index, because each index would slow down every write: a page scans a bounded number of deliveries,
returns the matches and says where to continue. So a page may be short or empty without being the last one. Only for
failed deliveries the scan continues until the page is full or no more exist: they are few compared with all deliveries.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.identity import first_id
from holdfast.core.message import Message
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.filter_index import far_id, index_parts, indexed_conditions, range_end
from holdfast.stores.queries.query import (
    MAX_PAGE,
    DeliverySummary,
    Filter,
    conditions,
    page_size,
    read_message,
    read_summary,
)

T = TypeVar("T")

STRETCH = 5_000
_STRETCHES = 2
_UNFINISHED_READ = 20_000
_UNFINISHED = {Status.PENDING, Status.IN_FLIGHT}
SKEW = timedelta(days=1)


class Slice(NamedTuple, Generic[T]):
    """A page. `next` is the `before` of the next page; None on the last page."""

    items: list[T]
    next: UUID | None


@operation(reads=True)
def delivery_page(wanted: Filter, limit: int = 50, before: UUID | None = None) -> Steps[Slice[DeliverySummary]]:
    """A page of deliveries, newest first; scans a bounded number of rows, unless the filter has only failed ones."""
    # One more than the page, so that it has a next page only if there is one.
    found, following = yield from _delivery_page(wanted, page_size(limit) + 1, first_below(before, wanted.until))
    if len(found) > limit:
        return Slice(found[:limit], found[limit - 1].delivery.id)
    return Slice(found, following)


def _delivery_page(wanted: Filter, limit: int, before: UUID | None) -> Steps[Slice[DeliverySummary]]:
    """At most `limit` deliveries and, if the scan ended early, where to continue it."""
    if wanted.statuses and set(wanted.statuses) <= _UNFINISHED and wanted.ids is None:
        few = yield from _unfinished(wanted, limit, before)
        if few is not None:
            return (yield from _among(wanted, few, limit, before))
    parts = yield from index_parts(wanted)
    if len(parts) == 1:
        return (yield from _part_page(*parts[0], limit, before))
    found: list[DeliverySummary] = []
    for part in parts:
        # Only failed deliveries are split, and a page of these is full or the last one.
        found += (yield from _part_page(*part, limit, before)).items
    return Slice(sorted(found, key=lambda one: one.delivery.id, reverse=True)[:limit], None)


def _part_page(wanted: Filter, base: Filter, limit: int, before: UUID | None) -> Steps[Slice[DeliverySummary]]:
    """`_delivery_page` by the index of `base`."""
    if base == wanted:
        return Slice((yield from _deliveries(wanted, base, limit, before, None)), None)
    found: list[DeliverySummary] = []
    stretches = 0
    while stretches < _STRETCHES or base != Filter():
        # Growing ranges: small steps do not find distant matches sooner.
        size = STRETCH * 2 ** max(0, min(stretches - 1, 4))
        stretches += 1
        lowest = yield from range_end(base, before, size)
        found += yield from _deliveries(wanted, base, limit - len(found), before, lowest)
        if len(found) == limit or lowest is None:
            return Slice(found, None)
        before = lowest
    return Slice(found, before)


@operation(reads=True)
def message_page(
    *,
    type: str | None = None,
    source: str | None = None,
    key: str | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> Steps[Slice[Message]]:
    """A page of messages, newest first; scans a bounded number of rows. A filter by key uses an index."""
    values: dict[str, object] = {}
    where: list[str] = []
    for name, given in (("type", type), ("source", source), ("key", key)):
        if given is not None:
            where.append(f"where_message_{name}")
            values[name] = given
    if type is not None and type.endswith(".*"):
        where[0], values = "where_type_below", {**values, "type_prefix": type[:-1]}
    found, following = yield from _message_page(tuple(where), values, page_size(limit) + 1, before, scan=key is None)
    if len(found) > limit:
        return Slice(found[:limit], found[limit - 1].id)
    return Slice(found, following)


def _message_page(
    where: tuple[str, ...], values: Mapping[str, object], limit: int, before: UUID | None, *, scan: bool
) -> Steps[Slice[Message]]:
    """The same for messages; without `scan` an index serves the filter."""
    if not scan or not where:
        return Slice((yield from _messages(where, values, limit, before, None)), None)
    found: list[Message] = []
    for _ in range(_STRETCHES):
        lowest = yield from far_id("far_message", (), {}, "where_message_before", before, STRETCH)
        found += yield from _messages(where, values, limit - len(found), before, lowest)
        if len(found) == limit or lowest is None:
            return Slice(found, None)
        before = lowest
    return Slice(found, before)


def _unfinished(wanted: Filter, limit: int, before: UUID | None) -> Steps[Slice[UUID] | None]:
    """The newest unfinished deliveries of the consumers and queue of the filter; None if there are too many to sort.

    They are as many as the page needs, or all of them if the filter has other conditions as well.
    """
    narrow = Filter(consumers=wanted.consumers, queue=wanted.queue)
    where, values = conditions(narrow)
    if wanted != replace(narrow, statuses=wanted.statuses):
        limit = _UNFINISHED_READ + 1
    values |= {"statuses": [status.value for status in wanted.statuses], "bound": _UNFINISHED_READ + 1}
    rows = yield Query("unfinished_deliveries", {**values, "before": before}, slots=(("narrow", where),), limit=limit)
    if rows[0][0] > _UNFINISHED_READ:
        return None
    ids = [as_uuid(id) for _, id in rows if id is not None]
    return Slice(ids, ids[-1] if len(ids) == limit else None)


def _among(wanted: Filter, few: Slice[UUID], limit: int, before: UUID | None) -> Steps[Slice[DeliverySummary]]:
    """A page of the deliveries with these ids. If one ended concurrently, it is missing, and there is a next page."""
    found: list[DeliverySummary] = []
    for at in range(0, len(few.items), MAX_PAGE):
        some = replace(wanted, ids=tuple(few.items[at : at + MAX_PAGE]))
        found += yield from _deliveries(some, some, limit - len(found), before, None)
        if len(found) == limit:
            return Slice(found, None)
    return Slice(found, few.next)


def first_below(before: UUID | None, until: datetime | None) -> UUID | None:
    """The upper bound of a page: ids begin with their creation time, and a delivery that ended before `until` was
    created before it. A day of tolerance covers differences between clocks."""
    if until is None:
        return before
    top = first_id(until, SKEW)
    return top if before is None else min(top, before)


def _deliveries(
    wanted: Filter, base: Filter, limit: int, before: UUID | None, lowest: UUID | None
) -> Steps[list[DeliverySummary]]:
    where, values = indexed_conditions(wanted, base)
    if before is not None:
        where, values = (*where, "where_before"), {**values, "before": before}
    if lowest is not None:
        where, values = (*where, "where_from"), {**values, "lowest": lowest}
    rows = yield Query("list_deliveries", values, slots=(("where", where),), limit=limit)
    return [read_summary(row) for row in rows]


def _messages(
    where: tuple[str, ...], values: Mapping[str, object], limit: int, before: UUID | None, lowest: UUID | None
) -> Steps[list[Message]]:
    if before is not None:
        where, values = (*where, "where_message_before"), {**values, "before": before}
    if lowest is not None:
        where, values = (*where, "where_message_from"), {**values, "lowest": lowest}
    rows = yield Query("list_messages", values, slots=(("where", where),), limit=limit)
    return [read_message(row) for row in rows]
