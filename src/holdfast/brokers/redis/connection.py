"""A client of a Redis server, and its errors."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdfast.brokers import endpoint
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.brokers.redis.stream import RedisStream

ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 5.0


@asynccontextmanager
async def connect(stream: "RedisStream") -> AsyncIterator[Any]:
    """A client; it connects with the first command."""
    url = endpoint.broker_address(stream.name, stream.url, "HOLDFAST_REDIS", "url='redis://host:6379/0'")
    try:
        client: Any = Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            # A command may have run before its error, so only the caller may repeat it.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except ValueError:
        # Without its cause, which shows a part of a password that contains a slash.
        raise ConfigurationError(f"the address of {stream.name} is invalid; give redis://host:6379/0") from None
    # The parsed reply has either the claimed ids or the deleted ones, not both.
    client.set_response_callback("XAUTOCLAIM", lambda reply, **_: reply)
    try:
        yield client
    finally:
        with suppress(Exception):
            await client.aclose()


def broker_errors(name: str) -> AbstractContextManager[None]:
    """Raises `BrokerUnavailable` for every error of the client: out of memory, loading, read-only, no permission …"""
    return endpoint.broker_errors(
        (RedisError, OSError, TimeoutError), lambda error: BrokerUnavailable(name, str(error)[:300])
    )
