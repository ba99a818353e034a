"""Pages of deliveries and messages, in a time that does not depend on the size of the tables.

Lists are ordered by id, newest first. If an index serves the filter in that order, a page is one index scan. Other
filters have no index, because each index would slow down every write: a page scans a bounded number of deliveries,
returns the matches and says where to continue. So a page may be short or empty without being the last one. A page of
failed deliveries is full or the last one: they are few compared with all deliveries, and the scan continues.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.identity import uuid7
from holdfast.core.message import Message
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation
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
_FAILED = Filter(statuses=(Status.FAILED,))
_SKEW = timedelta(days=1)
_SUBQUERIES = {
    "where_type": "where_type_looked_up",
    "where_type_below": "where_type_below_looked_up",
    "where_consumers": "where_consumers_looked_up",
}


class Slice(NamedTuple, Generic[T]):
    """A page. `next` is the `before` of the next page; None on the last page."""

    items: list[T]
    next: UUID | None


@operation(reads=True)
def delivery_page(wanted: Filter, limit: int = 50, before: UUID | None = None) -> Steps[Slice[DeliverySummary]]:
    """A page of deliveries, newest first; scans a bounded number of rows, unless the filter has only failed ones."""
    # One more than the page, so that it has a next page only if there is one.
    found, following = yield from _delivery_page(wanted, page_size(limit) + 1, _begin(wanted, before))
    if len(found) > limit:
        return Slice(found[:limit], found[limit - 1].delivery.id)
    return Slice(found, following)


def _delivery_page(wanted: Filter, limit: int, before: UUID | None) -> Steps[Slice[DeliverySummary]]:
    """At most `limit` deliveries and, if the scan ended early, where to continue it."""
    if wanted.statuses and set(wanted.statuses) <= _UNFINISHED and wanted.ids is None:
        few = yield from _unfinished(wanted)
        if len(few) <= _UNFINISHED_READ:
            return (yield from _among(wanted, few, limit, before))
    base = _by_id(wanted)
    if base.type is not None and (yield Query("untyped_failures")):
        base = replace(base, type=None)
    if base == wanted:
        return Slice((yield from _deliveries(wanted, base, limit, before, None)), None)
    found: list[DeliverySummary] = []
    stretches = 0
    while stretches < _STRETCHES or base != Filter():
        # Growing ranges: small steps do not find distant matches sooner.
        size = STRETCH * 2 ** max(0, min(stretches - 1, 4))
        stretches += 1
        lowest = yield from _far("far_delivery", *_conditions(base, base), "where_before", before, size)
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
    """A page of messages, newest first; scans a bounded number of rows. A key uses its index."""
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
        lowest = yield from _far("far_message", (), {}, "where_message_before", before)
        found += yield from _messages(where, values, limit - len(found), before, lowest)
        if len(found) == limit or lowest is None:
            return Slice(found, None)
        before = lowest
    return Slice(found, before)


def _unfinished(wanted: Filter) -> Steps[list[UUID]]:
    """The unfinished deliveries of the consumers and queue of the filter, up to a bound, unordered."""
    narrow, values = conditions(Filter(consumers=wanted.consumers, queue=wanted.queue))
    values["statuses"] = [status.value for status in wanted.statuses]
    rows = yield Query("unfinished_deliveries", values, slots=(("narrow", narrow),), limit=_UNFINISHED_READ + 1)
    return [as_uuid(row[0]) for row in rows]


def _among(wanted: Filter, ids: list[UUID], limit: int, before: UUID | None) -> Steps[Slice[DeliverySummary]]:
    """A page of the deliveries with these ids."""
    left = sorted((id for id in ids if before is None or id < before), reverse=True)
    found: list[DeliverySummary] = []
    for at in range(0, len(left), MAX_PAGE):
        some = replace(wanted, ids=tuple(left[at : at + MAX_PAGE]))
        found += yield from _deliveries(some, some, limit - len(found), before, None)
        if len(found) == limit:
            break
    return Slice(found, None)


def _begin(wanted: Filter, before: UUID | None) -> UUID | None:
    """The upper bound of a page: ids begin with their creation time, and a delivery that ended before `until` was
    created before it. A day of tolerance covers differences between clocks."""
    if wanted.until is None:
        return before
    try:
        top = uuid7(max(0, int((wanted.until + _SKEW).timestamp() * 1000)), 0)
    except (ValueError, OverflowError):
        return before
    return top if before is None else min(top, before)


def _by_id(wanted: Filter) -> Filter:
    """The part of a filter that an index in the order of ids serves."""
    if wanted.ids is not None or wanted.message_id is not None:
        return wanted
    if wanted.dead and wanted.group is not None:
        return Filter(dead=True, group=wanted.group)
    if wanted.dead and len(wanted.consumers) == 1:
        return Filter(dead=True, consumers=wanted.consumers)
    if wanted.only_failed:
        exact = wanted.type is not None and not wanted.type.endswith(".*")
        return Filter(statuses=(Status.FAILED,), type=wanted.type if exact else None)
    return Filter()


def _far(
    name: str,
    where: tuple[str, ...],
    values: Mapping[str, object],
    below: str,
    before: UUID | None,
    size: int = STRETCH,
) -> Steps[UUID | None]:
    """The last id of the range that begins below `before`; None if the range contains all remaining rows."""
    if before is not None:
        where, values = (*where, below), {**values, "before": before}
    rows = yield Query(name, values, slots=(("where", where),), limit=size - 1)
    return as_uuid(rows[0][0]) if rows else None


def _conditions(wanted: Filter, base: Filter) -> tuple[tuple[str, ...], dict[str, object]]:
    """The conditions of a filter, in the form that lets the index of `base` be used."""
    where, values = conditions(wanted)
    if wanted.ids is not None:
        return where, values
    # Subqueries per delivery: otherwise the planner may scan the whole table for a rare value.
    forms = _SUBQUERIES if base.type is None else _SUBQUERIES | {"where_failed_type": "where_failed_type_indexed"}
    if base == _FAILED and wanted != base:
        # PostgreSQL would read all deliveries of the range (500 ms for 100,000 dead letters among a million). This condition
        # has a subquery that is never evaluated, but whose cost counts for each row, so the index of failed ones wins.
        where = (*where, "where_only_failed")
    return tuple(forms.get(name, name) for name in where), values


def _deliveries(
    wanted: Filter, base: Filter, limit: int, before: UUID | None, lowest: UUID | None
) -> Steps[list[DeliverySummary]]:
    where, values = _conditions(wanted, base)
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
