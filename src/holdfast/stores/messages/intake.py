"""Taking in what came from a broker: each record is stored once, whoever hands it over and however often."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.stores.deliveries.settle import SETTLEMENT, Settlement, complete, settlement_row
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.messages.publish import Fanout, Published, find_first, insert_absent, publish
from holdfast.stores.operation import Query, Steps, operation

_BATCH = 1000


class KnownRecord(NamedTuple):
    """What the store knows of a record: whether its consumer has had it, and the message it is, if it is stored."""

    taken: bool
    message_id: UUID | None


class IntakeReadiness(NamedTuple):
    """Whether a consumer is to be left alone just now, and how much of its work waits, counted up to a limit."""

    held: bool
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeReport:
    """How the intake of a consumer's source stands: how far it is behind, and what is in its way."""

    consumer: str
    source: str
    direct: bool
    waiting: int | None
    unacknowledged: int | None
    problem: str | None
    reported_at: datetime


@operation
def take_in(messages: Sequence[NewMessage], fanout: Fanout) -> Steps[list[Published]]:
    """Every addressed message is stored, or was there under its key, and its consumers have a delivery of it.

    What another consumer of the same stream took in before is not stored again. `KeyConflict` as when publishing.
    """
    stored = yield from publish(messages, fanout).start()
    yield from _add_deliveries(messages, stored)
    return stored


@operation
def take_in_settled(message: NewMessage, settlement: Settlement, worker: str, fanout: Fanout) -> Steps[UUID | None]:
    """Stores a message with a delivery that ran before it was stored, its outcome and its run record.

    Returns the id of the message, which may have been there; none when its consumer had it already, and nothing changes.
    """
    (stored,) = yield from publish([message], fanout).start()
    if not stored.created and not (yield from _add_deliveries([message], [stored])):
        return None
    (address,) = message.addressed
    values = dict(zip(SETTLEMENT, settlement_row(settlement), strict=True))
    values |= {"delivery_id": delivery_id(stored.id, address.consumer), "worker": worker}
    yield Query("settle_new", values)
    return stored.id


@operation
def take_in_completing(claim: Claim, idle_timeout: timedelta, message: NewMessage, fanout: Fanout) -> Steps[Published]:
    """Stores what a raw record turned out to be, in the transaction that marks the raw one delivered."""
    yield from complete(claim, idle_timeout).start()
    stored = yield from publish([message], fanout).start()
    yield from _add_deliveries([message], stored)
    return stored[0]


@operation
def record_handled(consumer: str, source: str, keys: Sequence[str], by_delivery: UUID) -> Steps[None]:
    """Records keys as handled in the caller's transaction. The database raises and undoes that when one was before."""
    for key in sorted(set(keys)):
        values = {"consumer": consumer, "source": source, "key": key, "delivery_id": by_delivery}
        yield Query("record_handled", values)


@operation
def forget_handled(consumers: Sequence[str], older_than: timedelta) -> Steps[bool]:
    """Removes a batch of what these consumers handled so long ago; says whether there may be more."""
    values = {"consumers": list(consumers), "older_than": older_than}
    return len((yield Query("forget_handled", values, limit=_BATCH))) == _BATCH


@operation(reads=True)
def look_up(consumer: str, message: NewMessage) -> Steps[KnownRecord]:
    """Whether the consumer has handled this key in a transaction of its own, or has a delivery of it.

    `KeyConflict` when a message of other content is stored under the key.
    """
    asked = {"source": message.source, "key": message.key}
    handled = yield Query("was_handled", {"consumer": consumer, **asked})
    stored = yield from find_first([message])
    if not stored:
        return KnownRecord(bool(handled), None)
    message_id = stored[message.id].id
    delivered = yield Query("claim_states", {"ids": [delivery_id(message_id, consumer)]})
    return KnownRecord(bool(handled or delivered), message_id)


@operation(reads=True)
def readiness(consumer: str, queue: str, limit: int) -> Steps[IntakeReadiness]:
    """Whether the consumer or its queue is paused or blocked, and how many of its deliveries wait, up to `limit`."""
    ((held, backlog),) = yield Query("readiness", {"consumer": consumer, "queue": queue}, limit=limit)
    return IntakeReadiness(bool(held), int(backlog))


@operation(single=True)
def report_intake(
    consumer: str, source: str, *, direct: bool, waiting: int | None, unacknowledged: int | None, problem: str | None
) -> Steps[None]:
    """Records how an intake stands now, for people."""
    yield Query(
        "report_intake",
        {
            "consumer": consumer,
            "source": source,
            "direct": direct,
            "waiting": waiting,
            "unacknowledged": unacknowledged,
            "problem": problem,
        },
    )


@operation(reads=True)
def intakes() -> Steps[list[IntakeReport]]:
    """How every intake stood when it was last reported, by consumer."""
    return [
        IntakeReport(
            consumer=str(consumer),
            source=str(source),
            direct=bool(direct),
            waiting=waiting,
            unacknowledged=unacknowledged,
            problem=problem,
            reported_at=aware_time(at),
        )
        for consumer, source, direct, waiting, unacknowledged, problem, at in (yield Query("intakes"))
    ]


@operation
def forget_intake(consumer: str) -> Steps[tuple[str, ...]]:
    """Forgets how the intakes of a consumer stood; returns their sources. A worker that still reads reports it anew."""
    return tuple(str(source) for (source,) in (yield Query("forget_intake", {"consumer": consumer})))


def _add_deliveries(messages: Sequence[NewMessage], stored: Sequence[Published]) -> Steps[list[UUID]]:
    """Gives those that were there before a delivery for their address, where it is absent; returns the added ones."""
    absent = [
        (delivery_id(known.id, to.consumer), known.id, to.consumer, to.queue, to.priority, message.generation)
        for message, known in zip(messages, stored, strict=True)
        if not known.created
        for to in message.addressed
    ]
    if not absent:
        return []
    rows = yield insert_absent(absent)
    return [as_uuid(row[0]) for row in rows]
