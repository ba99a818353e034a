"""Pages of deliveries and messages, in a time that does not depend on the size of the store."""

import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from holdfast.core.events.pattern import ANY, check_pattern
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
    """The first page that is not empty, for a limited time."""
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
    limit: int = 50,
    before: UUID | None = None,
) -> TaskSteps[Slice[Message]]:
    """A page of messages, newest first; pass `next` as `before` for the next. Bounded like `delivery_page`."""
    if type is not None:
        check_pattern(type)
    type = None if type == ANY else type
    found = yield from transact(pagination.message_page(type=type, source=source, key=key, limit=limit, before=before))
    return Slice((yield from shown_messages(found.items)), found.next)
