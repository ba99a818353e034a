"""The rows of messages and their deliveries, as a publish writes them."""

from collections.abc import Iterable, Iterator, Sequence

import orjson

from holdfast.core.identity import delivery_id
from holdfast.core.message import TENANT_HEADER, NewMessage
from holdfast.core.retry import RetryPolicy
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
