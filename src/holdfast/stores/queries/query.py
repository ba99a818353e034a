"""Queries for deliveries, messages and runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import orjson

from holdfast.core.delivery import Delivery, Status, read_history
from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import delivery_range
from holdfast.core.message import Message
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.messages.fanout import SubscriptionRow
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import json_or, row_reader

MAX_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter for deliveries, used by list, replay and discard. All given conditions apply.

    `type` is a type, or a prefix such as `order.*`. `error_type` is the name of an exception, with or without
    its module. `group` is an error fingerprint. `since` and `until` compare the time when
    a delivery ended, or its creation time if it has not ended. `dead`: dead letters, which are failed and not
    discarded. `replayed`: deliveries that were replayed as dead letters, in any current state.
    """

    ids: tuple[UUID, ...] | None = None
    statuses: tuple[Status, ...] = ()
    dead: bool = False
    replayed: bool = False
    discarded: bool | None = None
    consumers: tuple[str, ...] = ()
    queue: str | None = None
    type: str | None = None
    error_type: str | None = None
    group: str | None = None
    message_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def only_failed(self) -> bool:
        """Whether only failed deliveries match; their rows contain the type of the message."""
        return self.dead or self.discarded is True or self.statuses == (Status.FAILED,)


@dataclass(frozen=True, slots=True)
class DeliverySummary:
    """A delivery with the type, source and key of its message."""

    delivery: Delivery
    type: str
    source: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """The append-only record of one attempt. `detail` is what its handler reported in addition to the outcome."""

    attempt: int
    fence: int
    outcome: str
    error_type: str | None
    error: str | None
    trace: str | None
    worker: str
    started_at: datetime | None
    completed_at: datetime
    detail: Mapping[str, object] | None = None
    generation: int | None = None
    """The generation of the worker; None for an expired lease and for old records."""


read_run = row_reader(Run, detail=json_or(None))
read_message = row_reader(Message, headers=orjson.loads)
_delivery = row_reader(Delivery, failure_history=lambda text: () if text is None else read_history(orjson.loads(text)))


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters of one consumer with the same fingerprint.

    The generations are those of the workers of the first and the newest failing run, None if unknown. `frame` is the
    failing line of application code, as `file:line in function`.
    """

    fingerprint: str | None
    consumer: str
    error_type: str | None
    count: BoundedCount
    first_failed_at: datetime | None
    last_failed_at: datetime | None
    first_generation: int | None
    last_generation: int | None
    example: UUID
    last_error: str | None
    frame: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """The deliveries of a queue and consumer in one state, and the oldest of them, at the database's time `now`."""

    queue: str
    consumer: str
    state: str
    count: BoundedCount
    oldest_at: datetime | None
    now: datetime


@operation(reads=True)
def deliveries(wanted: Filter, limit: int = 50, before: UUID | None = None) -> Steps[list[DeliverySummary]]:
    """A page of deliveries, newest first; pass the last id as `before` for the next page."""
    where, values = conditions(wanted)
    if before is not None:
        where, values = (*where, "where_before"), {**values, "before": before}
    rows = yield Query("list_deliveries", values, slots=(("where", where),), limit=page_size(limit))
    return [read_summary(row) for row in rows]


@operation(reads=True)
def following_deliveries(wanted: Filter, after: UUID, limit: int = MAX_PAGE) -> Steps[list[DeliverySummary]]:
    """The deliveries whose id follows `after`, oldest first. It reads a range of the primary key."""
    where, values = conditions(wanted)
    query = Query("following_deliveries", {**values, "after": after}, slots=(("where", where),), limit=page_size(limit))
    return [read_summary(row) for row in (yield query)]


@operation(reads=True)
def recent_runs(since: datetime, limit: int = MAX_PAGE) -> Steps[list[tuple[UUID, datetime]]]:
    """The deliveries with a run that was recorded since this time, and when, oldest first."""
    rows = yield Query("recent_runs", {"since": since}, limit=page_size(limit))
    return [(as_uuid(id), aware_time(at)) for id, at in rows]


@operation(reads=True)
def deliveries_of(message_id: UUID) -> Steps[list[DeliverySummary]]:
    """All deliveries of one message, by consumer."""
    low, high = delivery_range(message_id)
    rows = yield Query("message_deliveries", {"message_id": message_id, "low": low, "high": high})
    return [read_summary(row) for row in rows]


@operation(reads=True)
def messages(
    *,
    id: UUID | None = None,
    type: str | None = None,
    source: str | None = None,
    key: str | None = None,
    limit: int = 50,
    before: UUID | None = None,
) -> Steps[list[Message]]:
    """A page of messages, newest first; pass the last id as `before` for the next. `type` may be a prefix (`a.*`)."""
    given = {"message_id": id, "type": type, "source": source, "key": key, "before": before}
    fragments = {"message_id": "id", "type": "type", "source": "source", "key": "key", "before": "before"}
    values = {name: value for name, value in given.items() if value is not None}
    where = tuple(f"where_message_{fragments[name]}" for name in values)
    if type is not None and type.endswith(".*"):
        values["type_prefix"] = type[:-1]
        where = tuple("where_type_below" if name == "where_message_type" else name for name in where)
    rows = yield Query("list_messages", values, slots=(("where", where),), limit=page_size(limit))
    return [read_message(row) for row in rows]


@operation(reads=True)
def runs(delivery_id: UUID) -> Steps[list[Run]]:
    """The recorded attempts of a delivery, in order."""
    rows = yield Query("runs", {"delivery_id": delivery_id})
    return [read_run(row) for row in rows]


@operation(reads=True)
def next_due_in(consumers: Sequence[str], queues: Sequence[str] | None = None) -> Steps[timedelta | None]:
    """The time until a delivery of these consumers can be claimed or rescued; None without unfinished deliveries."""
    values = {"consumers": list(consumers), "queues": None if queues is None else list(queues)}
    ((next_at, now),) = yield Query("next_due_in", values)
    return None if next_at is None else aware_time(next_at) - aware_time(now)


@operation(reads=True)
def clock() -> Steps[datetime]:
    """The time of the database."""
    rows = yield Query("clock")
    return aware_time(rows[0][0])


def page_size(limit: int) -> int:
    """The limit, if a page may be that long."""
    if not 1 <= limit <= MAX_PAGE:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MAX_PAGE} items, read the next page for more")
    return limit


def conditions(wanted: Filter) -> tuple[tuple[str, ...], dict[str, object]]:
    """The fragments and values for the `{where}` slot of a statement."""
    where: list[str] = []
    values: dict[str, object] = {}

    def add(fragment: str, **given: object) -> None:
        where.append(fragment)
        values.update(given)

    if wanted.ids is not None:
        add("where_ids", ids=list(wanted.ids))
    if wanted.dead:
        # The status is a literal, here and below, so that the planner can use a partial index.
        add("where_failed")
        add("where_not_discarded")
    if wanted.replayed:
        add("where_replayed")
    if len(wanted.statuses) == 1:
        add(f"where_{wanted.statuses[0].value}")
    elif wanted.statuses:
        add("where_status", statuses=[status.value for status in wanted.statuses])
    if wanted.discarded is not None:
        add("where_discarded" if wanted.discarded else "where_not_discarded")
    if wanted.dead and len(wanted.consumers) == 1:
        # Equality, so that the index by consumer returns rows in the order of ids.
        add("where_consumer", consumer=wanted.consumers[0])
    elif wanted.consumers:
        add("where_consumers", consumers=list(wanted.consumers))
    if wanted.error_type is not None:
        # A built-in error is stored without its module.
        add("where_error_type", error_type=wanted.error_type.removeprefix("builtins."))
    for name in ("queue", "group", "since", "until"):
        if (value := getattr(wanted, name)) is not None:
            add(f"where_{name}", **{name: value})
    if wanted.type is not None:
        kind = "where_failed_type" if wanted.only_failed else "where_type"
        if wanted.type.endswith(".*"):
            add(f"{kind}_below", type_prefix=wanted.type[:-1])
        else:
            add(kind, type=wanted.type)
    if wanted.message_id is not None:
        low, high = delivery_range(wanted.message_id)
        add("where_message", message_id=wanted.message_id, low=low, high=high)
    return tuple(where), values


def read_summary(row: Sequence[object]) -> DeliverySummary:
    *columns, type, source, key = row
    return DeliverySummary(_delivery(columns), str(type), str(source), None if key is None else str(key))


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription in the store; a retired one gets no new deliveries."""

    pattern: str
    consumer: str
    active: bool


@operation(reads=True)
def paused_queues() -> Steps[dict[str, datetime]]:
    """The paused queues and the time of their pause."""
    rows = yield Query("queues")
    return {str(name): at for name, paused in rows if (at := optional_time(paused)) is not None}


@operation(reads=True)
def subscriptions() -> Steps[list[SubscriptionRecord]]:
    """All subscriptions, also retired ones, by consumer and pattern."""
    rows = yield Query("subscriptions")
    found = [
        SubscriptionRecord(row.pattern, row.consumer, bool(row.active)) for row in map(SubscriptionRow._make, rows)
    ]
    return sorted(found, key=lambda one: (one.consumer, one.pattern))


@operation(reads=True)
def messages_with(ids: Sequence[UUID]) -> Steps[dict[UUID, Message]]:
    """The messages with these ids; unknown and pruned ones are omitted."""
    found = [read_message(row) for row in (yield Query("find_messages", {"ids": list(ids)}))]
    return {message.id: message for message in found}


@operation(reads=True)
def prunable_messages(ceiling: UUID, older_than: timedelta, *, discarded: bool = False) -> Steps[int]:
    """The number of messages that pruning would remove after the deliveries."""
    slots = (("unless", ("unless_set_aside",) if discarded else ()),)
    rows = yield Query("prunable_messages", {"ceiling": ceiling, "older_than": older_than}, slots=slots)
    return int(rows[0][0])


@operation(reads=True)
def first_trace(delivery_id: UUID) -> Steps[str | None]:
    """The traceparent of the first recorded run of a delivery, if any."""
    rows = yield Query("first_trace", {"delivery_id": delivery_id})
    return None if not rows or rows[0][0] is None else str(rows[0][0])
