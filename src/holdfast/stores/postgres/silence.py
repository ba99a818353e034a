"""Hanging up on a server that has gone silent: a peer that is reachable and never answers must not be waited for for ever.

Keepalives and `tcp_user_timeout` find a peer that is gone. They do not find a pooler that hangs, or a server that was
stopped: their kernels go on answering. So whoever waits for longer than the patience has its line cut, and sees an
ordinary broken connection.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

_LOOKS = 4
_LAST_WORD = 1.0


class Line(psycopg.AsyncConnection):
    """A connection whose cancelled caller is let go within about a second, whether the server answers or not."""

    async def cancel_safe(self, *, timeout: float = _LAST_WORD) -> None:  # noqa: ASYNC109
        """Asks the server to stop what it is doing; hangs up when it cannot be asked."""
        try:
            await super().cancel_safe(timeout=min(timeout, _LAST_WORD))
        except (OSError, psycopg.Error):
            _hang_up(self)


class Patience:
    """Cuts connections that have been waited for too long, from a thread that ends when nobody waits any more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._due: dict[psycopg.BaseConnection[Any], float] = {}
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(self, connection: "psycopg.BaseConnection[Any]") -> Iterator[Callable[[], None]]:
        """Watches over a connection in use. Call what it gives after each answer: the patience begins anew."""
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork

        def answered() -> None:
            self._due[connection] = time.monotonic() + self._seconds

        with self._lock:
            answered()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="holdfast-silence", daemon=True)
                self._thread.start()
        try:
            yield answered
        finally:
            with self._lock:  # the line must not be cut when the connection is somebody else's
                del self._due[connection]

    def _look(self) -> None:
        while True:
            time.sleep(self._seconds / _LOOKS)
            with self._lock:
                now = time.monotonic()
                for connection, due in self._due.items():
                    if due < now:
                        _hang_up(connection)
                if not self._due:
                    self._thread = None
                    return


def _hang_up(connection: "psycopg.BaseConnection[Any]") -> None:
    # The driver's own handle stays open, so that it finds out by itself.
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
