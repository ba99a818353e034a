"""Messages: lists and details; publishing and enqueueing by operators."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.core.events.pattern import check_pattern
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, Message, NewMessage, new_message
from holdfast.core.values.names import check_name
from holdfast.ops.queries.pages import below, is_since
from holdfast.ops.queries.redaction import redactor, shown_listed, shown_message, shown_messages
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin.actions import audited, live_generation
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.messages.registry import consumers
from holdfast.stores.operation import Steps, operation
from holdfast.stores.queries import query
from holdfast.stores.queries.query import DeliverySummary, Filter, subscriptions

OPERATOR = "operator"
"""The source of messages that operators publish. Keys are unique within a source."""


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message with its deliveries."""

    message: Message
    deliveries: tuple[DeliverySummary, ...]


def messages(
    *,
    type: str | None = None,
    source: str | None = None,
    key: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> TaskSteps[list[Message]]:
    """A page of messages, newest first; pass the last id as `before` for the next.

    `since` and `until` compare the time in the id, which is when the message was published here.
    """
    if type is not None:
        check_pattern(type)
    before = below(before, until)
    found = yield from transact(query.messages(type=type, source=source, key=key, limit=limit, before=before))
    return (yield from shown_messages([one for one in found if is_since(one.id, since)]))


def message(id: UUID) -> TaskSteps[MessageDetail]:
    """One message with its deliveries."""
    found = yield from transact(query.messages(id=id, limit=1))
    if not found:
        if (yield from transact(query.deliveries(Filter(ids=(id,)), 1))):
            raise NotFound("message", id, f"it is a delivery: see `holdfast deliveries show {id}`")
        raise NotFound("message", id)
    known = yield from redactor()
    hide = known.hide(found[0].type, found[0].payload)
    deliveries = [shown_listed(one, hide) for one in (yield from transact(query.deliveries_of(id)))]
    return MessageDetail(shown_message(known, found[0]), tuple(deliveries))


def publish_event(
    type: str,
    payload: object,
    *,
    actor: str,
    source: str = OPERATOR,
    key: str | None = None,
    headers: Mapping[str, object] | None = None,
    generation: int = 0,
) -> TaskSteps[Published]:
    """Stores an event with a delivery for each subscription; audited. A duplicate key stores nothing."""
    id = yield from fresh_id()
    event = new_message(
        id=id, type=type, source=source, payload=payload, key=key, headers=headers, generation=generation
    )
    return (yield from _store(event, actor, "publish"))


def enqueue(
    job: str,
    arguments: Mapping[str, object],
    *,
    actor: str,
    source: str = OPERATOR,
    key: str | None = None,
    headers: Mapping[str, object] | None = None,
    delay: timedelta | None = None,
    queue: str | None = None,
    priority: int | None = None,
    unique: str | None = None,
    force: bool = False,
) -> TaskSteps[Published]:
    """Stores a call of a job with the queue and priority of its registration; audited.

    Raises `NotFound` if no job of that name ever registered, unless `force`: a later worker may run it.
    """
    check_name("consumer", job)
    known = {one.name: one for one in (yield from transact(consumers()))}
    patterns = {one.consumer: one.pattern for one in (yield from transact(subscriptions())) if one.active}
    if job in patterns:
        raise Refused(
            "enqueue", job, f"a consumer of {patterns[job]}, not a job", f"publish {patterns[job]} to make it run"
        )
    if job not in known and not force:
        names = ", ".join(sorted(known.keys() - patterns.keys())[:20]) or "none yet"
        raise NotFound(
            "job", job, f"registered: {names}; use force (--force on the command line) to store it for a later worker"
        )
    row = known.get(job)
    queue = queue or (row.queue if row else "default")
    live = yield from transact(live_generation(job, queue))
    address = Address(
        consumer=job,
        queue=queue,
        priority=priority if priority is not None else (row.priority if row else 1),
        delay=delay,
        unique=unique,
    )
    call = new_message(
        id=(yield from fresh_id()),
        type=f"job.{job}",
        source=source,
        payload=dict(arguments),
        key=key,
        key_scope=f"job.{job}",
        headers=headers,
        generation=live if live is not None else (row.generation if row else 0),
        addressed=[address],
    )
    return (yield from _store(call, actor, "enqueue"))


def _store(message: NewMessage, actor: str, action: str) -> TaskSteps[Published]:
    published = yield from transact(publish_audited(message, actor, action))
    yield from call_store(lambda store: store.hint_sync())
    return published


def fresh_id() -> TaskSteps[UUID]:
    """A new id of a message, with the time of the database."""
    now = yield from transact(query.clock())
    return uuid7(int(now.timestamp() * 1000), secrets.randbits(74))


@operation
def publish_audited(message: NewMessage, actor: str, action: str, reason: str | None = None) -> Steps[Published]:
    """Stores a message and its audit entry in one transaction; a duplicate key stores neither."""
    (published,) = yield from publish([message], Fanout()).start()
    if published.created:
        yield audited(actor, action, "message", str(published.id), reason, {"type": message.type})
    return published
