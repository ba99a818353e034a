"""The rows of messages and their deliveries, as a publish writes them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import orjson

from holdfast.core.identity import delivery_id, delivery_ids
from holdfast.core.message import TENANT_HEADER, NewMessage
from holdfast.core.retry import RetryPolicy
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.fanout import Subscriptions

# An addressed message gets the highest epoch, so that no subscription catches up on it.
EVERY_EPOCH = 2**63 - 1

MESSAGE = ("id", "type", "source", "payload", "headers", "generation", "occurred_at", "sub_epoch")
KEYED = (*MESSAGE, "key", "key_scope")
DELIVERY = (
    "delivery_id",
    "message_id",
    "consumer",
    "queue",
    "priority",
    "delivery_generation",
    "max_attempts",
    "delay",
    "run_at",
    "retry",
)
FANNED_OUT = DELIVERY[:6]

Override = tuple[int | None, str | None]


def message_row(m: NewMessage, epoch: int) -> tuple[object, ...]:
    """The values of a message for the columns `KEYED`."""
    known = EVERY_EPOCH if m.addressed else epoch
    return m.id, m.type, m.source, m.payload, header_text(m), m.generation, m.occurred_at, known, m.key, m.key_scope


def header_text(message: NewMessage) -> str:
    return orjson.dumps(message.headers).decode() if message.headers else "{}"


def is_due_now(message: NewMessage) -> bool:
    """Whether it occurs now, is due now and uses the retry policy of its consumer."""
    return (message.occurred_at, message.retry) == (None, None) and all(
        (a.max_attempts, a.delay, a.run_at, a.retry) == (None, None, None, None) for a in message.addressed
    )


def addressed(messages: Iterable[NewMessage]) -> Iterator[tuple[object, ...]]:
    for m in messages:
        for address in m.addressed:
            yield (
                delivery_id(m.id, address.consumer),
                m.id,
                address.consumer,
                address.queue,
                address.priority,
                m.generation,
                address.max_attempts,
                address.delay,
                address.run_at,
                policy_text(address.retry),
            )


def fanned_out(messages: Iterable[NewMessage], subscriptions: Subscriptions) -> Iterator[tuple[object, ...]]:
    """The deliveries of events: each subscriber without a tenant or with the tenant of the event gets one."""
    for m in messages:
        if m.addressed:
            continue
        for to in subscriptions.targets_of(m.type):
            if to.tenant is not None and to.tenant != m.headers.get(TENANT_HEADER):
                continue
            # Only workers from the consumer's first deploy on can run its deliveries.
            generation = max(m.generation, to.generation)
            yield delivery_id(m.id, to.consumer), m.id, to.consumer, to.queue, to.priority, generation


def streamed_messages(messages: Sequence[NewMessage], epoch: int) -> Iterable[tuple[object, ...]]:
    """The rows of messages without a key that occur now, for `load_messages`."""
    if not isinstance(messages, AlikeMessages):
        return (
            (m.id, m.type, m.source, m.payload, header_text(m), m.generation, EVERY_EPOCH if m.addressed else epoch)
            for m in messages
        )
    m = messages.like
    shared = header_text(m), m.generation, EVERY_EPOCH if m.addressed else epoch
    return zip(messages.ids, repeat(m.type), repeat(m.source), messages.payloads, *map(repeat, shared), strict=False)


def streamed_deliveries(messages: Sequence[NewMessage], subscriptions: Subscriptions) -> Iterable[tuple[object, ...]]:
    """The rows of the deliveries of messages that are due now, for `load_deliveries`."""
    if not isinstance(messages, AlikeMessages):
        rows = chain(addressed(messages), fanned_out(messages, subscriptions))
        return (row[: len(FANNED_OUT)] for row in rows)
    first = chain(addressed((messages.like,)), fanned_out((messages.like,), subscriptions))
    return (
        row
        for _, _, consumer, *shared in (row[: len(FANNED_OUT)] for row in first)
        for row in zip(
            delivery_ids(messages.ids, str(consumer)),
            messages.ids,
            repeat(consumer),
            *map(repeat, shared),
            strict=False,
        )
    )


def only_delivery(message: NewMessage, subscriptions: Subscriptions) -> tuple[object, ...] | None:
    """The row of a message's only delivery, for the columns `DELIVERY`; None if it has another number of deliveries."""
    if message.addressed:
        return next(addressed((message,))) if len(message.addressed) == 1 else None
    rows = list(fanned_out((message,), subscriptions))
    if len(rows) != 1:
        return None
    if message.retry is None:
        return *rows[0], None, None, None, None
    return *rows[0], message.retry.attempts, None, None, policy_text(message.retry)


def delivery_rows(messages: Sequence[NewMessage], subscriptions: Subscriptions) -> list[tuple[object, ...]]:
    rows = list(addressed(messages))
    for m in messages:
        attempts, policy = retry_override(m)
        rows += ((*row, attempts, None, None, policy) for row in fanned_out((m,), subscriptions))
    return rows


def retry_override(message: NewMessage) -> Override:
    """The attempts and the retry policy that an event overrides; None where those of the consumer apply."""
    return (None, None) if message.retry is None else (message.retry.attempts, policy_text(message.retry))


def is_unique(message: NewMessage) -> bool:
    return any(address.unique is not None for address in message.addressed)


def policy_text(retry: RetryPolicy | None) -> str | None:
    return None if retry is None else orjson.dumps(retry.to_json()).decode()
