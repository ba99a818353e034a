"""HTTP connections with deadlines and a limited number of connections, so that slow or idle clients cannot block
others.

Uvicorn limits how long a connection may be idle between two requests, and nothing else: a client that sends a request
byte by byte holds its connection and a file descriptor without limit.
"""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast._log import get_logger

log = get_logger("holdfast.console")

MAX_CONNECTIONS = 512
ACCEPTED_AT_ONCE = 16
"""Connections that one event loop iteration accepts. The cap takes effect two iterations later, so this limits how far
it can be exceeded."""
_QUEUED_BY_KERNEL = 1024
_REPORT_SECONDS = 60.0


class Phase(StrEnum):
    """What a connection waits for from its client."""

    HEAD = "head"
    BODY = "body"
    READ = "read"
    CLOSE = "close"


DEADLINES = {Phase.HEAD: 10.0, Phase.BODY: 30.0, Phase.READ: 30.0, Phase.CLOSE: 5.0}
"""Seconds for: the next request's complete headers, its body, reading the response, closing."""


def connection_cap() -> int:
    """Half of the process's file descriptor limit. The store and everything else use the other half."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


@dataclass(slots=True)
class ConnectionLimit:
    """Shared by the connections of one server: the maximum of open connections and the number closed early."""

    cap: int
    closed: int = 0


class HttpConnection(H11Protocol):
    """One client's connection. At the cap, a new connection closes the one that has waited longest for its client."""

    def __init__(self, *args: Any, limit: ConnectionLimit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = limit
        self._write_blocked = False
        self._waits: tuple[Phase | None, object, int] = (Phase.HEAD, None, 0)
        self._since = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limit.cap:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, HttpConnection) and connection.client_phase() is not None
            ]
            # If every other client has sent its request, only this connection waits, so it is closed.
            min(waiting, key=lambda connection: connection._since).abort()

    def client_phase(self) -> Phase | None:
        """Returns what the client has to do next, or `None` while the application handles its request."""
        # A large response is one write, so the remaining buffer size shows whether the client reads.
        waits = (self._phase(), self.cycle, self.transport.get_write_buffer_size())
        if waits != self._waits:
            self._waits, self._since = waits, time.monotonic()
        return waits[0]

    def _phase(self) -> Phase | None:
        if self.transport.is_closing():
            return Phase.CLOSE
        if self._write_blocked:
            return Phase.READ
        if self.conn.their_state is h11.IDLE:
            return Phase.HEAD
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        return Phase.CLOSE if self.cycle is None or self.cycle.response_complete else None

    def overdue(self, now: float) -> bool:
        """Whether the client has exceeded its deadline."""
        phase = self.client_phase()
        return phase is not None and now - self._since > DEADLINES[phase]

    def abort(self) -> None:
        """Closes the connection immediately and drops unread and unsent data."""
        self._limit.closed += 1
        self.connections.discard(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        self._write_blocked = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._write_blocked = False
        super().resume_writing()


def create_server(app: ASGIApp) -> uvicorn.Server:
    """Returns a server with bounded connections and bounded logging."""
    limit = ConnectionLimit(connection_cap())
    return _BoundedServer(
        uvicorn.Config(
            app,
            http=partial(HttpConnection, limit=limit),  # type: ignore[arg-type]
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            log_level="error",  # a warning per malformed request would let any client fill the log
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        ),
        limit,
    )


class _BoundedServer(uvicorn.Server):
    """Closes overdue connections and logs their number once a minute. Installs no signal handlers."""

    def __init__(self, config: uvicorn.Config, limit: ConnectionLimit) -> None:
        super().__init__(config)
        self._limit, self._reported = limit, time.monotonic()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # `backlog` only limits accepts per iteration; the kernel queue may be longer.
            listener.listen(_QUEUED_BY_KERNEL)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = time.monotonic()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, HttpConnection) and connection.overdue(now):
                    connection.abort()
            self._report(now)
        return await super().on_tick(counter)

    def _report(self, now: float) -> None:
        if self._limit.closed and now - self._reported >= _REPORT_SECONDS:
            log.warning("slow connections closed", count=self._limit.closed, open_at_most=self._limit.cap)
            self._limit.closed, self._reported = 0, now
