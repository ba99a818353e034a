"""A store of a simulated process: Holdfast's SQLite store on the shared connection, with latency and faults."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.core.errors import StoreLocked, StoreUnavailable
from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Topic
from holdfast.stores.sqlite.store import SqliteStore
from simulation.faults import Fault, Planned
from simulation.process import Dead, Process

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")

_NAME = "simulated"


class SimulatedStore(SqliteStore):
    """Runs each operation as the real store does. Faults strike before it starts or after it committed: on SQLite a
    transaction that was not committed leaves nothing behind."""

    def __init__(self, world: "World", process: Process) -> None:
        super().__init__(Path(_NAME))
        self.name = _NAME
        self.dialect = world.database.dialect
        self._world, self._life = world, process
        self._connection = world.database.connection

    async def run(self, operation: Operation[T]) -> T:
        world, process = self._world, self._life
        await asyncio.sleep(world.latency(process))
        fault = world.next_fault(process)
        if fault is not None:
            await self._before(fault)
        lock = object()
        process.locks.add(lock)
        await world.database.acquire(lock)
        try:
            result = super().run_sync(operation)
        finally:
            world.database.release(lock)
            process.locks.discard(lock)
        if fault is not None:
            await self._after(fault)
        if (reply := world.reply_latency()) > 0:
            await asyncio.sleep(reply)
        return result

    def run_sync(self, operation: Operation[T]) -> T:
        """In a thread of the process: without virtual time, so a pause strikes after it."""
        world, process = self._world, self._life
        fault = world.next_fault(process)
        kind = None if fault is None else fault.fault
        if kind is Fault.KILLED_BEFORE:
            world.kill(process)
            raise Dead
        if kind is Fault.REFUSED:
            raise StoreUnavailable(_NAME, "connection refused")
        if not world.database.is_free:
            raise StoreLocked(_NAME)
        result = super().run_sync(operation)
        if kind is Fault.KILLED_AFTER:
            world.kill(process)
            raise Dead
        if fault is not None and kind in (Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER, Fault.BLOCKED):
            process.pause(world.pause_seconds(fault), only_main=kind is Fault.BLOCKED)
        if kind is Fault.REPLY_LOST:
            raise StoreUnavailable(_NAME, "connection lost")
        return result

    @contextlib.contextmanager
    def transaction(self, lock_timeout: timedelta) -> Iterator[sqlite3.Connection]:
        """In a thread of the process, like `run_sync`."""
        if not self._world.database.is_free:
            raise StoreLocked(_NAME)
        with super().transaction(lock_timeout) as connection:
            yield connection

    async def _before(self, fault: Planned) -> None:
        match fault.fault:
            case Fault.REFUSED:
                raise StoreUnavailable(_NAME, "connection refused")
            case Fault.KILLED_BEFORE:
                await self._die()
            case Fault.PAUSED_BEFORE | Fault.BLOCKED:
                await self._pause(fault)

    async def _after(self, fault: Planned) -> None:
        match fault.fault:
            case Fault.REPLY_LOST:
                raise StoreUnavailable(_NAME, "connection lost")
            case Fault.KILLED_AFTER:
                await self._die()
            case Fault.PAUSED_AFTER:
                await self._pause(fault)

    async def _pause(self, fault: Planned) -> None:
        self._life.pause(self._world.pause_seconds(fault), only_main=fault.fault is Fault.BLOCKED)
        await asyncio.sleep(0)

    async def _die(self) -> None:
        self._world.kill(self._life)
        await asyncio.get_running_loop().create_future()

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """Wakes the process some time after a commit; some notifications are lost."""
        await self._world.listen(self._life, wake)

    def hint_is_scheduled(self) -> bool:
        return False

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        """Notifies the listening processes, as on PostgreSQL: only after a publish, and best effort."""
        self._world.notify()

    @contextlib.contextmanager
    def engine_lock(self) -> Iterator[None]:
        """Several engines share the database here, as on PostgreSQL."""
        yield

    def migrate(self, lock_timeout: timedelta = timedelta(0)) -> list[str]:
        return []

    def check_schema(self) -> None:
        """The tables exist."""

    async def verify(self, conn: AsyncConnection) -> None:
        """There is one database."""

    def verify_sync(self, conn: Connection) -> None:
        """There is one database."""

    async def close(self) -> None:
        """The connection belongs to the world."""

    def close_sync(self) -> None:
        """The connection belongs to the world."""

    def _check_file(self) -> None:
        """There is no file."""

    def _open(self) -> sqlite3.Connection:
        self._world.database.process_name = self._life.name
        connection: sqlite3.Connection = self._world.database.connection
        return connection
