"""One connection to NATS, and who waits on it for what."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast._log import get_logger
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

log = get_logger("holdfast.brokers")

SUBJECT = "nats-subject"
"""The header that tells the subject of a record, of which a stream can hold many."""

ANSWER_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
# More than is ever in flight: at its bound the client would block, and swallow a cancellation while it does.
_PENDING_BYTES = 1 << 40


class Line:
    """A connection that does not come back by itself: once it ends, everybody who waits on it is told."""

    def __init__(self, client: "Client") -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=ANSWER_SECONDS)
        self.arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        """Messages that answer no question of ours; None once the connection has ended."""
        self.inbox = client.new_inbox()
        self._asked = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    @property
    def clustered(self) -> bool:
        return bool(self.client._server_info.get("cluster"))

    async def listen(self) -> None:
        await self.client.subscribe(f"{self.inbox}.*", cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0)

    def address(self) -> str:
        """A subject of our own that nothing was sent to yet."""
        self._asked += 1
        return f"{self.inbox}.{self._asked}"

    async def ask(
        self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> "asyncio.Future[Msg]":
        """Sends, behind whatever was sent before; the answer comes into the future."""
        reply = self.address()
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answer
        try:
            await self.client.publish(subject, body, reply, headers)
        except BaseException:
            del self._waiting[reply]
            raise
        return answer

    async def answers(self, asked: Sequence["asyncio.Future[Msg]"]) -> list["Msg"]:
        """All of these, or an error once one of them does not come."""
        from nats.errors import TimeoutError as NatsTimeout

        if asked:
            await asyncio.wait(asked, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for answer in asked:
            if not answer.done():
                answer.set_exception(NatsTimeout())
                answer.exception()  # the first of them is raised, and the others would be told to nobody
        return [answer.result() for answer in asked]

    def ended(self) -> None:
        """Tells everybody who waits, and whoever fetches next."""
        from nats.errors import ConnectionClosedError

        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionClosedError())
                answer.exception()  # whoever waited may be gone
        self._waiting.clear()
        self.arrived.put_nowait(None)

    async def _take(self, msg: "Msg") -> None:
        answer = self._waiting.pop(msg.subject, None)
        if answer is None:
            self.arrived.put_nowait(msg)
        elif not answer.done():
            answer.set_result(msg)


def status(msg: "Msg") -> str | None:
    """What the server says of itself instead of a message, such as 404; None for a message."""
    # Only a message can be acknowledged; its own headers may say Status, too.
    return None if msg.headers is None or msg.reply else msg.headers.get("Status")


def description(msg: "Msg") -> str:
    said = (msg.headers or {}).get("Description", "").strip()
    return said.partition("\n")[0] if said and not said.startswith("Nats-") else "nobody answers for it"


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Whatever the client raises becomes `BrokerUnavailable`."""
    from nats.errors import Error

    try:
        yield
    except (Error, OSError, TimeoutError) as error:
        raise BrokerUnavailable(name, str(error) or type(error).__name__) from error


@asynccontextmanager
async def connected(name: str, servers: Sequence[str], who: str, options: Mapping[str, Any]) -> AsyncIterator[Line]:
    """A connection to the first of these servers that answers."""
    try:
        from nats.aio.client import Client
        from nats.errors import Error
    except ImportError as error:
        raise ConfigurationError(f"{name} needs the NATS client; pip install holdfast[nats]") from error

    failed: list[Exception] = []
    for server in servers:
        client = Client()
        lines: list[Line] = []

        async def noted(error: Exception) -> None:
            # Whoever waits is told by what it waits for; this is for those who look closer.
            log.debug("broker connection error", place=name, error=repr(error))
            failed.append(error)

        async def closed(lines: list[Line] = lines) -> None:
            for line in lines:
                line.ended()

        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ours: dict[str, Any] = {
                    "name": who,
                    "allow_reconnect": False,
                    # Of connecting, too, the client knows no end otherwise.
                    "max_reconnect_attempts": 1,
                    "reconnect_time_wait": 0,
                    "pending_size": _PENDING_BYTES,
                    "error_cb": noted,
                    "closed_cb": closed,
                }
                await client.connect(server, **{**options, **ours})
        except (Error, OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or not failed:
                failed.append(error)
            await _close(client)
            continue
        try:
            with reported(name):
                line = Line(client)
                lines.append(line)
                await line.listen()
            yield line
        finally:
            await _close(client)
        return
    raise BrokerUnavailable(name, str(failed[-1]) or type(failed[-1]).__name__) from failed[-1]


async def _close(client: "Client") -> None:
    # A server that is gone or stalls takes no farewell.
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
