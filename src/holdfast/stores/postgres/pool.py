"""Connection pools without background tasks or threads: a loop or a process can end without waiting for them."""

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.watchdog import CancellableConnection

C = TypeVar("C", bound="psycopg.BaseConnection[Any]")

# The number of the enumeration: to build the member takes longer than to read the status.
_IDLE = int(TransactionStatus.IDLE)


class _IdleConnections(Generic[C]):
    """Idle connections, newest first. `take` never returns a connection that the server has closed."""

    def __init__(self) -> None:
        self._idle: list[C] = []
        self._closed = False

    def take(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if _sound(connection):
                return connection
            # The server closed it, so the other idle connections are closed as well.
            _finish(connection)
            self.clear()
        return None

    def put(self, connection: C) -> None:
        if not self._closed and connection.pgconn.transaction_status == _IDLE:
            self._idle.append(connection)
            return
        if connection.closed or connection.info.status is not ConnStatus.OK:
            # It broke in use. The idle ones use the same server, and each would cost its caller the same wait.
            self.clear()
        _finish(connection)

    def clear(self) -> None:
        while self._idle:
            _finish(self._idle.pop())

    def close(self) -> None:
        """Closes idle connections now, and the others when they are returned."""
        self._closed = True
        self.clear()


class Pool:
    """Connections for blocking callers in any thread."""

    def __init__(self, connect: Callable[[], psycopg.Connection], size: int, timeout: float, name: str) -> None:
        self._connect, self._size, self._timeout, self._name = connect, size, timeout, name
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._slots = threading.BoundedSemaphore(self._size)
        self._shelf: _IdleConnections[psycopg.Connection] = _IdleConnections()

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """A connection for exclusive use; it is closed afterwards if it is broken or still in a transaction."""
        if self._process != os.getpid():
            # Keep a reference to the parent's connections: finalizing them in the child would end the parent's sessions.
            self._inherited = self._shelf
            self._reset()
        slots, shelf = self._slots, self._shelf
        if not slots.acquire(timeout=self._timeout):
            raise StoreUnavailable(self._name, _exhausted(self._size, self._timeout))
        try:
            connection = shelf.take() or self._connect()
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:
                # After a failover a session may stay read-only; a new connection reaches the new primary.
                _finish(connection)
                raise
            finally:
                shelf.put(connection)
        finally:
            slots.release()

    def close(self) -> None:
        """Closes idle connections now, and the others when they are returned; a later caller gets a new connection."""
        if self._process == os.getpid():
            self._shelf.close()
            self._shelf = _IdleConnections()


class AsyncPool:
    """Connections for async callers. They belong to one loop: in another loop or after a fork the pool starts empty."""

    def __init__(
        self, connect: Callable[[], Awaitable[CancellableConnection]], size: int, timeout: float, name: str
    ) -> None:
        self._connect, self._size, self._timeout, self._name = connect, size, timeout, name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._shelf: _IdleConnections[CancellableConnection] = _IdleConnections()
        self._slots = asyncio.Semaphore(size)

    def connection(self) -> "_Borrowed":
        """A connection for exclusive use; it is closed afterwards if it is broken or still in a transaction."""
        self._use_current_loop()
        return _Borrowed(self, self._shelf, self._slots)

    async def acquire(self, slots: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await slots.acquire()
        except TimeoutError:
            raise StoreUnavailable(self._name, _exhausted(self._size, self._timeout)) from None

    async def connect(self) -> CancellableConnection:
        return await self._connect()

    def close(self) -> None:
        """`Pool.close`; needs no running loop."""
        if self._process == os.getpid():
            self._shelf.close()
            self._shelf = _IdleConnections()

    def _use_current_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._inherited = self._shelf
        elif self._loop is loop:
            return
        else:
            self._shelf.close()
        self._process, self._loop = os.getpid(), loop
        self._shelf, self._slots = _IdleConnections(), asyncio.Semaphore(self._size)


class _Borrowed:
    """A connection in use. A class, because a generator as a context manager takes twice as long."""

    __slots__ = ("_connection", "_pool", "_shelf", "_slots")

    def __init__(
        self, pool: AsyncPool, shelf: _IdleConnections[CancellableConnection], slots: asyncio.Semaphore
    ) -> None:
        self._pool, self._shelf, self._slots = pool, shelf, slots

    async def __aenter__(self) -> CancellableConnection:
        if self._slots.locked():
            # Start a timeout only if the caller has to wait: it costs time.
            await self._pool.acquire(self._slots)
        else:
            await self._slots.acquire()
        try:
            self._connection = self._shelf.take() or await self._pool.connect()
        except BaseException:
            self._slots.release()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                # After a failover a session may stay read-only; a new connection reaches the new primary.
                _finish(self._connection)
            self._shelf.put(self._connection)
        finally:
            self._slots.release()


def _sound(connection: "psycopg.BaseConnection[Any]") -> bool:
    """Whether an idle connection can be used: the socket becomes readable when the server closes it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return not poll.poll(0)


def _finish(connection: Any) -> None:
    """Closes a blocking or async connection. The `close` of an async one awaits nothing, so it needs no loop."""
    closing = connection.close()
    if closing is not None:
        with contextlib.suppress(StopIteration):
            closing.send(None)


def _exhausted(size: int, timeout: float) -> str:
    return f"all {size} connections were in use for {timeout:g} s"
