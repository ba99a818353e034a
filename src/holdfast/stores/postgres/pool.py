"""Connections kept for the next use. No tasks or threads of its own: nothing to wait for when a loop or process ends."""

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from holdfast.core.errors import StoreUnavailable

C = TypeVar("C", bound="psycopg.BaseConnection[Any]")


class _IdleConnections(Generic[C]):
    """Idle connections, newest first. One that the server has closed meanwhile is never handed out."""

    def __init__(self) -> None:
        self._idle: list[C] = []
        self._closed = False

    def take(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if _sound(connection):
                return connection
            # The server went away: the others went with it.
            _finish(connection)
            self.clear()
        return None

    def put(self, connection: C) -> None:
        if not self._closed and not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
            return
        if connection.closed or connection.info.status is not ConnStatus.OK:
            # It broke in use. The idle ones went the same way to the same server: each would cost its caller the same wait.
            self.clear()
        _finish(connection)

    def clear(self) -> None:
        while self._idle:
            _finish(self._idle.pop())

    def close(self) -> None:
        """Closes what is idle now and what is in use when it comes back."""
        self._closed = True
        self.clear()


class Pool:
    """Connections for blocking callers, of any thread."""

    def __init__(self, connect: Callable[[], psycopg.Connection], size: int, timeout: float, name: str) -> None:
        self._connect, self._size, self._timeout, self._name = connect, size, timeout, name
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._slots = threading.BoundedSemaphore(self._size)
        self._shelf: _IdleConnections[psycopg.Connection] = _IdleConnections()

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """A connection of this caller's alone; what is left in a transaction, or broken, is closed afterwards."""
        if self._process != os.getpid():
            # The parent's connections are left alone: finalising them here would end its sessions.
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
                # After a fail-over a session may stay read-only for ever; a new one leads to where it can write.
                _finish(connection)
                raise
            finally:
                shelf.put(connection)
        finally:
            slots.release()

    def close(self) -> None:
        """Closes what is idle now, and what is in use when it comes back; a later caller gets a new connection."""
        if self._process == os.getpid():
            self._shelf.close()
            self._shelf = _IdleConnections()


class AsyncPool:
    """Connections for awaiting callers. They belong to a loop: in another loop, or after a fork, it starts anew."""

    def __init__(
        self, connect: Callable[[], Awaitable[psycopg.AsyncConnection]], size: int, timeout: float, name: str
    ) -> None:
        self._connect, self._size, self._timeout, self._name = connect, size, timeout, name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._shelf: _IdleConnections[psycopg.AsyncConnection] = _IdleConnections()
        self._slots = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection of this caller's alone; what is left in a transaction, or broken, is closed afterwards."""
        self._settle_in()
        slots, shelf = self._slots, self._shelf
        try:
            # One that is free is had at once: the clock is for those who wait.
            async with asyncio.timeout(self._timeout) if slots.locked() else contextlib.nullcontext():
                await slots.acquire()
        except TimeoutError:
            raise StoreUnavailable(self._name, _exhausted(self._size, self._timeout)) from None
        try:
            connection = shelf.take() or await self._connect()
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:
                # After a fail-over a session may stay read-only for ever; a new one leads to where it can write.
                _finish(connection)
                raise
            finally:
                shelf.put(connection)
        finally:
            slots.release()

    def close(self) -> None:
        """As `Pool.close`; needs no loop."""
        if self._process == os.getpid():
            self._shelf.close()
            self._shelf = _IdleConnections()

    def _settle_in(self) -> None:
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._inherited = self._shelf
        elif self._loop is loop:
            return
        else:
            self._shelf.close()
        self._process, self._loop = os.getpid(), loop
        self._shelf, self._slots = _IdleConnections(), asyncio.Semaphore(self._size)


def _sound(connection: "psycopg.BaseConnection[Any]") -> bool:
    """Whether an idle connection can be used: a server that closed it has made its socket readable."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    return not poll.poll(0)


def _finish(connection: Any) -> None:
    """Closes a connection of either colour. An awaiting one's `close` awaits nothing, so that it needs no loop."""
    closing = connection.close()
    if closing is not None:
        with contextlib.suppress(StopIteration):
            closing.send(None)


def _exhausted(size: int, timeout: float) -> str:
    return f"all {size} connections were in use for {timeout:g} s"
