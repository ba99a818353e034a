"""Publishing: a message and its deliveries, written in one transaction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.core.errors import ConfigurationError, KeyConflict, StoreBusy
from holdfast.core.events import payload
from holdfast.core.identity import delivery_id, delivery_ids
from holdfast.core.message import NewMessage
from holdfast.stores.dialect import as_uuid
from holdfast.stores.errors import WRITE_LOCKED
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.fanout import Fanout, Subscriptions, read_subscriptions
from holdfast.stores.messages.flow import DeliveryKey, FlowKeys, adopt, flow_keys
from holdfast.stores.messages.rows import (
    DELIVERY,
    EVERY_EPOCH,
    FANNED_OUT,
    KEYED,
    MESSAGE,
    Override,
    addressed,
    delivery_rows,
    fanned_out,
    header_text,
    is_due_now,
    is_unique,
    message_row,
    only_delivery,
    policy_text,
    retry_override,
    streamed_deliveries,
    streamed_messages,
)
from holdfast.stores.operation import Columns, Operation, Query, Rows, Steps, columns, operation

# PostgreSQL chooses slow query plans for large batches with conflict handling.
_CHUNK = 1000
_KEYED_CHUNK = 100
_STREAMED = 100
LAZY = _CHUNK + 1
"""A batch of at least this many messages is created while it is streamed; for fewer, one statement is faster."""
_ALIKE_BYTES = 1_000_000

_FLOW_DELIVERY = (*DELIVERY, "flow_key", "ordered")
_NO_KEY: tuple[str | None, bool] = None, False
_ABSENT = (*FANNED_OUT, "max_attempts", "retry")

LOCK_REGISTRY = Query("lock_registry", raises=(WRITE_LOCKED, lambda: StoreBusy(cause=WRITE_LOCKED.code)))
"""On SQLite the first write of a transaction, which fails if the transaction cannot write."""


class Published(NamedTuple):
    """A stored message, and whether this call created it."""

    id: UUID
    created: bool


class LazyMessages(NamedTuple):
    """Events without a key that are due now. They are created in parts while they are streamed, so the server does not
    wait."""

    make: Callable[[], Iterator[Sequence[NewMessage]]]


Messages = Sequence[NewMessage] | LazyMessages


@operation
def publish(messages: Messages, fanout: Fanout, *, own: bool = False) -> Steps[list[Published]]:
    """Stores each message with its deliveries unless its key exists; returns the results in the given order.

    A key with different content raises `KeyConflict`. Keys are inserted in sorted order, so that two publishers of the
    same keys do not deadlock. `own` means the store's connection: only there many messages can be streamed.
    """
    stored: dict[UUID, Published] = {}
    subscriptions = fanout.current
    if subscriptions is None:
        subscriptions = fanout.remember(read_subscriptions((yield Query("subscriptions"))))
    keys = flow_keys(fanout, subscriptions)
    if isinstance(messages, LazyMessages) and keys is not None:
        # The key of a delivery is written with it, so these are not streamed.
        messages = list(chain.from_iterable(messages.make()))
    if isinstance(messages, LazyMessages):
        made: list[Sequence[NewMessage]] = []
        newest = yield from _stream(_noted(messages.make(), made), made, subscriptions)
        yield from _reconcile_fanout(chain.from_iterable(made), subscriptions, newest, fanout)
        return [published for part in made for published in _created(part)]
    newest = subscriptions.epoch
    if (alone := _single(messages, subscriptions, keys)) and (
        published := (yield from _publish_single(alone, messages))
    ):
        return published
    if isinstance(messages, AlikeMessages) and keys is None and not is_unique(messages.like):
        newest = yield from _publish_plain(messages, subscriptions, own)
        yield from _reconcile_fanout(messages, subscriptions, newest, fanout)
        return _created(messages)
    plain = [m for m in messages if m.key is None and not is_unique(m)]
    keyed = sorted((m for m in messages if m.key is not None), key=lambda m: (m.key_scope or m.source, m.key))
    if keys is not None:
        keyed_flow = [m for m in plain if keys.applies(m)]
        plain = [m for m in plain if not keys.applies(m)]
        for chunk in _chunks(keyed_flow, _CHUNK):
            rows = yield _insert_flow(chunk, subscriptions, keys)
            newest = max(newest, rows[0][0])
            stored.update((m.id, Published(m.id, True)) for m in chunk)
    newest = max(newest, (yield from _publish_plain(plain, subscriptions, own)))
    stored.update((m.id, Published(m.id, True)) for m in plain)
    for chunk in _chunks(keyed, _KEYED_CHUNK):
        # Repeat for keys whose first message was pruned between the two queries.
        while missing := [m for m in chunk if m.id not in stored]:
            rows = yield _insert("publish_keyed", KEYED, missing, subscriptions)
            created = {as_uuid(row[0]) for row in rows}
            newest = max([newest, *(row[1] for row in rows)])
            stored.update((id, Published(id, True)) for id in created)
            if late := [m for m in missing if m.id not in created]:
                stored.update((yield from find_first(late)))
    for message in sorted(filter(is_unique, messages), key=_unique_key):
        stored[message.id] = yield from _publish_unique(message)
    if keys is not None and (unadopted := _late_keys(messages, stored, keys)):
        yield adopt(unadopted)
        if any(key.ordered for key in unadopted) and (places := _places(messages, stored, keys)):
            yield Query("place_deliveries", batches={"deliveries": columns(("delivery_id", "place"), places)})
    yield from _reconcile_fanout([m for m in messages if stored[m.id].created], subscriptions, newest, fanout)
    return [stored[m.id] for m in messages]


def _publish_plain(plain: Sequence[NewMessage], subscriptions: Subscriptions, own: bool) -> Steps[int]:
    """Stores messages without a key in their order; returns the newest epoch."""
    newest = subscriptions.epoch
    inserts = [_alike(chunk, subscriptions) for chunk in _chunks(plain, _CHUNK)]
    if own and len(plain) >= _STREAMED and None in inserts:
        due = [m for m in plain if is_due_now(m)]
        streamed = [plain if len(due) == len(plain) else due]
        newest = yield from _stream(streamed, streamed, subscriptions)
        plain, inserts = [m for m in plain if not is_due_now(m)], []
    for chunk, insert in zip_longest(_chunks(plain, _CHUNK), inserts):
        ((epoch,),) = yield insert or _insert("publish", MESSAGE, chunk, subscriptions)
        newest = max(newest, epoch)
    return newest


def publish_single(messages: Messages, fanout: Fanout) -> Operation[list[Published] | None] | None:
    """`publish` by a single statement, which needs no explicit transaction: messages that differ only in their payload,
    to one consumer.

    None if the messages do not qualify. The operation returns None if the subscriptions were outdated; then nothing
    was stored.
    """
    subscriptions = fanout.current
    if isinstance(messages, LazyMessages) or subscriptions is None or not 0 < len(messages) <= _CHUNK:
        return None
    keys = flow_keys(fanout, subscriptions)
    query = _single(messages, subscriptions, keys)
    if query is None and keys is None:
        query = _alike(messages, subscriptions, guarded=True)
    return None if query is None else Operation(lambda: _publish_single(query, messages), single=True, publishes=True)


@operation
def take_write_lock() -> Steps[None]:
    """SQLite: takes the write lock in the caller's transaction before its first read.

    A transaction that reads first fails at its first write if another connection has written since or is writing.
    """
    yield LOCK_REGISTRY


def _reconcile_fanout(
    created: Iterable[NewMessage], subscriptions: Subscriptions, newest: int, fanout: Fanout
) -> Steps[None]:
    """Corrects deliveries that were written from outdated subscriptions.

    It runs in the same transaction, before another transaction can see them. Otherwise deliveries for a retired
    consumer or a queue without workers would wait forever.
    """
    if newest == subscriptions.epoch:
        return
    created = list(created)
    fresh = fanout.remember(read_subscriptions((yield Query("subscriptions"))))
    written, right = set(fanned_out(created, subscriptions)), set(fanned_out(created, fresh))
    if wrong := [row[0] for row in written - right]:
        yield Query("withdraw_deliveries", {"ids": wrong})
    if absent := sorted(right - written, key=lambda row: str(row[0])):
        yield insert_absent(absent, {m.id: retry_override(m) for m in created if m.retry is not None})


def insert_absent(rows: Iterable[tuple[object, ...]], overrides: Mapping[object, Override] | None = None) -> Query:
    """Adds missing deliveries: rows of `FANNED_OUT`, and the retry settings that messages override."""
    batch = [(*row, *(overrides or {}).get(row[1], (None, None))) for row in rows]
    return Query("insert_deliveries", batches={"deliveries": columns(_ABSENT, batch)})


def _single(messages: Sequence[NewMessage], subscriptions: Subscriptions, keys: FlowKeys | None) -> Query | None:
    """The query that stores one message without a key and its only delivery; None for any other case."""
    if len(messages) != 1:
        return None
    message = messages[0]
    if message.key is not None or (message.addressed and is_unique(message)):
        return None
    if keys is not None and keys.applies(message):
        return None
    delivery = only_delivery(message, subscriptions)
    if delivery is None:
        return None
    values = (*message_row(message, subscriptions.epoch)[: len(MESSAGE)], *delivery)
    return Query("publish_one", dict(zip((*MESSAGE, *DELIVERY), values, strict=True)))


def _publish_single(query: Query, messages: Sequence[NewMessage]) -> Steps[list[Published] | None]:
    ((newest,),) = yield query
    known: Any = query.values["sub_epoch"]
    return None if newest > known else _created(messages)


def _created(messages: Sequence[NewMessage]) -> list[Published]:
    ids = messages.ids if isinstance(messages, AlikeMessages) else [m.id for m in messages]
    return [Published(id, True) for id in ids]


def _alike(messages: Sequence[NewMessage], subscriptions: Subscriptions, *, guarded: bool = False) -> Query | None:
    """The query that stores messages which differ only in their payload, each with a delivery to the same consumer.

    If it is `guarded`, it stores nothing if there is a newer subscription. None for any other messages, and for more than
    `_ALIKE_BYTES` of payloads, where the number of parameters does not matter.
    """
    first = messages[0]
    if first.key is not None or is_unique(first) or not is_due_now(first):
        return None
    alike = AlikeMessages.of(messages)
    if alike is None or sum(map(len, alike.payloads)) > _ALIKE_BYTES:
        return None
    delivery = only_delivery(first, subscriptions)
    if delivery is None:
        return None
    _, _, consumer, queue, priority, generation, *_ = delivery
    epoch = EVERY_EPOCH if first.addressed else subscriptions.epoch
    batch: Columns = {
        "id": alike.ids,
        "delivery_id": delivery_ids(alike.ids, str(consumer)),
        "payload": alike.payloads,
    }
    values = {
        "type": first.type,
        "source": first.source,
        "headers": header_text(first),
        "generation": first.generation,
        "sub_epoch": epoch,
        "known": epoch if guarded else EVERY_EPOCH,
        "consumer": consumer,
        "queue": queue,
        "priority": priority,
        "delivery_generation": generation,
    }
    return Query("publish_alike", values, {"messages": batch})


def _insert(name: str, names: Sequence[str], messages: Sequence[NewMessage], subscriptions: Subscriptions) -> Query:
    rows = [message_row(m, subscriptions.epoch)[: len(names)] for m in messages]
    deliveries = delivery_rows(messages, subscriptions)
    batches = {"messages": columns(names, rows), "deliveries": columns(DELIVERY, deliveries)}
    return Query(name, batches=batches)


def _insert_flow(messages: Sequence[NewMessage], subscriptions: Subscriptions, keys: FlowKeys) -> Query:
    """`_insert` for messages whose deliveries have flow keys."""
    rows = [message_row(m, subscriptions.epoch)[: len(MESSAGE)] for m in messages]
    found: dict[object, DeliveryKey] = {key.delivery_id: key for m in messages for key in keys.of(m)}
    deliveries = [_flow_row(row, found.get(row[0])) for row in delivery_rows(messages, subscriptions)]
    batches = {"messages": columns(MESSAGE, rows), "deliveries": columns(_FLOW_DELIVERY, deliveries)}
    return Query("publish_flow", batches=batches)


def _flow_row(row: tuple[object, ...], key: DeliveryKey | None) -> tuple[object, ...]:
    """A delivery with its key; with debounce it is due after the quiet time."""
    if key is None:
        return *row, *_NO_KEY
    delay = DELIVERY.index("delay")
    if key.delay is not None:
        row = *row[:delay], key.delay, *row[delay + 1 :]
    return *row, key.flow_key, key.ordered


def _late_keys(messages: Sequence[NewMessage], stored: Mapping[UUID, Published], keys: FlowKeys) -> list[DeliveryKey]:
    """The keys of messages with a key or a unique key: their deliveries are written without one."""
    late = [m for m in messages if (m.key is not None or is_unique(m)) and stored[m.id].created]
    return [key for m in late for key in keys.of(m)]


def _places(messages: Sequence[NewMessage], stored: Mapping[UUID, Published], keys: FlowKeys) -> list[tuple[UUID, int]]:
    """The new deliveries with an order, each with the index of its message; empty for one message."""
    created = [m for m in messages if stored[m.id].created]
    places = [(key.delivery_id, place) for place, m in enumerate(created) for key in keys.of(m) if key.ordered]
    return places if places and places[-1][1] > places[0][1] else []


def addressed_batches(messages: Sequence[NewMessage]) -> dict[str, Columns]:
    """The batches `messages` and `deliveries` of addressed messages, for a statement that stores more with them."""
    return {
        "messages": columns(KEYED, [message_row(m, EVERY_EPOCH) for m in messages]),
        "deliveries": columns(DELIVERY, addressed(messages)),
    }


def _stream(
    parts: Iterable[Sequence[NewMessage]], made: Sequence[Sequence[NewMessage]], subscriptions: Subscriptions
) -> Steps[int]:
    """Streams messages and their deliveries; returns the newest epoch. `made` are the messages after the first stream."""
    rows = (row for part in parts for row in streamed_messages(part, subscriptions.epoch))
    yield Query("load_messages", rows=rows)
    deliveries = (row for part in made for row in streamed_deliveries(part, subscriptions))
    yield Query("load_deliveries", rows=deliveries)
    ((newest,),) = yield Query("newest_epoch")
    return max(subscriptions.epoch, int(newest))


def _noted(parts: Iterator[Sequence[NewMessage]], made: list[Sequence[NewMessage]]) -> Iterator[Sequence[NewMessage]]:
    for part in parts:
        made.append(part)
        yield part


def find_first(messages: Sequence[NewMessage]) -> Steps[dict[UUID, Published]]:
    """The stored messages with the same keys, by the id of the new message; raises `KeyConflict` for different content."""
    keys = [(m.source, m.key, m.key_scope) for m in messages]
    rows = yield Query("find_keyed", batches={"keys": columns(("source", "key", "key_scope"), keys)})
    return dict(_first_ones(messages, rows))


def _first_ones(messages: Sequence[NewMessage], rows: Rows) -> Iterator[tuple[UUID, Published]]:
    # A key of the same job from any source wins over a key that only has the same source.
    first = {
        (source, key, scope): (as_uuid(id), type, text)
        for source, key, scope, _, id, type, text in sorted(rows, key=lambda row: bool(row[3]))
    }
    for m in messages:
        if (m.source, m.key, m.key_scope) not in first:
            continue
        id, type, text = first[m.source, m.key, m.key_scope]
        if type != m.type or not payload.same(str(text), m.payload):
            raise KeyConflict(m.source, str(m.key), id)
        yield m.id, Published(id, False)


def _publish_unique(message: NewMessage) -> Steps[Published]:
    (address,) = message.addressed
    if message.key is not None:
        raise ConfigurationError(
            f"message {message.id} for {address.consumer} has both key= and unique=; a key deduplicates permanently, "
            "unique only while the job is unfinished: pass one of them"
        )
    while True:
        rows = yield Query(
            "publish_unique",
            {
                "delivery_id": delivery_id(message.id, address.consumer),
                "message_id": message.id,
                "consumer": address.consumer,
                "queue": address.queue,
                "priority": address.priority,
                "generation": message.generation,
                "max_attempts": address.max_attempts,
                "delay": address.delay,
                "run_at": address.run_at,
                "retry": policy_text(address.retry),
                "unique_key": address.unique,
                "type": message.type,
                "source": message.source,
                "payload": message.payload,
                "headers": header_text(message),
                "occurred_at": message.occurred_at,
                "sub_epoch": EVERY_EPOCH,
            },
        )
        if rows:
            return Published(message.id, True)
        held = yield Query("find_unique", {"consumer": address.consumer, "unique_key": address.unique})
        if held:
            return Published(as_uuid(held[0][0]), False)
        # The job with this unique key finished between the two queries: try again.


def _unique_key(message: NewMessage) -> tuple[str, str]:
    (address,) = message.addressed
    return address.consumer, address.unique or ""


def _chunks(messages: Sequence[NewMessage], size: int) -> Iterator[Sequence[NewMessage]]:
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
