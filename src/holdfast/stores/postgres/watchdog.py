"""Deadlines for every answer of the server: a connection that stays silent for too long is shut down.

Keepalives and `tcp_user_timeout` detect a peer that is gone. They do not detect a pooler that hangs or a server that was
stopped, because their kernels still acknowledge packets. So a connection that is waited for past its deadline is shut
down, and the caller sees an ordinary broken connection.
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

_CANCEL_SECONDS = 0.5
_REPEAT_SECONDS = 0.1


class CancellableConnection(psycopg.AsyncConnection):
    """A connection whose cancelled caller gets control back within about a second, even if the server is silent."""

    _shutdown: asyncio.TimerHandle | None = None

    async def cancel_safe(self, *, timeout: float = _CANCEL_SECONDS) -> None:  # noqa: ASYNC109
        """Requests cancellation of the running statement; shuts the connection down if the server does not react."""
        try:
            await super().cancel_safe(timeout=min(timeout, _CANCEL_SECONDS))
        except (OSError, psycopg.Error):
            _shutdown_socket(self)
        else:
            # The request travels on a connection of its own: that it arrived does not mean that an answer arrives here.
            self._shutdown = asyncio.get_running_loop().call_later(_CANCEL_SECONDS, _shutdown_socket, self)

    async def wait(self, *args: Any, **options: Any) -> Any:
        """Waits for the driver's next step; a shutdown that was scheduled meanwhile is for this wait alone."""
        try:
            return await super().wait(*args, **options)
        finally:
            if self._shutdown is not None:
                self._shutdown.cancel()
                self._shutdown = None


class ResponseWatchdog:
    """Shuts connections down whose answer is overdue, from a thread that ends when nothing is watched."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._due: dict[psycopg.BaseConnection[Any], float] = {}
        self._next_look = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(
        self, connection: "psycopg.BaseConnection[Any]", seconds: float | None = None
    ) -> Iterator[Callable[[], None]]:
        """Watches a connection in use: each answer is due within `seconds`, by default this object's.

        Call the function it yields after each answer, which starts the time for the next one.
        """
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork
        allowed = self.seconds if seconds is None else seconds

        def answered() -> None:
            self._due[connection] = time.monotonic() + allowed

        with self._changed:
            answered()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="holdfast-silence", daemon=True)
                self._thread.start()
            elif self._due[connection] < self._next_look:
                self._changed.notify()
        try:
            yield answered
        finally:
            with self._changed:  # or it could be shut down while the next caller uses it
                del self._due[connection]

    def _look(self) -> None:
        with self._changed:
            while self._due:
                now = time.monotonic()
                for connection, due in self._due.items():
                    if due <= now:
                        _shutdown_socket(connection)
                # Shutting down is repeated until the caller has noticed: it costs nothing and needs no second state.
                self._next_look = max(min(self._due.values()), now + _REPEAT_SECONDS)
                self._changed.wait(self._next_look - now)
            self._next_look, self._thread = float("inf"), None


def _shutdown_socket(connection: "psycopg.BaseConnection[Any]") -> None:
    # The driver's own handle stays open, so that it notices by itself.
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
