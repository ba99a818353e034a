"""Deadlines for responses of the server: a connection without a response is shut down.

Keepalives and `tcp_user_timeout` detect a lost peer. They do not detect a pooler that hangs or a server that was
stopped, because the kernel still acknowledges packets. So the watchdog shuts down a connection whose response is
overdue, and the caller gets an ordinary connection error.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg
from psycopg import waiting
from psycopg.pq import TransactionStatus

_CANCEL_SECONDS = 0.5
_WAIT_SECONDS = 0.1
_REPEAT_SECONDS = 0.1


class CancellableConnection(psycopg.AsyncConnection):
    """A connection whose cancelled caller gets control back within about a second, even without a response."""

    prepared_calls: set[str] | None = None
    """The statements that this session has prepared for locked calls; None behind a pooler."""

    async def wait(self, gen: Any, interval: float | None = _WAIT_SECONDS, *args: Any, **options: Any) -> Any:
        """Runs one exchange with the server. A cancelled caller's statement has ended when this returns.

        Without an `interval`, a short exchange is expected.
        """
        try:
            if interval is None:
                return await _wait(gen, self.pgconn.socket)
            return await waiting.wait_async(gen, self.pgconn.socket, interval, *args, **options)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._end_statement(gen)
            raise

    async def _end_statement(self, gen: Any) -> None:
        # The driver logs a warning if another cancellation interrupts this, so it runs in a separate task.
        ending = asyncio.create_task(self._cancel_and_read(gen))
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:  # the caller does not wait for the server
                ending.cancel()
        if ending.cancelled():
            self.pgconn.finish()

    async def _cancel_and_read(self, gen: Any) -> None:
        """Requests cancellation and waits until the statement has ended. Closes the connection if the server does not react."""
        try:
            # Before libpq 17 the request ignores its time limit.
            async with asyncio.timeout(2 * _CANCEL_SECONDS):
                # It uses another connection: its success does not mean that this connection gets a response.
                await self.cancel_safe(timeout=_CANCEL_SECONDS)
                await waiting.wait_async(gen, self.pgconn.socket, interval=_WAIT_SECONDS)
        except psycopg.errors.QueryCanceled:
            pass
        except (OSError, psycopg.Error):
            self.pgconn.finish()


async def _wait(gen: Any, fileno: int) -> Any:
    """The driver's `wait_async` without a timer: it takes a third less time."""
    loop = asyncio.get_running_loop()
    try:
        wanted = next(gen)
        while True:
            ready = loop.create_future()
            reads, writes = wanted & waiting.WAIT_R, wanted & waiting.WAIT_W
            if reads:
                loop.add_reader(fileno, _settle, ready, waiting.READY_R)
            if writes:
                loop.add_writer(fileno, _settle, ready, waiting.READY_W)
            try:
                await ready
            finally:
                if reads:
                    loop.remove_reader(fileno)
                if writes:
                    loop.remove_writer(fileno)
            wanted = gen.send(ready.result())
    except OSError as error:
        raise psycopg.OperationalError("connection socket closed") from error
    except StopIteration as ended:
        return ended.value


def _settle(ready: "asyncio.Future[int]", state: int) -> None:
    if not ready.done():
        ready.set_result(state)


class ResponseWatchdog:
    """Shuts down connections whose response is overdue, from a thread that ends when nothing is watched."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due: dict[psycopg.BaseConnection[Any], float] = {}
        self._next_check = float("inf")
        self._thread: threading.Thread | None = None

    def watch(self, connection: "psycopg.BaseConnection[Any]", seconds: float | None = None) -> "_Watch":
        """Watches a connection in use: each response is due within `seconds`, by default `self.seconds`.

        Call the returned function after each response; it restarts the deadline.
        """
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork
        return _Watch(self, connection, self.seconds if seconds is None else seconds)

    def begin(self, connection: "psycopg.BaseConnection[Any]", due: float) -> None:
        with self._lock:
            self._due[connection] = due
            if self._thread is None:
                self._thread = threading.Thread(target=self._check_deadlines, name="holdfast-watchdog", daemon=True)
                self._thread.start()
            elif due < self._next_check:
                self._changed.notify()

    def extend(self, connection: "psycopg.BaseConnection[Any]", due: float) -> None:
        self._due[connection] = due

    def end(self, connection: "psycopg.BaseConnection[Any]") -> None:
        with self._lock:  # otherwise it could be shut down while the next caller uses it
            del self._due[connection]

    def _check_deadlines(self) -> None:
        with self._changed:
            while self._due:
                now = time.monotonic()
                for connection, due in self._due.items():
                    if due <= now:
                        _shutdown_socket(connection)
                # Repeated until the caller stops watching: it is cheap and needs no additional state.
                self._next_check = max(min(self._due.values()), now + _REPEAT_SECONDS)
                self._changed.wait(self._next_check - now)
            self._next_check, self._thread = float("inf"), None


class _Watch:
    """A watched connection. A class, because a generator as a context manager takes twice as long."""

    __slots__ = ("_connection", "_seconds", "_watchdog")

    def __init__(self, watchdog: ResponseWatchdog, connection: "psycopg.BaseConnection[Any]", seconds: float) -> None:
        self._watchdog, self._connection, self._seconds = watchdog, connection, seconds

    def __enter__(self) -> Callable[[], None]:
        self._watchdog.begin(self._connection, time.monotonic() + self._seconds)
        return self._answered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.end(self._connection)

    def _answered(self) -> None:
        self._watchdog.extend(self._connection, time.monotonic() + self._seconds)


def _shutdown_socket(connection: "psycopg.BaseConnection[Any]") -> None:
    # A duplicate of the handle: the driver's handle stays open, and its next read fails.
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)
