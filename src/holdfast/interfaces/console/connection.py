"""HTTP connections with deadlines and a cap, so that slow or idle clients cannot keep others from being served.

Uvicorn limits how long a connection may be idle between two requests, and nothing else: a client that sends a request
byte by byte holds its connection, and a file descriptor, for as long as it likes.
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
"""How many connections one turn of the event loop accepts. The cap takes effect two turns later, so this bounds by how
much it can be exceeded."""
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
    """Half of the file descriptors this process may open: the other half is for the store and everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


@dataclass(slots=True)
class Pool:
    """What the connections of one server share: how many may be open, and how many were closed early."""

    cap: int
    closed: int = 0


class Connection(H11Protocol):
    """One client's connection. Once as many are open as the pool's cap, a new one takes the place of the one that waits longest."""

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = pool
        self._blocked = False
        self._waits: tuple[Phase | None, object, int] = (Phase.HEAD, None, 0)
        self._since = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._pool.cap:
            waiting = [one for one in self.connections if isinstance(one, Connection) and one.waits_for() is not None]
            # If every other client has sent its request, this one is the newest that waits, and has to go.
            min(waiting, key=lambda one: one._since).end()

    def waits_for(self) -> Phase | None:
        """What the client has to do next; none while the application works on its request."""
        # A large response is one write: what is left of it shows whether the client reads.
        waits = (self._phase(), self.cycle, self.transport.get_write_buffer_size())
        if waits != self._waits:
            self._waits, self._since = waits, time.monotonic()
        return waits[0]

    def _phase(self) -> Phase | None:
        if self.transport.is_closing():
            return Phase.CLOSE
        if self._blocked:
            return Phase.READ
        if self.conn.their_state is h11.IDLE:
            return Phase.HEAD
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        return Phase.CLOSE if self.cycle is None or self.cycle.response_complete else None

    def overdue(self, now: float) -> bool:
        """Whether the client has taken longer than it may."""
        phase = self.waits_for()
        return phase is not None and now - self._since > DEADLINES[phase]

    def end(self) -> None:
        """Closes the connection at once, whatever is left to read or to write."""
        self._pool.closed += 1
        self.connections.discard(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        self._blocked = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked = False
        super().resume_writing()


def bounded_server(app: ASGIApp) -> uvicorn.Server:
    """A server of `app` that strangers can neither exhaust nor make log without bound."""
    pool = Pool(connection_cap())
    return _Server(
        uvicorn.Config(
            app,
            http=partial(Connection, pool=pool),  # type: ignore[arg-type]
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            log_level="error",  # a warning for every malformed request would let strangers fill the log
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        ),
        pool,
    )


class _Server(uvicorn.Server):
    """Closes connections that are overdue, and says once a minute how many. Leaves signals to the caller."""

    def __init__(self, config: uvicorn.Config, pool: Pool) -> None:
        super().__init__(config)
        self._pool, self._reported = pool, time.monotonic()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            # Few are accepted at once, many may wait for it.
            one.listen(_QUEUED_BY_KERNEL)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = time.monotonic()
            for one in tuple(self.server_state.connections):
                if isinstance(one, Connection) and one.overdue(now):
                    one.end()
            self._report(now)
        return await super().on_tick(counter)

    def _report(self, now: float) -> None:
        if self._pool.closed and now - self._reported >= _REPORT_SECONDS:
            log.warning("slow connections closed", count=self._pool.closed, open_at_most=self._pool.cap)
            self._pool.closed, self._reported = 0, now
