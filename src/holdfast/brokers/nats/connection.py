"""A connection to NATS, its requests, and its errors. It does not reconnect: after an error the caller opens a new one."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, Error
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import NotFoundError

from holdfast._log import get_logger
from holdfast.brokers import endpoint
from holdfast.brokers.nats.stream import addresses
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo, StreamInfo

    from holdfast.brokers.nats.stream import NatsStream

log = get_logger("holdfast.brokers")

ANSWER_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
# More than is ever in flight: at this limit the client would block, and swallow a cancellation.
_PENDING_BYTES = 1 << 40


class NatsConnection:
    """A connection. When it ends, every waiting request and the next fetch raise."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=ANSWER_SECONDS)
        self.arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        """Messages that are not the response to a request; None after the connection has ended."""
        self.inbox = client.new_inbox()
        self._replies = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    @property
    def clustered(self) -> bool:
        return bool(self.client._server_info.get("cluster"))

    async def listen(self) -> None:
        await self.client.subscribe(f"{self.inbox}.*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0)

    def new_reply_subject(self) -> str:
        self._replies += 1
        return f"{self.inbox}.{self._replies}"

    async def request(
        self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> "asyncio.Future[Msg]":
        """Sends a request, in the order of the calls. The future receives the response."""
        reply = self.new_reply_subject()
        response: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = response
        try:
            await self.client.publish(subject, body, reply, headers)
        except BaseException:
            del self._waiting[reply]
            raise
        return response

    async def responses(self, requests: Sequence["asyncio.Future[Msg]"]) -> list["Msg"]:
        """All responses, or an error if one of them does not arrive."""
        if requests:
            await asyncio.wait(requests, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for response in requests:
            if not response.done():
                response.set_exception(NatsTimeout())
                response.exception()  # only the first is raised; asyncio would log the others as never retrieved
        return [response.result() for response in requests]

    def end(self) -> None:
        """Fails every waiting request and the next fetch."""
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(ConnectionClosedError())
                response.exception()  # the caller may have stopped waiting
        self._waiting.clear()
        self.arrived.put_nowait(None)

    async def stream_info(self, stream: "NatsStream") -> "StreamInfo":
        try:
            name = stream.stream or await self.jetstream.find_stream_name_by_subject(stream.filter_subject or "")
            return await self.jetstream.stream_info(name)
        except NotFoundError:
            what = f"stream {stream.stream}" if stream.stream else f"stream that contains {stream.subject}"
            raise BrokerUnavailable(stream.name, f"there is no {what}; create it with `nats stream add`") from None

    async def consumer_info(self, stream: "NatsStream", info: "StreamInfo") -> "ConsumerInfo | None":
        try:
            found: ConsumerInfo = await self.jetstream.consumer_info(info.config.name or "", stream.group or "")
            return found
        except NotFoundError:
            return None

    async def _on_message(self, msg: "Msg") -> None:
        response = self._waiting.pop(msg.subject, None)
        if response is None:
            self.arrived.put_nowait(msg)
        elif not response.done():
            response.set_result(msg)


def status(msg: "Msg") -> str | None:
    """The status that the server sends instead of a message, such as 404; None for a message."""
    # Only a message can be acknowledged; its headers may contain Status, too.
    return None if msg.headers is None or msg.reply else msg.headers.get("Status")


def description(msg: "Msg") -> str:
    text = (msg.headers or {}).get("Description", "").strip()
    return text.partition("\n")[0] if text and not text.startswith("Nats-") else "no server responds"


def broker_errors(name: str) -> AbstractContextManager[None]:
    """Raises `BrokerUnavailable` for every error of the client."""
    return endpoint.broker_errors(
        (Error, OSError, TimeoutError), lambda error: BrokerUnavailable(name, str(error) or type(error).__name__)
    )


@asynccontextmanager
async def connect(stream: "NatsStream", label: str) -> AsyncIterator[NatsConnection]:
    """A connection to the first server that answers; `label` is its name at the server."""
    servers = stream.servers or addresses(os.environ.get("HOLDFAST_NATS", ""))
    if not servers:
        raise ConfigurationError(f"{stream.name} has no address; give servers= or set HOLDFAST_NATS")
    errors: list[Exception] = []
    # In random order, to spread the clients; each server is tried once, and the caller retries.
    for server in random.sample(servers, len(servers)):
        client = Client()
        connections: list[NatsConnection] = []

        async def on_error(error: Exception) -> None:
            # Only for debugging: the waiting request raises the error.
            log.debug("broker connection error", stream=stream.name, error=repr(error))
            errors.append(error)

        async def on_closed(connections: list[NatsConnection] = connections) -> None:
            for connection in connections:
                connection.end()

        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                settings: dict[str, Any] = {
                    "name": f"holdfast {label}",
                    "allow_reconnect": False,
                    # Also limits the first connect, which the client would repeat without a limit.
                    "max_reconnect_attempts": 1,
                    "reconnect_time_wait": 0,
                    "pending_size": _PENDING_BYTES,
                    "error_cb": on_error,
                    "closed_cb": on_closed,
                }
                await client.connect(server, **{**stream.options, **settings})
        except (Error, OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or not errors:
                errors.append(error)
            await _close(client)
            continue
        try:
            with broker_errors(stream.name):
                connection = NatsConnection(client)
                connections.append(connection)
                await connection.listen()
            yield connection
        finally:
            await _close(client)
        return
    raise BrokerUnavailable(stream.name, str(errors[-1]) or type(errors[-1]).__name__) from errors[-1]


async def _close(client: Client) -> None:
    # A server that is down or stalled does not answer the close.
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
