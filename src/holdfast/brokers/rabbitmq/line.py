"""One connection to RabbitMQ. It does not come back by itself: whoever uses it is told, and opens another."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from aiormq import Channel, Connection

_HEARTBEAT_SECONDS = 10


class Line:
    """A connection, and how what it raises is said."""

    def __init__(self, name: str, connection: "Connection", timeout: float, secret: str | None) -> None:
        self.name, self.timeout = name, timeout
        self._connection, self._secret = connection, secret

    @property
    def version(self) -> tuple[int, ...]:
        """The server's, such as (3, 13)."""
        told = (self._connection.server_properties or {}).get("version", "")
        text = told.decode() if isinstance(told, bytes) else str(told)
        return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())

    async def channel(self, *, confirms: bool = False) -> "Channel":
        from aiormq import Channel

        if self._connection.is_closed:
            raise self.unavailable(None)
        with self.told():
            async with asyncio.timeout(self.timeout):
                channel = await self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        assert isinstance(channel, Channel)
        return channel

    async def ensure(self, queue: str) -> None:
        """Makes the queue if it is not there; one that is there is used as it is."""
        from aiormq.exceptions import ChannelNotFoundEntity

        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        if self.version >= (4,):
            # It would drop what was handed over twenty times. Older servers take -1 for 0.
            arguments["x-delivery-limit"] = -1
        with self.told():
            try:
                await self.declare(queue, passive=True)
            except ChannelNotFoundEntity:
                await self.declare(queue, durable=True, arguments=arguments)

    async def declare(self, queue: str, **properties: Any) -> int:
        """How many records wait in the queue. In a channel of its own, which a refusal closes."""
        channel = await self.channel()
        try:
            answer = await channel.queue_declare(queue, timeout=self.timeout, **properties)
        finally:
            await self.closed(channel)
        return answer.message_count or 0

    async def closed(self, what: "Connection | Channel") -> None:
        # One that the server ended raises why, which is known by now.
        with suppress(Exception):
            async with asyncio.timeout(self.timeout):
                await what.close()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Whatever the client raises for a server that is away, or does not do as asked, as one error."""
        from aiormq.exceptions import AMQPError, ChannelInvalidStateError

        try:
            yield
        except (AMQPError, ChannelInvalidStateError, OSError) as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException | None) -> BrokerUnavailable:
        if isinstance(error, TimeoutError):
            return BrokerUnavailable(self.name, f"no answer within {self.timeout:g} s")
        text = "the connection has ended" if error is None else str(error) or type(error).__name__
        return BrokerUnavailable(self.name, text.replace(self._secret, "***") if self._secret else text)


@asynccontextmanager
async def opened(name: str, url: str | None, label: str, seconds: float) -> AsyncIterator[Line]:
    """Connects; `label` is what RabbitMQ lists the connection under, `seconds` how long an answer may take."""
    try:
        import aiormq
    except ImportError as error:
        raise ConfigurationError("RabbitMQ needs a client; pip install holdfast[rabbitmq]") from error
    address = url or os.environ.get("HOLDFAST_RABBITMQ")
    if not address:
        raise ConfigurationError(
            f"{name} has no address; pass url='amqp://user:password@host:5672/' or set HOLDFAST_RABBITMQ"
        )
    parts = _parts(name, address)
    asked = [parts.query] if parts.query else []
    if "heartbeat=" not in parts.query:
        asked.append(f"heartbeat={_HEARTBEAT_SECONDS}")
    asked.append(f"name={quote(label)}")
    connection = aiormq.Connection(parts._replace(query="&".join(asked)).geturl())
    line = Line(name, connection, seconds, parts.password)
    try:
        with line.told():
            async with asyncio.timeout(seconds):
                await connection.connect()
        yield line
    finally:
        await line.closed(connection)


def _parts(name: str, address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        if parts.scheme in ("amqp", "amqps") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    # What could not be read is not shown: it may hold a password.
    raise ConfigurationError(f"the address of {name} cannot be read; give amqp://user:password@host:5672/")
