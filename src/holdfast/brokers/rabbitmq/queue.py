"""A RabbitMQ queue as a source and a target, and an exchange as a target."""

from dataclasses import dataclass, field

from holdfast.brokers.endpoint import BrokerEndpoint, check_texts
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration, to_timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitQueue(BrokerEndpoint):
    """A queue. Created by `queue()`; it connects only when it is opened."""

    adapter = "rabbitmq"
    client = "aiormq"
    queue: str
    url: str | None = field(repr=False)
    prefetch: int
    ack_timeout: float
    timeout: float

    @property
    def name(self) -> str:
        return f"rabbitmq:{self.queue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitExchange(BrokerEndpoint):
    """An exchange to send to. Created by `exchange()`; its owner creates the exchange and its bindings."""

    adapter = "rabbitmq"
    client = "aiormq"
    group = None
    exchange: str
    url: str | None = field(repr=False)
    timeout: float

    @property
    def name(self) -> str:
        return f"rabbitmq:{self.exchange}"

    async def durability_warnings(self) -> list[str]:
        """No warnings: only the settings of a queue can lose a message."""
        return []


def queue(
    name: str,
    *,
    url: str | None = None,
    prefetch: int = 200,
    ack_timeout: Duration = "1d",
    timeout: Duration = "10s",
) -> RabbitQueue:
    """A RabbitMQ queue: a source, or a target.

    `url` is `amqp://user:password@host:5672/vhost` or `amqps://…`; the default is `HOLDFAST_RABBITMQ`. `prefetch` limits
    the number of unacknowledged records. `ack_timeout` is how long RabbitMQ waits for an acknowledgment; RabbitMQ
    before 3.12 ignores it and uses its `consumer_timeout`, 30 minutes. `timeout` limits the wait for each answer.
    """
    check_texts("rabbitmq.queue", name, url=url)
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 1 or not isinstance(prefetch, int) or not 1 <= prefetch <= 65_535:
        raise ConfigurationError(
            f"rabbitmq queue {name}: ack_timeout is {ack_timeout!r} and prefetch {prefetch}; give an ack_timeout of 1s "
            "or more and a prefetch of 1 to 65535"
        )
    return RabbitQueue(queue=name, url=url, prefetch=prefetch, ack_timeout=seconds, timeout=_seconds(timeout))


def exchange(name: str, *, url: str | None = None, timeout: Duration = "10s") -> RabbitExchange:
    """A RabbitMQ exchange as a target; the routing key is the message's type. `url` and `timeout` as for `queue`."""
    # The exchange with the empty name is RabbitMQ's default exchange: the routing key is the name of a queue.
    check_texts("rabbitmq.exchange", name if name != "" else "default", url=url)
    return RabbitExchange(exchange=name, url=url, timeout=_seconds(timeout))


def _seconds(timeout: Duration) -> float:
    return to_timedelta(timeout, name="timeout").total_seconds()
