"""What Holdfast asks of a broker: a subscription that hands records over, and a sender that is confirmed.

A `Source` and a `Target` are values that name a place; nothing is connected until one is opened. An adapter raises
`BrokerUnavailable` when the broker cannot be reached or does not answer in time, whatever its client raises; the
caller closes what it had and opens anew after a pause. So adapters neither retry nor reconnect.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from holdfast.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a broker handed it over.

    `stream` names the topic, stream, subject or queue; `id` is the record's own in it and the same whenever it is
    handed over again, None where the broker gives none. `receipt` is the adapter's alone: what it needs to
    acknowledge. `handed_over` counts how often the broker did, as far as it says. `lost` says why there is no content
    any more, where the broker still knows of the record but has dropped what it held.
    """

    stream: str
    id: str | None
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    at: datetime | None = None
    handed_over: int = 1
    receipt: object = None
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a group is behind: records not yet handed over, and those handed over but not acknowledged.

    None where the broker does not say.
    """

    waiting: int | None
    unacknowledged: int | None = None


class Subscription(Protocol):
    """Records of one source, for one consumer, one process. One task fetches; any may settle."""

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        """Up to `limit` records, own or taken over from dead consumers; empty after `wait` seconds without any."""
        ...

    async def ack(self, records: Sequence[Record]) -> None:
        """Tells the broker that these are done. What it no longer knows or no longer gives us is passed over."""
        ...

    async def release(self, records: Sequence[Record]) -> None:
        """Gives these back unacknowledged, for anyone to be handed them again."""
        ...

    async def extend(self, records: Sequence[Record]) -> None:
        """Tells the broker that these are still being worked on; called about every third of `ack_timeout`."""
        ...

    async def lag(self) -> Lag: ...


class Source(Protocol):
    """A place records come from, for one group of consumers."""

    @property
    def name(self) -> str:
        """Broker, stream and group, without secrets, such as `kafka:payments/shop`: for logs and operators."""
        ...

    @property
    def ack_timeout(self) -> float:
        """Seconds after which the broker hands an unacknowledged record to somebody else, unless extended."""
        ...

    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]:
        """Connects and subscribes under an instance name of `consumer`; leaves what is not acknowledged to others."""
        ...

    async def doubts(self) -> list[str]:
        """Settings of the broker or the stream that can lose acknowledged data, each with what to set instead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way out, encoded: `key` keeps order and place, `id` lets receivers tell repetitions."""

    id: str
    type: str
    key: str | None
    body: bytes
    headers: Mapping[str, str]
    """The broker's headers, `content-type` among them."""


class Sender(Protocol):
    """Sends to one target."""

    async def send(self, batch: Sequence[Outgoing]) -> Sequence[str | None]:
        """Sends in order, many in flight; returns once each is confirmed (None) or refused for good (the reason).

        A refusal is about that message alone, such as its size. Anything else, a confirmation that did not come among
        it, raises `BrokerUnavailable`: what was sent is then unknown, and the batch is sent again under the same ids.
        Order holds for each key among those that are confirmed.
        """
        ...


class Target(Protocol):
    """A place messages go to."""

    @property
    def name(self) -> str:
        """Broker and stream, without secrets, such as `nats:orders`."""
        ...

    def open(self) -> AbstractAsyncContextManager[Sender]: ...

    async def doubts(self) -> list[str]:
        """As a source's."""
        ...


def check_texts(place: str, name: object, **optional: object) -> None:
    """Raises `ConfigurationError` for a name or an option of a place that is no text: it would fail once it is opened."""
    for option, value in {"name": "" if name is None else name, **optional}.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigurationError(f"{place}: {option} is {value!r}; give text")
