"""A queue or an exchange as a value."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from holdfast.brokers.endpoint import check_texts
from holdfast.brokers.protocol import Sender, Subscription
from holdfast.brokers.rabbitmq.doubts import durability_warnings
from holdfast.brokers.rabbitmq.line import Line, opened
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.brokers.rabbitmq.reading import Reading
    from holdfast.brokers.rabbitmq.sending import Sending


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue. Made by `queue()`; nothing is connected until it is opened."""

    queue: str
    url: str | None = field(repr=False)
    prefetch: int
    ack_timeout: float
    timeout: float

    @property
    def name(self) -> str:
        return f"rabbitmq:{self.queue}"

    @overload
    def open(self) -> AbstractAsyncContextManager[Sender]: ...
    @overload
    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]: ...
    def open(
        self, consumer: str | None = None
    ) -> AbstractAsyncContextManager[Sender] | AbstractAsyncContextManager[Subscription]:
        """With the name of a consumer: records from the queue. Without: a sender to the queue."""
        return self._sending() if consumer is None else self._reading(consumer)

    async def durability_warnings(self) -> list[str]:
        """Settings of the queue that can lose what it had confirmed. What policies set, AMQP does not tell."""
        async with self._line("holdfast doctor") as line:
            return await durability_warnings(self.name, self.queue, line)

    @asynccontextmanager
    async def _reading(self, consumer: str) -> AsyncIterator["Reading"]:
        from holdfast.brokers.rabbitmq.reading import Reading

        async with self._line(consumer) as line:
            await line.ensure(self.queue)
            reading = Reading(line, self.queue, prefetch=self.prefetch, ack_timeout=self.ack_timeout)
            try:
                await reading.start()
                yield reading
            finally:
                await reading.close()

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator["Sending"]:
        from holdfast.brokers.rabbitmq.sending import Sending

        async with self._line("holdfast") as line:
            await line.ensure(self.queue)
            yield Sending(line, queue=self.queue)

    def _line(self, label: str) -> AbstractAsyncContextManager[Line]:
        return opened(self.name, self.url, label, self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An exchange to send to; what it is bound to is for whoever made it. Made by `exchange()`."""

    exchange: str
    url: str | None = field(repr=False)
    timeout: float

    @property
    def name(self) -> str:
        return f"rabbitmq:{self.exchange}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Sending"]:
        from holdfast.brokers.rabbitmq.sending import Sending

        async with opened(self.name, self.url, "holdfast", self.timeout) as line:
            yield Sending(line, exchange=self.exchange)

    async def durability_warnings(self) -> list[str]:
        """None: what can lose a message is a matter of the queues."""
        return []


def queue(
    name: str,
    *,
    url: str | None = None,
    prefetch: int = 200,
    ack_timeout: Duration = "1d",
    timeout: Duration = "10s",
) -> Queue:
    """A RabbitMQ queue: a source, or a target.

    `url` is `amqp://user:password@host:5672/vhost` or `amqps://…`, else `HOLDFAST_RABBITMQ` holds it. `prefetch` bounds what
    is handed over and not acknowledged. `ack_timeout` is how long RabbitMQ shall wait for an acknowledgement; before
    3.12 it does not listen and waits for its `consumer_timeout`, 30 minutes. `timeout` bounds each answer.
    """
    check_texts("rabbitmq.queue", name, url=url)
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 1 or not isinstance(prefetch, int) or not 1 <= prefetch <= 65_535:
        raise ConfigurationError(
            f"rabbitmq queue {name}: ack_timeout is {ack_timeout!r} and prefetch {prefetch}; give 1s or more, and 1 to 65535"
        )
    return Queue(queue=name, url=url, prefetch=prefetch, ack_timeout=seconds, timeout=_seconds(timeout))


def exchange(name: str, *, url: str | None = None, timeout: Duration = "10s") -> Exchange:
    """A RabbitMQ exchange as a target; the routing key is the message's type. `url` and `timeout` as of `queue`."""
    # The exchange without a name is RabbitMQ's own, which routes to the queue that the routing key names.
    check_texts("rabbitmq.exchange", name if name != "" else "default", url=url)
    return Exchange(exchange=name, url=url, timeout=_seconds(timeout))


def _seconds(timeout: Duration) -> float:
    return to_timedelta(timeout, name="timeout").total_seconds()
