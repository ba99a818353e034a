"""The database of a run: SQLite in memory, with triggers that record every change of a delivery and a lease."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import StoreLocked, StoreUnavailable
from holdfast.stores.sqlite.dialect import SqliteDialect
from holdfast.stores.sqlite.store import migrate_on
from holdfast.stores.statement import Statements
from simulation.clock import Clock

if TYPE_CHECKING:
    from holdfast.stores.protocol import Store
    from simulation.process import Process
    from simulation.world import World

PATIENCE = 10.0
"""Seconds that a transaction waits for the write lock."""

_TABLES = """
create table sim_change (
  n integer primary key, at integer, process text, delivery text, message text, consumer text, flow_key text,
  old_status text, status text, old_fence integer, fence integer, old_attempts integer, attempts integer,
  old_owner text, owner text, old_run_at integer, run_at integer, old_lease integer, discarded integer, budget integer);
create table sim_lease (n integer primary key, at integer, process text, worker text, alive_until integer, gone integer);
create table sim_pause (n integer primary key, at integer, consumer text, paused integer);
create table effect (n integer not null, delivery text not null, consumer text not null, attempt integer not null);
create table business (n integer not null);
create trigger sim_delivery_added after insert on holdfast_delivery begin
  insert into sim_change values (sim_number(), sim_now(), sim_process(), new.id, new.message_id, new.consumer,
    new.flow_key, null, new.status, null, new.fence, null, new.attempts, null, new.locked_by, null, new.run_at, null,
    new.discarded_at, new.max_attempts);
end;
create trigger sim_delivery_changed after update on holdfast_delivery begin
  insert into sim_change values (sim_number(), sim_now(), sim_process(), new.id, new.message_id, new.consumer,
    new.flow_key, old.status, new.status, old.fence, new.fence, old.attempts, new.attempts, old.locked_by,
    new.locked_by, old.run_at, new.run_at, old.lease_until, new.discarded_at, new.max_attempts);
end;
create trigger sim_delivery_removed after delete on holdfast_delivery begin
  insert into sim_change values (sim_number(), sim_now(), sim_process(), old.id, old.message_id, old.consumer,
    old.flow_key, old.status, 'removed', old.fence, old.fence, old.attempts, old.attempts, old.locked_by, null,
    old.run_at, old.run_at, old.lease_until, old.discarded_at, old.max_attempts);
end;
create trigger sim_lease_added after insert on holdfast_worker begin
  insert into sim_lease values (sim_number(), sim_now(), sim_process(), new.id, new.alive_until, 0);
end;
create trigger sim_lease_changed after update of alive_until on holdfast_worker begin
  insert into sim_lease values (sim_number(), sim_now(), sim_process(), new.id, new.alive_until, 0);
end;
create trigger sim_lease_removed after delete on holdfast_worker begin
  insert into sim_lease values (sim_number(), sim_now(), sim_process(), old.id, old.alive_until, 1);
end;
create trigger sim_consumer_paused after update of paused_at on holdfast_consumer begin
  insert into sim_pause values (sim_number(), sim_now(), new.name, new.paused_at is not null);
end;
"""


class Database:
    """The SQLite database. One connection for all processes: SQLite runs one write transaction at a time anyway.

    `acquire` is the write lock in virtual time. It is held over several turns only by transactions of handlers and
    publishers; the store's own transactions take no virtual time.
    """

    delivery, message = "holdfast_delivery", "holdfast_message"
    name = "sqlite"
    fault_factor = 1.0
    """How likely a fault is here, compared with an operation of SQLite."""
    longest_transaction = 0.5
    """In virtual seconds. No other process can write during it, or renew its lease."""

    def __init__(self) -> None:
        self.dialect = SqliteDialect()
        self.dialect.now = "sim_now()"
        self.dialect.statements = Statements(
            "holdfast.stores.sqlite.statements", {"hf": "holdfast_", "now": "sim_now()"}
        )
        self.connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=2000)
        self.clock = Clock()
        self.process_name, self.numbers = "setup", 0
        self._holder: object | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.connection.create_function("sim_now", 0, lambda: self.clock.milliseconds())
        self.connection.create_function("sim_process", 0, lambda: self.process_name)
        self.connection.create_function("sim_number", 0, self.number)
        self.connection.execute("begin")
        migrate_on(self.connection, self.dialect)
        self.connection.execute("commit")
        self.connection.executescript(_TABLES)
        self._names = [
            name
            for (name,) in self.connection.execute("select name from sqlite_master where type = 'table' order by name")
        ]
        self._initial = {name: self.connection.execute(f"select * from {name}").fetchall() for name in self._names}

    def read(self, text: str) -> list[tuple[Any, ...]]:
        """Rows as the world sees them."""
        return self.connection.execute(text).fetchall()

    @property
    def is_readable(self) -> bool:
        """Whether all that can be read is committed."""
        return not self.connection.in_transaction

    def store(self, process: "Process", world: "World") -> "Store":
        """The store of a process."""
        from simulation.store import SimulatedStore

        return SimulatedStore(world, process)

    def end(self, process: "Process") -> None:
        """Rolls back what a process that died had open."""
        for lock in list(process.locks):
            self.release(lock)

    def number(self) -> int:
        """The next number of the history: changes of rows and events of processes share one order."""
        self.numbers += 1
        return self.numbers

    def reset(self, clock: Clock) -> None:
        """Empties the database for the next run. The connection stays, because its compiled statements are expensive."""
        self.clock, self.process_name = clock, "setup"
        self.forget_waiting()
        self.connection.execute("begin")
        # In the order of names: the recorded changes come after the tables whose triggers write them.
        for name in self._names:
            self.connection.execute(f"delete from {name}")
        for name, rows in self._initial.items():
            if rows:
                self.connection.executemany(f"insert into {name} values ({', '.join('?' * len(rows[0]))})", rows)
        self.connection.execute("commit")
        self.numbers = 0

    def forget_waiting(self) -> None:
        """Rolls back what is open and drops everything that waits."""
        self._holder, self._waiting = None, []
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    @property
    def is_free(self) -> bool:
        return self._holder is None

    async def acquire(self, holder: object) -> None:
        """Waits for the write lock; `StoreLocked` after `PATIENCE`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while self._holder is not None:
            if loop.time() >= deadline:
                raise StoreLocked("simulated")
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            timer = loop.call_at(deadline, _wake, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
        self._holder = holder

    def release(self, holder: object) -> None:
        """Releases the lock if this object holds it, and rolls back what is still open."""
        if self._holder is not holder:
            return
        if self.connection.in_transaction:
            self.connection.execute("rollback")
        self._holder = None
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.get_loop().call_soon(_wake, one)

    @contextlib.asynccontextmanager
    async def transaction(self, process: Any) -> AsyncIterator[sqlite3.Connection]:
        """A write transaction of application code, which other processes wait for."""
        if process.app.world.is_unreachable:
            raise StoreUnavailable("simulated", "connection refused")
        holder = process, object()
        process.locks.add(holder)
        await self.acquire(holder)
        try:
            self.process_name = process.name
            self.connection.execute("begin immediate")
            yield self.connection
            self.process_name = process.name
            self.connection.execute("commit")
        finally:
            if process.alive:
                self.release(holder)
                process.locks.discard(holder)

    async def insert(self, connection: Any, table: str, *values: object) -> None:
        """Writes a row in the transaction."""
        connection.execute(f"insert into {table} values ({', '.join('?' * len(values))})", values)

    async def complete(self, process: "Process", ctx: Any, connection: Any) -> None:
        """Completes the delivery in the transaction."""
        self.process_name = process.name
        ctx.sync.complete(conn=connection)

    async def publish(self, app: Any, connection: Any, *event: Any) -> Any:
        """Publishes in the transaction."""
        self.process_name = app.process.name
        return app.sync.publish(*event, conn=connection)

    async def enqueue(self, app: Any, job: Any, n: int) -> Any:
        """Enqueues a job in the transaction of its connection."""
        self.process_name = app.process.name
        return job.sync.enqueue(n)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


AnyDatabase = Any
"""A `Database`, or a `PostgresDatabase` with the same methods."""
