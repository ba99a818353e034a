"""A connection to RabbitMQ and its errors. It does not reconnect: after an error the caller opens a new one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from aiormq import Channel, Connection
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity

from holdfast.brokers import endpoint
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.brokers.rabbitmq.queue import RabbitExchange, RabbitQueue

_HEARTBEAT_SECONDS = 10


class RabbitConnection:
    """A connection with its channels. Errors never contain the password."""

    def __init__(self, name: str, connection: Connection, timeout: float, password: str | None) -> None:
        self.name, self.timeout = name, timeout
        self._connection, self._password = connection, password

    @property
    def version(self) -> tuple[int, ...]:
        """The version of the server, such as (3, 13)."""
        version = (self._connection.server_properties or {}).get("version", "")
        return tuple(int(part) for part in endpoint.header_text(version).split(".")[:2] if part.isdigit())

    async def channel(self, *, confirms: bool = False) -> Channel:
        if self._connection.is_closed:
            raise self.unavailable(None)
        with self.broker_errors():
            async with asyncio.timeout(self.timeout):
                channel = await self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        assert isinstance(channel, Channel)
        return channel

    async def ensure(self, queue: str) -> None:
        """Creates the queue if it does not exist; an existing one is used unchanged."""
        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        if self.version >= (4,):
            # The default drops a record after twenty deliveries. Older servers read -1 as 0.
            arguments["x-delivery-limit"] = -1
        with self.broker_errors():
            try:
                await self.declare(queue, passive=True)
            except ChannelNotFoundEntity:
                await self.declare(queue, durable=True, arguments=arguments)

    async def declare(self, queue: str, **properties: Any) -> int:
        """Returns the number of waiting records. Uses a separate channel, because a rejection closes it."""
        channel = await self.channel()
        try:
            answer = await channel.queue_declare(queue, timeout=self.timeout, **properties)
        finally:
            await self.close(channel)
        return answer.message_count or 0

    async def close(self, what: Connection | Channel) -> None:
        # Closing what the server has already ended raises its reason, which was raised before.
        with suppress(Exception):
            async with asyncio.timeout(self.timeout):
                await what.close()

    def broker_errors(self) -> AbstractContextManager[None]:
        """Raises `BrokerUnavailable` for every error of the client."""
        return endpoint.broker_errors((AMQPError, ChannelInvalidStateError, OSError), self.unavailable)

    def unavailable(self, error: BaseException | None) -> BrokerUnavailable:
        if isinstance(error, TimeoutError):
            return BrokerUnavailable(self.name, f"no answer within {self.timeout:g} s")
        text = "the connection has ended" if error is None else str(error) or type(error).__name__
        return BrokerUnavailable(self.name, text.replace(self._password, "***") if self._password else text)


@asynccontextmanager
async def connect(target: "RabbitQueue | RabbitExchange", label: str) -> AsyncIterator[RabbitConnection]:
    """Connects; `label` is the name of the connection in RabbitMQ's list."""
    address = endpoint.broker_address(
        target.name, target.url, "HOLDFAST_RABBITMQ", "url='amqp://user:password@host:5672/'"
    )
    parts = _parse(target.name, address)
    query = [parts.query] if parts.query else []
    if "heartbeat=" not in parts.query:
        query.append(f"heartbeat={_HEARTBEAT_SECONDS}")
    query.append(f"name={quote(label)}")
    client = Connection(parts._replace(query="&".join(query)).geturl())
    connection = RabbitConnection(target.name, client, target.timeout, parts.password)
    try:
        with connection.broker_errors():
            async with asyncio.timeout(target.timeout):
                await client.connect()
        yield connection
    finally:
        await connection.close(client)


def _parse(name: str, address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        if parts.scheme in ("amqp", "amqps") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    # The address is not shown: it may contain a password.
    raise ConfigurationError(f"the address of {name} is invalid; give amqp://user:password@host:5672/")
