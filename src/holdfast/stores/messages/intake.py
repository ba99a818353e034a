"""Broker intake: each record is stored once, even if several consumers read it or the broker redelivers it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.stores.deliveries.settle import SETTLEMENT, Settlement, complete, record_key, settlement_row
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, find_first, insert_absent, publish
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import row_reader

_BATCH = 1000


class KnownRecord(NamedTuple):
    """Whether the consumer already has this record, and the id of its message, if it is stored."""

    taken: bool
    message_id: UUID | None


class IntakeReadiness(NamedTuple):
    """Whether a consumer is paused or blocked, and the number of its waiting deliveries, counted up to a limit."""

    held: bool
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeReport:
    """The state of the intake from a consumer's source: its backlog and its current problem."""

    consumer: str
    source: str
    direct: bool
    waiting: int | None
    unacknowledged: int | None
    problem: str | None
    reported_at: datetime


@operation
def take_in(messages: Sequence[NewMessage], fanout: Fanout) -> Steps[list[Published]]:
    """Stores each addressed message unless its key exists, and creates the deliveries of its consumers.

    A record that another consumer of the same stream has stored is not stored again. Raises `KeyConflict` as `publish` does.
    """
    stored = yield from publish(messages, fanout).start()
    yield from _add_deliveries(messages, stored)
    return stored


@operation
def take_in_settled(message: NewMessage, settlement: Settlement, worker: str, fanout: Fanout) -> Steps[UUID | None]:
    """Stores a message with a delivery that has already run, its outcome and its run record.

    Returns the id of the message, which may be an existing one; None if the consumer already has it, and then nothing
    changes.
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
    """Stores the decoded message of a raw record in the transaction that marks the raw record delivered."""
    yield from complete(claim, idle_timeout).start()
    stored = yield from publish([message], fanout).start()
    yield from _add_deliveries([message], stored)
    return stored[0]


@operation
def record_handled(consumer: str, source: str, keys: Sequence[str], by_delivery: UUID) -> Steps[None]:
    """Records keys as handled in the caller's transaction. For a key that was handled before, the database raises and
    rolls back that transaction."""
    for key in sorted(set(keys)):
        yield record_key(consumer, source, key, by_delivery)


@operation
def forget_handled(consumers: Sequence[str], older_than: timedelta) -> Steps[bool]:
    """Removes a batch of keys that these consumers handled before `older_than`; True if there may be more."""
    values = {"consumers": list(consumers), "older_than": older_than}
    return len((yield Query("forget_handled", values, limit=_BATCH))) == _BATCH


@operation(reads=True)
def look_up(consumer: str, message: NewMessage) -> Steps[KnownRecord]:
    """Whether the consumer has handled this key, according to the inbox, or has a delivery of it.

    Raises `KeyConflict` if a message with different content is stored under the key.
    """
    handled = yield Query("was_handled", {"consumer": consumer, "source": message.source, "key": message.key})
    stored = yield from find_first([message])
    if not stored:
        return KnownRecord(bool(handled), None)
    message_id = stored[message.id].id
    delivered = yield Query("claim_states", {"ids": [delivery_id(message_id, consumer)]})
    return KnownRecord(bool(handled or delivered), message_id)


@operation(reads=True)
def readiness(consumer: str, queue: str, limit: int) -> Steps[IntakeReadiness]:
    """Whether the consumer or its queue is paused or blocked, and its waiting deliveries, counted up to `limit`."""
    ((held, backlog),) = yield Query("readiness", {"consumer": consumer, "queue": queue}, limit=limit)
    return IntakeReadiness(bool(held), int(backlog))


@operation(single=True)
def report_intake(
    consumer: str, source: str, *, direct: bool, waiting: int | None, unacknowledged: int | None, problem: str | None
) -> Steps[None]:
    """Records the state of an intake, for operators."""
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
    """The last reported state of each intake, by consumer."""
    return [_read_report(row) for row in (yield Query("intakes"))]


_read_report = row_reader(IntakeReport)


@operation
def forget_intake(consumer: str) -> Steps[tuple[str, ...]]:
    """Removes the reports of a consumer's intakes; returns their sources. A worker that still reads reports again."""
    return tuple(str(source) for (source,) in (yield Query("forget_intake", {"consumer": consumer})))


def _add_deliveries(messages: Sequence[NewMessage], stored: Sequence[Published]) -> Steps[list[UUID]]:
    """Adds the missing deliveries of messages that were stored before; returns the added deliveries."""
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
