"""Slow and idle clients do not block others and do not fill the log."""

import asyncio
import contextlib
import http.client
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.interfaces.server import connection
from holdfast.interfaces.server.connection import DEADLINES, Phase
from holdfast.interfaces.server.standalone import open_port, serve
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.long

DESCRIPTORS = 256
SLOW = (
    b"",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\na",
    b"POST /api/v1/replay HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: a\r\nContent-Length: 60000\r\n\r\na",
    b"\0 this is no request\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
)


def get(port: int, path: str) -> int:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(asking):
        asking.request("GET", path)
        return asking.getresponse().status


@contextlib.contextmanager
def console_with_few_descriptors(store: SqliteStore, said: Path) -> Iterator[int]:
    """`holdfast console` as people start it, in a shell with `ulimit -n 256`; gives its port."""
    env = {**os.environ, "HOLDFAST_DSN": f"sqlite:///{store.path}"}
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "console", "--port", "0"],
            env=env,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
        )
    try:
        until = time.monotonic() + 30
        while not (found := re.search(r"http://\S+:(\d+)/", said.read_text())):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)  # a file cannot be awaited
        yield int(found[1])
    finally:
        process.kill()
        process.wait()


def attack(port: int, seconds: float, sockets: int = 300) -> tuple[list[float], int]:
    """Keeps so many slow connections open, and opens a new one for each that is closed. Gives how long `/healthz` took
    each time, and how many connections were opened."""
    held: list[socket.socket] = []
    opened, took, until = 0, [], time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            for one in tuple(held):
                try:
                    one.send(b"a")
                    with contextlib.suppress(BlockingIOError):
                        if not one.recv(4096):
                            raise ConnectionError
                except OSError:
                    one.close()
                    held.remove(one)
            while len(held) < sockets:
                made = socket.create_connection(("127.0.0.1", port), timeout=5)
                made.sendall(SLOW[opened % len(SLOW)])
                made.setblocking(False)
                held.append(made)
                opened += 1
            began = time.monotonic()
            assert get(port, "/healthz") == 200
            took.append(time.monotonic() - began)
    finally:
        for one in held:
            one.close()
    return took, opened


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_300_slow_connections_with_256_descriptors_stop_nothing_and_log_little(store: Store, tmp_path: Path) -> None:
    assert isinstance(store, SqliteStore)
    said = tmp_path / "said"
    with console_with_few_descriptors(store, said) as port:
        took, opened = attack(port, seconds=2)
        assert get(port, "/api/v1/stats") == 200
        assert get(port, "/") == 200
    assert opened > 300
    assert max(took) < 4
    assert said.stat().st_size < 1000, said.read_text()[:2000]


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_100_seconds_of_300_slow_connections_stop_nothing(store: Store, tmp_path: Path) -> None:
    assert isinstance(store, SqliteStore)
    said = tmp_path / "said"
    with console_with_few_descriptors(store, said) as port:
        took, _ = attack(port, seconds=100)
    assert max(took) < 4
    assert said.stat().st_size < 2000, said.read_text()[:2000]


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in Phase:
        monkeypatch.setitem(DEADLINES, phase, 0.8)


async def _answer(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("a" * int(request.query_params.get("size", "1")))


async def _with_server(
    check: Callable[[int], object], answer: Callable[[Request], Awaitable[Response]] = _answer
) -> None:
    stop = asyncio.Event()
    with open_port("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
        serving = asyncio.create_task(serve(app, bound, stop))
        try:
            await asyncio.to_thread(check, port)
        finally:
            stop.set()
            await serving


BYTE_BY_BYTE = (
    b"",
    b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9999\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nX-A: ",
)


async def test_requests_that_come_byte_by_byte_end_at_their_deadline(deadlines: None) -> None:
    def check(port: int) -> None:
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in BYTE_BY_BYTE]
        for one, begin in zip(opened, BYTE_BY_BYTE, strict=True):
            one.sendall(begin)
            one.setblocking(False)
        left, until = dict(zip(opened, BYTE_BY_BYTE, strict=True)), time.monotonic() + 15
        while left and time.monotonic() < until:
            time.sleep(0.05)  # as a slow client does
            for one in tuple(left):
                try:
                    one.send(b"a")
                    with contextlib.suppress(BlockingIOError):
                        if not one.recv(4096):
                            raise ConnectionError
                except OSError:
                    del left[one]
        assert not left.values()
        for one in opened:
            one.close()

    await _with_server(check)


async def test_a_client_that_does_not_read_its_response_is_closed(deadlines: None) -> None:
    ended = threading.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            for _ in range(1000):
                yield bytes(64_000)
        finally:
            ended.set()

    async def answer(_: Request) -> Response:
        return StreamingResponse(body())

    def check(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert ended.wait(15)

    await _with_server(check, answer)


async def test_a_client_that_asks_again_and_again_keeps_its_connection(deadlines: None) -> None:
    def check(port: int) -> None:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(asking):
            asking.connect()
            kept = asking.sock
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                asking.request("POST", "/", b"a" * 1000)
                assert asking.getresponse().read() == b"a"
                time.sleep(0.1)
            assert asking.sock is kept

    await _with_server(check)


async def test_a_response_that_is_read_slowly_but_steadily_arrives_whole(deadlines: None) -> None:
    size = 30_000_000

    def check(port: int) -> None:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(asking):
            asking.request("GET", f"/?size={size}")
            answer, got = asking.getresponse(), 0
            while chunk := answer.read(1_000_000):
                got += len(chunk)
                time.sleep(0.1)
            assert got == size

    await _with_server(check)


async def test_a_new_client_takes_the_place_of_the_one_that_waits_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "connection_cap", lambda: 3)

    def check(port: int) -> None:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert get(port, "/") == 200
        idle[0].settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        for one in idle[1:]:
            one.settimeout(5)
            one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        for one in idle:
            one.close()

    await _with_server(check)
