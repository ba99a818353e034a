"""Pages of deliveries and messages, in a time that does not depend on the size of the store."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from holdfast.core.events.pattern import ANY, check_pattern
from holdfast.core.identity import first_id
from holdfast.core.message import Message
from holdfast.ops.queries.redaction import shown_listed, shown_messages
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.operation import Operation
from holdfast.stores.queries import pagination
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.queries.query import DeliverySummary, Filter

T = TypeVar("T")

_SCAN_SECONDS = 0.03
"""Seconds for which an empty page is scanned further."""


def delivery_page(
    wanted: Filter | None = None,
    *,
    limit: int = 50,
    before: UUID | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> TaskSteps[Slice[DeliverySummary]]:
    """A page of deliveries, newest first; pass `next` as `before` for the next.

    A filter without an index is scanned within a bound: a page may have fewer items than `limit`, even none, and is the last
    only if `next` is None. A page of failed deliveries has `limit` items or is the last.
    """
    wanted = wanted or Filter()
    if wanted.type is not None:
        check_pattern(wanted.type)
    found = yield from first_match(lambda below: pagination.delivery_page(wanted, limit, below), before, timer)
    return Slice([shown_listed(one) for one in found.items], found.next)


def first_match(
    page: Callable[[UUID | None], Operation[Slice[T]]], before: UUID | None, timer: Callable[[], float]
) -> TaskSteps[Slice[T]]:
    """Reads pages until one is not empty, for a limited time."""
    until = timer() + _SCAN_SECONDS
    found = yield from transact(page(before))
    while not found.items and found.next is not None and timer() < until:
        found = yield from transact(page(found.next))
    return found


def message_page(
    *,
    type: str | None = None,
    source: str | None = None,
    key: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> TaskSteps[Slice[Message]]:
    """A page of messages, newest first; pass `next` as `before` for the next. Bounded like `delivery_page`.

    `since` and `until` compare the time in the id, which is when the message was published here.
    """
    if type is not None:
        check_pattern(type)
    type = None if type == ANY else type
    before = below(before, until)
    found = yield from transact(pagination.message_page(type=type, source=source, key=key, limit=limit, before=before))
    items = [one for one in found.items if is_since(one.id, since)]
    # Newest first: after an older one, all are older.
    more = found.next is not None and is_since(found.next, since) and len(items) == len(found.items)
    return Slice((yield from shown_messages(items)), found.next if more else None)


def below(before: UUID | None, until: datetime | None) -> UUID | None:
    """The position below which a page begins: ids begin with their time."""
    if until is None:
        return before
    return first_id(until) if before is None else min(before, first_id(until))


def is_since(id: UUID, since: datetime | None) -> bool:
    """Whether this id was created at or after a time."""
    return since is None or id >= first_id(since)
