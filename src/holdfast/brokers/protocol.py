"""The interface of a broker adapter: a source with subscriptions, and a target with confirmed sends.

A `Source` or `Target` is a value; it connects only when it is opened. An adapter raises `BrokerUnavailable` for every
error of its client that means that the broker is unreachable or did not answer in time. The caller then closes the
subscription or sender, waits, and opens a new one. So adapters neither retry nor reconnect.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record from a broker.

    `stream` is the name of the topic, stream or queue. `id` identifies the record in its stream and is the same on
    each redelivery; None if the broker has no id. `receipt` is what the adapter needs to acknowledge the record.
    `delivery_count` is the number of deliveries so far, as far as the broker reports it. `lost` is the reason why the
    broker lists the record but no longer has its content. `partition` and `offset` are those of the broker, if it has them.
    """

    stream: str
    id: str | None
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    at: datetime | None = None
    delivery_count: int = 1
    receipt: object = None
    lost: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a consumer group is behind: records not yet delivered, and records delivered but not acknowledged.

    None means that the broker does not report the number.
    """

    waiting: int | None
    unacknowledged: int | None = None


class Subscription(Protocol):
    """Records of one source for one consumer in one process. One task fetches; any task may settle."""

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        """Returns up to `limit` new or rescued records; an empty list after `wait` seconds without any."""
        ...

    async def ack(self, records: Sequence[Record]) -> None:
        """Acknowledges these records. Records that the broker no longer assigns to this subscription are ignored."""
        ...

    async def release(self, records: Sequence[Record]) -> None:
        """Returns these records unacknowledged, so that the broker delivers them again."""
        ...

    async def extend(self, records: Sequence[Record]) -> None:
        """Extends the acknowledgment deadline of records in progress; called about every third of `ack_timeout`."""
        ...

    async def lag(self) -> Lag: ...


class Source(Protocol):
    """A topic, stream or queue to consume from, for one consumer group."""

    @property
    def name(self) -> str:
        """Broker, stream and group without secrets, such as `kafka:payments/shop`; used in logs and by operators."""
        ...

    @property
    def ack_timeout(self) -> float:
        """Seconds after which the broker redelivers an unacknowledged record, unless its deadline is extended."""
        ...

    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]:
        """Connects and subscribes for `consumer`. On close, unacknowledged records are left for redelivery."""
        ...

    async def durability_warnings(self) -> list[str]:
        """Settings of the broker or the stream that can lose acknowledged data, each with the setting to use."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRecord:
    """An encoded message to send. `key` selects the partition and keeps order; receivers deduplicate by `id`."""

    id: str
    type: str
    key: str | None
    body: bytes
    headers: Mapping[str, str]
    """The headers of the broker's record, including `content-type`."""


class Sender(Protocol):
    """Sends to one target."""

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        """Sends in order, with many in flight; returns when each is confirmed (None) or rejected (the reason).

        A rejection concerns one record, such as its size. Any other failure, including a missing confirmation, raises
        `BrokerUnavailable`: it is then unknown what was sent, and the caller sends the batch again with the same ids.
        Confirmed records with the same key keep their order.
        """
        ...


class Target(Protocol):
    """A topic, stream, queue or exchange to send to."""

    @property
    def name(self) -> str:
        """Broker and stream without secrets, such as `nats:orders`."""
        ...

    def open(self) -> AbstractAsyncContextManager[Sender]: ...

    async def durability_warnings(self) -> list[str]:
        """The same as for a source."""
        ...
