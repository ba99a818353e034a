"""Pages of deliveries and messages in a time that does not depend on how many there are."""

import time
from collections.abc import Callable
from uuid import UUID

from holdfast.core.events.pattern import ANY, check_pattern
from holdfast.core.message import Message
from holdfast.ops.queries.redaction import shown_listed, shown_messages
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries import pagination
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.queries.query import DeliverySummary, Filter

_PATIENCE = 0.03
"""Seconds for which an empty page is scanned further."""
_DEAD_PATIENCE = 0.07
"""The same for dead letters of one type: their number is shown elsewhere, so an empty page is surprising."""


def delivery_page(
    wanted: Filter | None = None,
    *,
    limit: int = 50,
    before: UUID | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> TaskSteps[Slice[DeliverySummary]]:
    """A page of deliveries, newest first; pass `next` as `before` for the following.

    What no index serves is scanned for within a bound: a page may hold less than `limit`, even nothing after it has
    scanned for a while, and only when `next` is none was it the last. A page of dead letters is never empty while one
    matches, unless they are narrowed by type, which is read from each one's message.
    """
    wanted = wanted or Filter()
    if wanted.type is not None:
        check_pattern(wanted.type)
    until = timer() + (_DEAD_PATIENCE if wanted.dead else _PATIENCE)
    items, following = yield from transact(pagination.delivery_page(wanted, limit, before))
    while not items and following is not None and timer() < until:
        items, following = yield from transact(pagination.delivery_page(wanted, limit, following))
    return Slice([shown_listed(one) for one in items], following)


def message_page(
    *,
    type: str | None = None,
    source: str | None = None,
    key: str | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> TaskSteps[Slice[Message]]:
    """A page of messages, newest first; pass `next` as `before` for the following. Bounded like `delivery_page`."""
    if type is not None:
        check_pattern(type)
    type = None if type == ANY else type
    found = yield from transact(pagination.message_page(type=type, source=source, key=key, limit=limit, before=before))
    return Slice((yield from shown_messages(found.items)), found.next)
