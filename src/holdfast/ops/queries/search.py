"""Full-text search over everything that operators can read, in a bounded time.

Failure groups, keys and prefixes of ids use an index. The rest is scanned for a fixed time, newest first: dead letters,
then other deliveries. The result says how far the scan went and where to continue. Declared secrets are not found: a
match is checked against the redacted values.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.core.encryption import encrypted_value
from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Message
from holdfast.ops.queries.deliveries import groups_where
from holdfast.ops.queries.name_search import NamedItem, named_items
from holdfast.ops.queries.redaction import redactor, shown_listed, shown_message
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries import query
from holdfast.stores.queries.query import DeliverySummary, FailureGroup, Filter, messages_with, page_size
from holdfast.stores.queries.request_trace import request_audit, request_messages
from holdfast.stores.queries.search import (
    STRETCH,
    Scanned,
    deliveries_by_prefix,
    deliveries_of_messages,
    search_stretch,
)

_SHORTEST, _LONGEST = 2, 200
_SCAN_SECONDS = 0.02
"""Seconds for each of the two scans; a started batch is read to its end."""
_GROUPS = 200
_HEX = re.compile(r"[0-9a-f]{6,32}")
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_START, _END = "0", "-"


@dataclass(frozen=True, slots=True)
class Match:
    """A delivery that contains the text; `field` is id, consumer, type, key, error, payload or a header."""

    delivery: DeliverySummary
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search. `items` are those with names, such as queues and schedules.

    `dead_scanned` and `scanned` are the approximate numbers of scanned dead letters and other deliveries, newest first, or
    None if all were scanned; `back_to` is when the oldest scanned delivery was created. `next` continues the search.
    """

    items: tuple[NamedItem, ...]
    groups: tuple[FailureGroup, ...]
    matches: tuple[Match, ...]
    dead_scanned: int | None
    scanned: int | None
    back_to: datetime | None
    next: str | None


def search(
    text: str, *, limit: int = 50, after: str | None = None, timer: Callable[[], float] = time.monotonic
) -> TaskSteps[SearchResult]:
    """Named items, failure groups and deliveries that contain `text`: in an id or a part of one, the consumer, type, key, error, tenant
    and other headers, or the payload. Pass `next` as `after` to continue."""
    needle = _checked(text)
    limit = page_size(limit)
    items: tuple[NamedItem, ...] = ()
    groups: tuple[FailureGroup, ...] = ()
    ids: list[UUID] = []
    if after is None:
        items = tuple((yield from named_items(needle)))
        groups = tuple((yield from groups_where(lambda one: _in_group(one, needle), _GROUPS)))
        ids = yield from _indexed(needle, groups, limit)
    cursors = _read_cursors(after)
    counts = {True: 0, False: 0}
    for dead in (True, False):
        until = timer() + _SCAN_SECONDS
        while cursors[dead] != _END and len(ids) < limit:
            before = None if cursors[dead] == "" else UUID(cursors[dead])
            scanned: Scanned = yield from transact(search_stretch(needle, limit - len(ids), before, dead=dead))
            ids = list(dict.fromkeys((*ids, *scanned.ids)))
            counts[dead] += STRETCH
            cursors[dead] = _END if scanned.next is None else str(scanned.next)
            if timer() >= until:
                break
    matches = yield from _matches(needle, ids)
    more = any(cursor != _END for cursor in cursors.values())
    return SearchResult(
        items=items,
        groups=groups,
        matches=tuple(matches),
        dead_scanned=None if cursors[True] == _END else counts[True],
        scanned=None if cursors[False] == _END else counts[False],
        back_to=(yield from _made_at(cursors[False])),
        next=f"{cursors[True] or _START}.{cursors[False] or _START}" if more else None,
    )


def has_request(id: str) -> TaskSteps[bool]:
    """Whether a message or an audit entry has this request id."""
    return bool((yield from transact(request_messages(id, 1))) or (yield from transact(request_audit(id, 1))))


def _checked(text: str) -> str:
    needle = text.strip()
    if not _SHORTEST <= len(needle) <= _LONGEST:
        raise ConfigurationError(
            f"the text to search for has {len(needle)} characters; give {_SHORTEST} to {_LONGEST}, such as an error, "
            "a key or a part of an id"
        )
    return needle


def _indexed(needle: str, groups: Sequence[FailureGroup], limit: int) -> TaskSteps[list[UUID]]:
    """The results from indexes: a key, a request id, a prefix of an id, the examples of groups, a consumer."""
    found: list[UUID] = []
    prefix = needle.lower().replace("-", "")
    if _HEX.fullmatch(prefix):
        found += yield from transact(deliveries_by_prefix(prefix, limit))
    named = [
        *(yield from transact(query.messages(key=needle, limit=limit))),
        *(yield from transact(request_messages(needle, limit))),
    ]
    if named:
        found += yield from transact(deliveries_of_messages([one.id for one in named], limit))
    found += [group.example for group in groups]
    dead = yield from transact(query.deliveries(Filter(dead=True, consumers=(needle,)), limit))
    return list(dict.fromkeys((*found, *(one.delivery.id for one in dead))))[:limit]


def _in_group(group: FailureGroup, needle: str) -> bool:
    fields = (group.fingerprint, group.consumer, group.error_type, group.last_error, group.frame)
    return any(needle.lower() in field.lower() for field in fields if field)


def _matches(needle: str, ids: Sequence[UUID]) -> TaskSteps[list[Match]]:
    """The deliveries with the matching field, redacted. A match only in a secret is omitted."""
    if not ids:
        return []
    listed = {one.delivery.id: one for one in (yield from transact(query.deliveries(Filter(ids=tuple(ids)), len(ids))))}
    messages = yield from transact(messages_with(list({one.delivery.message_id for one in listed.values()})))
    known = yield from redactor()
    found = []
    for id in ids:
        if id not in listed:
            continue
        message = messages.get(listed[id].delivery.message_id)
        hide = None if message is None else known.hide(message.type, message.payload)
        shown = shown_listed(listed[id], hide)
        field = _where(needle.lower(), shown, None if message is None else shown_message(known, message))
        if field is not None:
            found.append(Match(shown, field))
    return found


def _where(needle: str, listed: DeliverySummary, message: Message | None) -> str | None:
    plain = needle.replace("-", "")
    for name, value in _fields(listed, message):
        if needle in value.lower() or (name == "id" and plain and plain in value.replace("-", "")):
            return name
    return None


def _fields(listed: DeliverySummary, message: Message | None) -> Iterator[tuple[str, str]]:
    row = listed.delivery
    yield "id", str(row.id)
    yield "id", str(row.message_id)
    yield "consumer", row.consumer
    yield "type", listed.type
    yield "key", listed.key or ""
    yield "error", f"{row.error_type or ''} {row.last_error or ''}"
    if message is not None:
        for name, value in message.headers.items():
            yield name, str(value)
        if encrypted_value(message.payload) is None:
            yield "payload", message.payload


def _made_at(cursor: str) -> TaskSteps[datetime | None]:
    if cursor in ("", _END):
        return None
    found = yield from transact(query.deliveries(Filter(ids=(UUID(cursor),)), 1))
    return found[0].delivery.created_at if found else None


def _read_cursors(after: str | None) -> dict[bool, str]:
    dead, dot, newest = (_START, ".", _START) if after is None else after.partition(".")
    for cursor in (dead, newest):
        if not dot or not (cursor in (_START, _END) or _ID.fullmatch(cursor)):
            raise ConfigurationError(
                "the cursor is not valid; pass the whole one of the previous result, or search again without a cursor"
            )
    return {is_dead: "" if one == _START else one for is_dead, one in ((True, dead), (False, newest))}
