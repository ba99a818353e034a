"""The registry of consumers and subscriptions, and the catch-up that gives new subscriptions missed messages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

import orjson

from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.events.pattern import check_pattern
from holdfast.core.identity import delivery_id
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE, check_priority
from holdfast.core.redaction.redact import Redaction
from holdfast.core.retry import RetryPolicy, stored_policy
from holdfast.core.values.names import check_name
from holdfast.stores.admin.redaction import declare
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.publish import LOCK_REGISTRY, insert_absent
from holdfast.stores.operation import Operation, Query, Row, Rows, Steps, columns, operation
from holdfast.stores.row import row_reader

_BATCH = 1000
_DECLARED = ("name", "queue", "priority", "max_attempts", "retry", "flow", "keep")
_SUBSCRIBED = ("pattern", "consumer", "from_start")
_DEFAULT = RetryPolicy.exponential()
_NO_QUEUES: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Declaration:
    """The settings of a consumer. Its policy is stored, so that any worker can decide for it."""

    name: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    retry: RetryPolicy = _DEFAULT
    flow: str | None = None
    """Its flow settings as JSON text: any worker can claim, and any publisher can find keys, according to them."""
    keep: float | None = None
    """How long its delivered rows are kept, in seconds; None for the retention of the store."""

    def __post_init__(self) -> None:
        check_name("consumer", self.name)
        check_name("queue", self.queue)
        check_priority(self.priority)


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """A consumer gets all events that match a pattern, from the first stored event or from now on."""

    pattern: str
    consumer: str
    from_start: bool = True

    def __post_init__(self) -> None:
        check_pattern(self.pattern)


class MissedMessageRow(NamedTuple):
    """A row of `catch_up_scan`: a message, and a consumer that still needs a delivery of it, if any."""

    tx: str
    position: int
    id: object
    generation: int
    consumer: str | None
    queue: str
    priority: int
    since: int


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in the store."""

    name: str
    queue: str
    priority: int
    retry: RetryPolicy
    generation: int
    registered_at: datetime
    paused_at: datetime | None
    blocked_until: datetime | None
    blocked_resource: str | None
    flow: str | None = None
    flow_override: str | None = None
    keep: float | None = None

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.name, self.queue, self.priority, self.retry, self.flow, self.keep)


@operation
def register(
    declarations: Sequence[Declaration],
    subscriptions: Sequence[EventSubscription],
    generation: int,
    secret: Collection[Redaction] = (),
    queues: Mapping[str, str | None] = _NO_QUEUES,
) -> Steps[bool]:
    """Declares consumers, their subscriptions and secret fields; True if a consumer or subscription changed.

    `queues` are the flow settings of queues as JSON text, None for a queue without any. Idempotent. Publishers with an open transaction do not know a new subscription; `catch_up` adds deliveries of the
    messages that they wrote.
    """
    if secret:
        yield from declare(secret).start()
    if queues:
        yield from _declare_queues(queues)
    names = sorted({one.name for one in declarations} | {one.consumer for one in subscriptions})
    if not _differences(declarations, subscriptions, *(yield from _registered(names))):
        return False
    yield LOCK_REGISTRY
    known, active = yield from _registered(names)
    changed, added = _differences(declarations, subscriptions, known, active) or ([], [])
    epoch = yield from registry_epoch()
    if changed:
        # In one statement: thousands of round trips made the start of a worker slow.
        yield Query("save_consumers", {"generation": generation}, {"consumers": columns(_DECLARED, map(_row, changed))})
    if renewed := [declaration.name for declaration in changed if declaration.name in known]:
        yield Query("renew_epochs", {"consumers": renewed, "epoch": epoch + 1})
    if added:
        yield save_subscriptions(added, epoch + 1)
    return bool(changed or added)


@operation
def without_queue_flow(registration: Operation[bool], refusals: Mapping[str, str]) -> Steps[bool]:
    """A registration that is refused, with the text in `refusals`, if one of these queues has a stored limit or rate.

    Another app may have declared it.
    """
    for name, flow in (yield Query("queue_flows", {"names": sorted(refusals)})):
        if flow is not None:
            raise ConfigurationError(refusals[str(name)])
    return (yield from registration.start())


def _declare_queues(queues: Mapping[str, str | None]) -> Steps[None]:
    rows = yield Query("queue_flows", {"names": sorted(queues)})
    stored = {str(row[0]): row[1] for row in rows}
    for name, flow in sorted(queues.items()):
        if stored.get(name) != flow:
            yield Query("save_queue_flow", {"name": name, "flow": flow})


def save_subscriptions(subscriptions: Sequence[EventSubscription], epoch: int) -> Query:
    """Activates subscriptions. The caller holds the lock of the registry."""
    rows = ((one.pattern, one.consumer, one.from_start) for one in subscriptions)
    return Query("save_subscriptions", {"epoch": epoch}, {"subscriptions": columns(_SUBSCRIBED, rows)})


@operation
def retire(pattern: str, consumer: str) -> Steps[None]:
    """Ends a subscription: it gets no new deliveries; existing ones still run."""
    yield LOCK_REGISTRY
    epoch = yield from registry_epoch()
    if not (yield Query("retire_subscription", {"pattern": pattern, "consumer": consumer, "epoch": epoch + 1})):
        raise NotFound(
            "active subscription", f"{pattern} -> {consumer}", "`holdfast consumers list` shows the active ones"
        )


@operation(reads=True)
def consumers() -> Steps[list[Consumer]]:
    """All consumers that have ever registered."""
    return [_consumer(row) for row in (yield Query("consumers"))]


@operation(reads=True)
def find_consumer(name: str) -> Steps[Consumer | None]:
    """One consumer, found by its name, because a store can have 100,000."""
    rows = yield Query("named_consumers", {"names": [name]})
    return _consumer(rows[0]) if rows else None


@operation
def catch_up() -> Steps[tuple[int, bool]]:
    """Adds deliveries for a batch of messages whose publishers did not know a subscription; returns their number and
    whether more messages wait.

    Safe to run in several processes at once: existing deliveries are not inserted again, and a mark only moves if it
    is unchanged since it was read.
    """
    added, more = 0, False
    for mark_tx, mark_position, epoch, horizon in (yield Query("catch_up_marks")):
        group = {"mark_tx": mark_tx, "mark_position": mark_position, "epoch": epoch}
        rows = yield Query("catch_up_scan", {**group, "horizon": horizon}, limit=_BATCH)
        late = [MissedMessageRow._make(row) for row in rows]
        # Sorted, so that two processes that catch up at the same time do not deadlock.
        deliveries = sorted(
            (_late_delivery(row) for row in late if row.consumer is not None), key=lambda row: str(row[0])
        )
        if deliveries:
            added += len((yield insert_absent(deliveries)))
        scanned = {(row.tx, row.position) for row in late}
        # After a full batch there may be more below the horizon; a short one was complete.
        new_tx, new_position = (late[-1].tx, late[-1].position) if len(scanned) >= _BATCH else (horizon, 0)
        more = more or len(scanned) >= _BATCH
        yield Query("catch_up_advance", {**group, "new_tx": new_tx, "new_position": new_position})
    return added, more


def registry_epoch() -> Steps[int]:
    """The newest epoch; a change under the lock of the registry gets the next one."""
    ((epoch,),) = yield Query("newest_epoch")
    return int(epoch)


def _late_delivery(row: MissedMessageRow) -> tuple[object, ...]:
    message, generation = as_uuid(row.id), max(row.generation, row.since)
    return delivery_id(message, str(row.consumer)), message, row.consumer, row.queue, row.priority, generation


def _registered(names: Sequence[str]) -> Steps[tuple[dict[str, Consumer], set[tuple[str, str]]]]:
    """These consumers and their active subscriptions. A store can have 100,000 others, one for each webhook endpoint."""
    known = {consumer.name: consumer for consumer in map(_consumer, (yield Query("named_consumers", {"names": names})))}
    rows: Rows = yield Query("active_subscriptions", {"names": names})
    return known, {(str(pattern), str(consumer)) for pattern, consumer in rows}


def _differences(
    declarations: Sequence[Declaration],
    subscriptions: Sequence[EventSubscription],
    known: dict[str, Consumer],
    active: set[tuple[str, str]],
) -> tuple[list[Declaration], list[EventSubscription]] | None:
    # Each once: one statement cannot write a row twice.
    changed = {d.name: d for d in declarations if d.name not in known or known[d.name].declaration != d}
    added = {(s.pattern, s.consumer): s for s in subscriptions if (s.pattern, s.consumer) not in active}
    return (list(changed.values()), list(added.values())) if changed or added else None


def _row(declaration: Declaration) -> tuple[object, ...]:
    retry = orjson.dumps(declaration.retry.to_json()).decode()
    return (
        declaration.name,
        declaration.queue,
        declaration.priority,
        declaration.retry.attempts,
        retry,
        declaration.flow,
        # As text: an array of a statement contains no floats.
        None if declaration.keep is None else str(declaration.keep),
    )


def _consumer(row: Row) -> Consumer:
    name, queue, priority, _max_attempts, *rest = row
    return _read_consumer((name, queue, priority, *rest))


_read_consumer = row_reader(Consumer, retry=stored_policy)
