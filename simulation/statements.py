"""A PostgreSQL store of a simulated process. Each statement is a step of the scheduler, and may meet a fault.

The server, its locks and its snapshots are real. A statement that waits for a lock lets other processes run.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import pq, waiting
from psycopg.pq import ConnStatus, TransactionStatus

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import SESSION, PostgresStore
from holdfast.stores.protocol import Topic
from simulation.faults import Fault, Planned
from simulation.process import Dead, Process

if TYPE_CHECKING:
    from simulation.postgres import PostgresDatabase
    from simulation.world import World

T = TypeVar("T")

_COMPUTES = 0.02
"""Seconds without a result after which a statement may be waiting for a lock."""


class _Progress:
    """What a generator of the driver waits for, and what it returned."""

    def __init__(self) -> None:
        self.wanted: Any = None
        self.result: Any = None


class _NoWatchdog:
    """The deadlines of responses are those of real time, so nothing watches them here."""

    seconds = 60.0

    @contextlib.contextmanager
    def watch(self, connection: object, seconds: float | None = None) -> Iterator[Callable[[], None]]:
        yield lambda: None


class SimulatedConnection(psycopg.AsyncConnection[Any]):
    """A session of a simulated process."""

    prepared_calls: set[str] | None = None
    world: "World"
    process: Process
    database: "PostgresDatabase"
    pid = 0

    def __hash__(self) -> int:
        return self.pid

    def enter(self, world: "World", process: Process) -> None:
        self.world, self.process, self.database, self.pid = world, process, world.database, self.pgconn.backend_pid
        world.database.opened(self, process)
        self._set(
            f"set sim.process = '{process.name}'; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0"
        )

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """One statement: a latency, perhaps a fault, the statement itself, and perhaps another fault."""
        try:
            await asyncio.sleep(self.world.latency(self.process))
            fault = self.world.next_fault(self.process)
            if fault is not None:
                await self._before(fault)
        except asyncio.CancelledError:
            # The statement is on its way: the driver has sent it before it waits.
            self._cancel(gen)
            raise
        self._set_clock()
        try:
            result = await self._exchange(gen)
        finally:
            self.database.resume_unblocked()
        if fault is not None:
            await self._after(fault)
        return result

    def _cancel(self, gen: Any, progress: "_Progress | None" = None) -> None:
        """Runs a statement whose caller was cancelled; one that waits for a lock is cancelled on the server."""
        if self.pgconn.status != ConnStatus.OK:
            return
        if progress is None:
            self._set_clock()
        progress = progress or _Progress()
        with contextlib.suppress(psycopg.Error):
            while not self._step(gen, progress):
                if self.database.is_blocked(self):
                    self.pgconn.get_cancel().cancel()
        self.database.resume_unblocked()

    async def close(self) -> None:
        if not self.closed:
            self._closed = True
            self.database.close(self)

    def _set_clock(self) -> None:
        status = self.pgconn.transaction_status
        if status == TransactionStatus.IDLE:
            at = self.world.clock.timestamp()
            self._set(f"set sim.now = '{at}'; set sim.clock = '{at}'")
        elif status == TransactionStatus.INTRANS:
            self._set(f"set sim.clock = '{self.world.clock.timestamp()}'")

    def _set(self, text: str) -> None:
        self.pgconn.exec_(text.encode())

    async def _exchange(self, gen: Any) -> Any:
        progress = _Progress()
        while not self._step(gen, progress):
            if self.database.is_blocked(self):
                self.process.record("waits for a lock")
                try:
                    await self.database.unblocked(self)
                except asyncio.CancelledError:
                    self._cancel(gen, progress)
                    raise
        return progress.result

    def _step(self, gen: Any, progress: "_Progress") -> bool:
        """Continues an exchange with the server; False if it has sent nothing for a while."""
        fileno = self.pgconn.socket
        try:
            if progress.wanted is None:
                progress.wanted = next(gen)
            while True:
                reads = [fileno] if progress.wanted & waiting.WAIT_R else []
                writes = [fileno] if progress.wanted & waiting.WAIT_W else []
                readable, writable, _ = select.select(reads, writes, (), _COMPUTES)
                if not readable and not writable:
                    return False
                ready = (waiting.READY_R if readable else 0) | (waiting.READY_W if writable else 0)
                progress.wanted = gen.send(ready)
        except StopIteration as stopped:
            progress.result = stopped.value
            return True

    async def _before(self, fault: Planned) -> None:
        match fault.fault:
            case Fault.REFUSED:
                self._lose()
            case Fault.KILLED_BEFORE:
                await self._die()
            case Fault.PAUSED_BEFORE | Fault.BLOCKED:
                await self._pause(fault)

    async def _after(self, fault: Planned) -> None:
        match fault.fault:
            case Fault.REPLY_LOST:
                self._lose()
            case Fault.KILLED_AFTER:
                await self._die()
            case Fault.PAUSED_AFTER:
                await self._pause(fault)

    def _lose(self) -> None:
        self.database.close(self)
        raise psycopg.OperationalError("connection lost")

    async def _pause(self, fault: Planned) -> None:
        self.process.pause(self.world.pause_seconds(fault), only_main=fault.fault is Fault.BLOCKED)
        await asyncio.sleep(0)

    async def _die(self) -> None:
        self.world.kill(self.process)
        await asyncio.get_running_loop().create_future()


class BlockingConnection(psycopg.Connection[Any]):
    """A session of a thread of a simulated process: its statements take no virtual time."""

    clock: Any = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        if self.clock is not None and self.pgconn.transaction_status == TransactionStatus.IDLE:
            at = self.clock.timestamp()
            self.pgconn.exec_(f"set sim.now = '{at}'; set sim.clock = '{at}'".encode())
        return super().wait(gen, *args, **options)


class SimulatedPostgresStore(PostgresStore):
    """Holdfast's PostgreSQL store with sessions that the scheduler steps through."""

    def __init__(self, world: "World", process: Process) -> None:
        super().__init__(world.database.dsn)
        self.name = "simulated"
        self.dialect = world.database.dialect
        self._patience: Any = _NoWatchdog()
        self._world, self._life = world, process

    def within(self, patience: timedelta) -> "SimulatedPostgresStore":
        return self

    async def open_session(self, session: str = SESSION) -> SimulatedConnection:
        """A new session; the first statement of a process may fail, but to connect does not."""
        await asyncio.sleep(self._world.latency())
        pgconn = pq.PGconn.connect(self.conninfo.encode())
        if pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(pgconn.get_error_message())
        pgconn.nonblocking = 1
        connection = SimulatedConnection(pgconn)
        connection.enter(self._world, self._life)
        connection._set(session)
        await connection.set_autocommit(True)
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        self._adapt(connection, None)
        connection.prepared_calls = set()
        return connection

    async def _open_async(self, session: str) -> Any:
        return await self.open_session(session)

    def _open(self, session: str = "") -> Any:
        connection = BlockingConnection.connect(self.conninfo, autocommit=True)
        self._adapt(connection, None)
        # A blocking statement cannot let others run, so it does not wait for them.
        limits = f"set lock_timeout = '20ms'; set sim.process = '{self._life.name}'; {session or 'select 1'}"
        connection.execute(limits.encode())
        connection.clock = self._world.clock
        return connection

    def run_sync(self, operation: Operation[T]) -> T:
        world, process = self._world, self._life
        fault = world.next_fault(process)
        kind = None if fault is None else fault.fault
        if kind is Fault.KILLED_BEFORE:
            world.kill(process)
            raise Dead
        if kind is Fault.REFUSED:
            raise StoreUnavailable(self.name, "connection refused")
        result = super().run_sync(operation)
        world.database.resume_unblocked()
        if kind is Fault.KILLED_AFTER:
            world.kill(process)
            raise Dead
        if fault is not None and kind in (Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER, Fault.BLOCKED):
            process.pause(world.pause_seconds(fault), only_main=kind is Fault.BLOCKED)
        if kind is Fault.REPLY_LOST:
            raise StoreUnavailable(self.name, "connection lost")
        return result

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """Wakes the process some time after a commit; some notifications are lost."""
        await self._world.listen(self._life, wake)

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        self._world.notify()

    def hint_sync(self) -> None:
        self._world.notify()

    def migrate(self, lock_timeout: timedelta = timedelta(0)) -> list[str]:
        return []

    def check_schema(self) -> None:
        """The tables exist."""

    async def verify(self, conn: AsyncConnection) -> None:
        """There is one database."""

    def verify_sync(self, conn: Connection) -> None:
        """There is one database."""
