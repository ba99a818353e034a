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
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

_CANCEL_SECONDS = 0.5
_REPEAT_SECONDS = 0.1


class CancellableConnection(psycopg.AsyncConnection):
    """A connection whose cancelled caller gets control back within about a second, even without a response."""

    _shutdown: asyncio.TimerHandle | None = None
    prepared_calls: set[str] | None = None
    """The statements that this session has prepared for locked calls; None behind a pooler."""

    async def cancel_safe(self, *, timeout: float = _CANCEL_SECONDS) -> None:  # noqa: ASYNC109
        """Requests cancellation of the running statement; shuts the connection down if the server does not react."""
        try:
            await super().cancel_safe(timeout=min(timeout, _CANCEL_SECONDS))
        except (OSError, psycopg.Error):
            _shutdown_socket(self)
        else:
            # The request uses another connection: its success does not mean that this connection gets a response.
            self._shutdown = asyncio.get_running_loop().call_later(_CANCEL_SECONDS, _shutdown_socket, self)

    async def wait(self, *args: Any, **options: Any) -> Any:
        """Waits for the driver's next step; cancels a shutdown that was scheduled during this wait."""
        try:
            return await super().wait(*args, **options)
        except asyncio.CancelledError as error:
            if (
                isinstance(error.__context__, asyncio.CancelledError)
                and self.pgconn.transaction_status == TransactionStatus.ACTIVE
            ):
                # A second cancellation interrupted the driver while it cancelled the statement. The statement still
                # runs, so the connection accepts no other one, not even the rollback that comes next.
                self.pgconn.finish()
            raise
        finally:
            if self._shutdown is not None:
                self._shutdown.cancel()
                self._shutdown = None


class ResponseWatchdog:
    """Shuts down connections whose response is overdue, from a thread that ends when nothing is watched."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._due: dict[psycopg.BaseConnection[Any], float] = {}
        self._next_check = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(
        self, connection: "psycopg.BaseConnection[Any]", seconds: float | None = None
    ) -> Iterator[Callable[[], None]]:
        """Watches a connection in use: each response is due within `seconds`, by default `self.seconds`.

        Call the returned function after each response; it restarts the deadline.
        """
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork
        allowed = self.seconds if seconds is None else seconds

        def answered() -> None:
            self._due[connection] = time.monotonic() + allowed

        with self._changed:
            answered()
            if self._thread is None:
                self._thread = threading.Thread(target=self._check_deadlines, name="holdfast-watchdog", daemon=True)
                self._thread.start()
            elif self._due[connection] < self._next_check:
                self._changed.notify()
        try:
            yield answered
        finally:
            with self._changed:  # otherwise it could be shut down while the next caller uses it
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


def _shutdown_socket(connection: "psycopg.BaseConnection[Any]") -> None:
    # A duplicate of the handle: the driver's handle stays open, and its next read fails.
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)
