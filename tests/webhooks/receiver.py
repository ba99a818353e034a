"""Receivers of webhooks on loopback: good ones, and every bad kind."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from holdfast.webhooks import WebhookOptions

LOOPBACK = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True)

Act = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    """One request, unchanged. `hung_up` is set when the sender closes its side."""

    line: str
    headers: dict[str, str]
    body: bytes
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """A server that does with each request what `act` says; a list is worked off, its last act stays."""

    def __init__(self, act: Act, tls: ssl.SSLContext | None = None) -> None:
        self.acts = [act]
        self.requests: list[Request] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.at_once = self.most_at_once = 0

    def then(self, *acts: Act) -> "Receiver":
        """What it does from now on."""
        self.acts = list(acts)
        return self

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/in"

    async def open(self) -> "Receiver":
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def die(self) -> None:
        """Takes no more connections and drops those there are; `open` revives it on the same port."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            # A cancelled or disconnected connection needs no more.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            self.at_once -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        request = Request(line, headers, await reader.readexactly(int(headers["content-length"])))
        self.requests.append(request)
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        acting = asyncio.ensure_future(act(request, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({acting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                request.hung_up.set()
            elif not acting.cancelled():
                acting.result()
        finally:
            for one in (acting, leaving):
                one.cancel()
            await asyncio.gather(acting, leaving, return_exceptions=True)


@asynccontextmanager
async def receiving(act: Act, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = await Receiver(act, tls).open()
    try:
        yield receiver
    finally:
        await receiver.die()


def answer(status: int, body: bytes = b"", **headers: str) -> Act:
    """Answers at once."""

    async def act(_: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} Any", f"content-length: {len(body)}", *lines, "", ""])
        writer.write(head.encode("latin-1") + body)
        await writer.drain()

    return act


def later(seconds: float, act: Act) -> Act:
    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await act(request, writer)

    return slow


async def silent(_: Request, writer: asyncio.StreamWriter) -> None:
    """Never says a word."""
    await asyncio.Event().wait()


async def trickle(_: Request, writer: asyncio.StreamWriter) -> None:
    """Says its headers a byte at a time, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while True:
        writer.write(b"z")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless_headers(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"z" * 8000 + b"\r\n")
        await writer.drain()


async def endless_body(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"2000\r\n" + b"z" * 0x2000 + b"\r\n")
        await writer.drain()


async def stalling_body(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf")
    await writer.drain()
    await asyncio.Event().wait()


async def reset(_: Request, writer: asyncio.StreamWriter) -> None:
    """Hangs up without a goodbye."""
    writer.transport.abort()


async def gibberish(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01\x02 what?\r\n\r\n")
    await writer.drain()


async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
    """Answers with everything it was sent: headers too."""
    said = "\n".join(f"{name}: {value}" for name, value in request.headers.items()).encode()
    await answer(500, said)(request, writer)
