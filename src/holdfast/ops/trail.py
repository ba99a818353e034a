"""Trails: one request followed by its id through messages, deliveries, runs and the audit."""

from dataclasses import dataclass

from holdfast.core.message import Message
from holdfast.ops.deliveries import DeliveryDetail, delivery
from holdfast.ops.redaction import shown_entry, shown_messages
from holdfast.ops.work import Work, do
from holdfast.stores import trail
from holdfast.stores.operate import AuditEntry
from holdfast.stores.query import deliveries_of

_MESSAGES = 30
_STORIES = 60
_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Step:
    """A message of a request with the whole story of each of its deliveries."""

    message: Message
    deliveries: tuple[DeliveryDetail, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """What followed from one request, oldest first; `more` says that not all of it is here."""

    request_id: str
    steps: tuple[Step, ...]
    audit: tuple[AuditEntry, ...]
    more: bool


def follow(request_id: str) -> Work[Trail]:
    """Everything one request left behind; nothing when no message and no act carries its id."""
    found = yield from do(trail.request_messages(request_id, _MESSAGES + 1))
    steps, left, more = [], _STORIES, len(found) > _MESSAGES
    for message in (yield from shown_messages(found[:_MESSAGES])):
        own = yield from do(deliveries_of(message.id))
        more = more or len(own) > left
        stories: tuple[DeliveryDetail, ...] = ()
        for one in own[:left]:
            stories += ((yield from delivery(one.delivery.id)),)
        left -= len(stories)
        steps.append(Step(message, stories))
    entries = yield from do(trail.request_audit(request_id, _ENTRIES))
    return Trail(
        request_id=request_id, steps=tuple(steps), audit=tuple(shown_entry(entry) for entry in entries), more=more
    )
