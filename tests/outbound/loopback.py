"""A real HTTP server on loopback that a test scripts: it responds, hangs, resets, sends slowly, and sees clients disconnect."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Reply:
    """An ordinary answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Hang:
    """Nothing is answered until the client leaves."""


@dataclass
class Drip:
    """A byte every so often: `head` is sent at once, then no read is ever late and the answer never whole."""

    head: bytes = b"HTTP/1.1 200 OK\r\n"
    seconds: float = 0.02


@dataclass
class Reset:
    """The connection ends without an answer."""


@dataclass
class Endless:
    """A body without end, as fast as it goes."""


Act = Reply | Hang | Drip | Reset | Endless


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server:
    """Plays one act for each request; the last one again and again. Runs in a thread, for clients of both colours."""

    def __init__(self) -> None:
        self.acts: deque[Act] = deque()
        self.requests: list[Request] = []
        self.left = threading.Event()
        """Set when a client went away before it had its answer."""
        self.came = threading.Event()
        """Set with each request."""
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def plays(self, *acts: Act) -> "Server":
        self.acts = deque(acts)
        self.requests.clear()
        self.left.clear()
        self.came.clear()
        return self

    def start(self) -> None:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result(
            5
        )
        self._server = server
        self.port = server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await self._read(reader):
                self.requests.append(request)
                self.came.set()
                act = self.acts.popleft() if len(self.acts) > 1 else self.acts[0]
                if not await self._play(act, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        head = (await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"").decode("latin-1")
        if not head:
            return None
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(method, path, headers, body)

    async def _play(self, act: Act, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        match act:
            case Reply(status, body, headers):
                sent = {"content-length": str(len(body)), **headers}
                lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode("latin-1") + body)
                await writer.drain()
                return True
            case Hang():
                await reader.read()
                self.left.set()
            case Drip(head, seconds):
                writer.write(head)
                await self._until_gone(reader, writer, b"a", seconds)
            case Endless():
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n")
                await self._until_gone(reader, writer, b"x" * 65536, 0)
            case Reset():
                pass
        return False

    async def _until_gone(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chunk: bytes, seconds: float
    ) -> None:
        gone = asyncio.ensure_future(reader.read())
        while not gone.done():
            with contextlib.suppress(ConnectionError):
                writer.write(chunk)
                await writer.drain()
            await asyncio.sleep(seconds)
        self.left.set()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()
