"""Messages: the stored, immutable form, and the form in which a producer passes them to a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import MAX_BYTES, check_headers, decode, encode
from holdfast.core.key import check_key
from holdfast.core.retry import RetryPolicy, check_attempts, check_policy
from holdfast.core.values.duration import to_timedelta
from holdfast.core.values.names import check_name, check_type

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 1
LOWEST_PRIORITY = 3
MAX_GENERATION = 2**31 - 1
SOURCE_MESSAGE_ID = "source_message_id"
"""The header with the broker's id of the record, if the key of the message is another value."""
SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET = "source_stream", "source_partition", "source_offset"
"""The headers of an ingested event with the position of its record in the broker."""
SOURCE_EVENT_ID = "source_event_id"
"""The header of an ingested event with the `source#id` of the CloudEvent, if the key of the message is another value."""
PROVENANCE = frozenset({SOURCE_MESSAGE_ID, SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_EVENT_ID})

TENANT_HEADER = "tenant"
"""The header with the tenant of an event; a webhook endpoint with a tenant gets only the events of that tenant."""

RAW_TYPE = "holdfast.raw"
"""The type of a message that contains an unchanged broker record that could not be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored, immutable message. `payload` is JSON text, `position` its position in the log."""

    id: UUID
    type: str
    source: str
    key: str | None
    payload: str
    headers: Mapping[str, str]
    generation: int
    occurred_at: datetime
    position: int | None = None

    @property
    def data(self) -> Any:
        """The decoded payload."""
        return decode(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A consumer that a message is addressed to by name, even before it has registered.

    `delay` is added to the database's clock, `run_at` is absolute; at most one of them is set. `max_attempts` and
    `retry` override the values of the consumer. While a delivery with the same `unique` is unfinished, no second one
    is created.
    """

    consumer: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    retry: RetryPolicy | None = None
    unique: str | None = None

    def __post_init__(self) -> None:
        check_name("consumer", self.consumer)
        check_name("queue", self.queue)
        check_priority(self.priority)
        if self.max_attempts is not None:
            check_attempts(self.max_attempts, name="max_attempts")
        if self.retry is not None:
            check_policy("retry", self.retry)
            if self.max_attempts is None:
                # Stored in a separate column, so that readers of the row do not have to parse the policy.
                object.__setattr__(self, "max_attempts", self.retry.attempts)
        if self.delay is not None:
            object.__setattr__(self, "delay", to_timedelta(self.delay, name="delay"))
        if self.run_at is not None:
            object.__setattr__(self, "run_at", aware("run_at", self.run_at))
        if self.delay is not None and self.run_at is not None:
            raise ConfigurationError(f"{self.consumer} was given both delay and run_at; give one of them")
        if self.unique is not None:
            check_key(self.unique)


class NewMessage(NamedTuple):
    """A validated message for a store; create it with `new_message`.

    Without `occurred_at` the database's clock sets it.
    """

    id: UUID
    type: str
    source: str
    payload: str
    key: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    generation: int = 0
    occurred_at: datetime | None = None
    addressed: tuple[Address, ...] = ()
    key_scope: str | None = None
    """The scope in which the key is unique instead of the source: the type of a job or command, for all producers."""
    retry: RetryPolicy | None = None
    """Overrides the retry policies of the subscribed consumers."""


def new_message(
    *,
    id: UUID,
    type: str,
    source: str,
    payload: object,
    key: str | None = None,
    headers: Mapping[str, object] | None = None,
    generation: int = 0,
    occurred_at: datetime | None = None,
    addressed: Iterable[Address] = (),
    retry: RetryPolicy | None = None,
    max_bytes: int = MAX_BYTES,
    key_scope: str | None = None,
) -> NewMessage:
    """Return a message that every store accepts, or raise a typed error before anything is written.

    `payload` is any value that `encode` accepts, not JSON text. Each consumer may be addressed once.
    """
    addresses = tuple(addressed)
    if addresses and len({address.consumer for address in addresses}) < len(addresses):
        raise ConfigurationError(f"message {id} addresses a consumer twice; address each consumer once")
    return NewMessage(
        id,
        check_type(type),
        check_name("source", source),
        encode(payload, max_bytes=max_bytes),
        None if key is None else check_key(key),
        check_headers(headers) if headers else {},
        check_generation(generation),
        None if occurred_at is None else aware("occurred_at", occurred_at),
        addresses,
        None if key is None else key_scope,
        None if retry is None else check_policy("retry", retry),
    )


def check_priority(value: int) -> int:
    """Return `value` if it is a priority, 0 (first) to 3, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LOWEST_PRIORITY:
        raise ConfigurationError(f"priority is {value!r}; give 0 (first) to {LOWEST_PRIORITY}")
    return value


def check_generation(value: int) -> int:
    """Return `value` if it is a generation, a whole number from 0, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GENERATION:
        raise ConfigurationError(f"generation is {value!r}; give a whole number from 0 to {MAX_GENERATION:,}")
    return value


def aware(name: str, value: datetime) -> datetime:
    """Return `value` in UTC, or raise `ConfigurationError` if it has no time zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigurationError(f"{name} is {value!r}; give a datetime with a time zone, such as datetime.now(UTC)")
    return value.astimezone(UTC)
