"""Search: one text looked for in everything an operator can see, in a bounded time.

Failure groups, keys and the beginnings of ids are looked up. Everything else is scanned for, dead letters and the other
deliveries each newest first, for a fixed time; the answer says how far the scan went and where to continue. What was
declared secret is not found: a match is checked against what may be shown.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Message
from holdfast.ops.queries.deliveries import groups_where
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
_PATIENCE = 0.02
"""Seconds for which each of the two scans continues; a stretch that has begun is read to its end."""
_GROUPS = 200
_HEX = re.compile(r"[0-9a-f]{6,32}")
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_END = "-"


@dataclass(frozen=True, slots=True)
class Match:
    """A delivery that holds the text, and where: `field` is id, consumer, type, key, error, payload or a header."""

    delivery: DeliverySummary
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    `dead_scanned` and `scanned` are about how many dead letters and other deliveries were looked at, newest first, none
    when it was all of them; `back_to` is when the oldest of the latter was made. `next` continues the search.
    """

    groups: tuple[FailureGroup, ...]
    matches: tuple[Match, ...]
    dead_scanned: int | None
    scanned: int | None
    back_to: datetime | None
    next: str | None


def search(
    text: str, *, limit: int = 50, after: str | None = None, timer: Callable[[], float] = time.monotonic
) -> TaskSteps[Found]:
    """Failure groups and deliveries that hold `text`: in an id or a part of one, the consumer, type, key, error, tenant
    and other headers, or the payload. Pass `next` as `after` to continue."""
    wanted = _checked(text)
    limit = page_size(limit)
    groups: tuple[FailureGroup, ...] = ()
    ids: list[UUID] = []
    if after is None:
        groups = tuple((yield from groups_where(lambda one: _in_group(one, wanted), _GROUPS)))
        ids = yield from _looked_up(wanted, groups, limit)
    marks = _read_marks(after)
    counts = {True: 0, False: 0}
    for dead in (True, False):
        until = timer() + _PATIENCE
        while marks[dead] != _END and len(ids) < limit:
            before = None if marks[dead] == "" else UUID(marks[dead])
            scanned: Scanned = yield from transact(search_stretch(wanted, limit - len(ids), before, dead=dead))
            ids += scanned.ids
            counts[dead] += STRETCH
            marks[dead] = _END if scanned.next is None else str(scanned.next)
            if timer() >= until:
                break
    matches = yield from _matches(wanted, list(dict.fromkeys(ids)))
    more = any(mark != _END for mark in marks.values())
    return Found(
        groups=groups,
        matches=tuple(matches),
        dead_scanned=None if marks[True] == _END else counts[True],
        scanned=None if marks[False] == _END else counts[False],
        back_to=(yield from _made_at(marks[False])),
        next=f"{marks[True]}.{marks[False]}" if more else None,
    )


def has_request(id: str) -> TaskSteps[bool]:
    """Whether a message or an act carries this request id."""
    return bool((yield from transact(request_messages(id, 1))) or (yield from transact(request_audit(id, 1))))


def _checked(text: str) -> str:
    wanted = text.strip()
    if not _SHORTEST <= len(wanted) <= _LONGEST:
        raise ConfigurationError(
            f"the text to search for has {len(wanted)} characters; give {_SHORTEST} to {_LONGEST}, such as an error, "
            "a key or a part of an id"
        )
    return wanted


def _looked_up(wanted: str, groups: Sequence[FailureGroup], limit: int) -> TaskSteps[list[UUID]]:
    """What an index finds: an exact key or request id, the beginning of an id, a matching group's newest, a consumer."""
    found: list[UUID] = []
    prefix = wanted.lower().replace("-", "")
    if _HEX.fullmatch(prefix):
        found += yield from transact(deliveries_by_prefix(prefix, limit))
    named = [
        *(yield from transact(query.messages(key=wanted, limit=limit))),
        *(yield from transact(request_messages(wanted, limit))),
    ]
    if named:
        found += yield from transact(deliveries_of_messages([one.id for one in named], limit))
    found += [group.example for group in groups]
    dead = yield from transact(query.deliveries(Filter(dead=True, consumers=(wanted,)), limit))
    return [*found, *(one.delivery.id for one in dead)][:limit]


def _in_group(group: FailureGroup, wanted: str) -> bool:
    fields = (group.fingerprint, group.consumer, group.error_type, group.last_error, group.frame)
    return any(wanted.lower() in field.lower() for field in fields if field)


def _matches(wanted: str, ids: Sequence[UUID]) -> TaskSteps[list[Match]]:
    """The deliveries with where each holds the text, as it may be shown; what holds it only in secret is left out."""
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
        field = _where(wanted.lower(), shown, None if message is None else shown_message(known, message))
        if field is not None:
            found.append(Match(shown, field))
    return found


def _where(wanted: str, listed: DeliverySummary, message: Message | None) -> str | None:
    plain = wanted.replace("-", "")
    for name, value in _fields(listed, message):
        if wanted in value.lower() or (name == "id" and plain and plain in value.replace("-", "")):
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
        yield "payload", message.payload


def _made_at(mark: str) -> TaskSteps[datetime | None]:
    if mark in ("", _END):
        return None
    found = yield from transact(query.deliveries(Filter(ids=(UUID(mark),)), 1))
    return found[0].delivery.created_at if found else None


def _read_marks(after: str | None) -> dict[bool, str]:
    dead, dot, newest = ("", ".", "") if after is None else after.partition(".")
    for mark in (dead, newest):
        if not dot or not (mark in ("", _END) or _ID.fullmatch(mark)):
            raise ConfigurationError("the place to continue a search from cannot be read; search again without it")
    return {True: dead, False: newest}
