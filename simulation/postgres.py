"""The PostgreSQL database of a run: a real server whose clock is the world's, and where one statement runs at a time.

The functions `now()` and `clock_timestamp()` of the schema `sim` come before those of the server in the search path,
also when the tables are created, and return the time that the session got before its statement.
"""

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.store import PostgresStore
from simulation.clock import Clock
from tests.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.statements import SimulatedConnection

VERSION = 16
_TEMPLATE, _RUN = "sim_template", "sim_run"
_WAIT = 0.005
"""Seconds after which a statement without a result is checked: it computes, or it waits for a lock."""

_CLOCK = """
create schema sim;
create function sim.now() returns timestamptz language sql stable parallel safe
  as $$ select current_setting('sim.now')::timestamptz $$;
create function sim.clock_timestamp() returns timestamptz language sql stable parallel safe
  as $$ select current_setting('sim.clock')::timestamptz $$;
create function sim.milliseconds(t timestamptz) returns bigint language sql immutable parallel safe
  as $$ select round(extract(epoch from t) * 1000)::bigint $$;
create sequence sim.number;
"""

_TABLES = """
create table sim_change (
  n bigint primary key, at bigint, process text, delivery text, message text, consumer text, flow_key text,
  old_status text, status text, old_fence bigint, fence bigint, old_attempts integer, attempts integer,
  old_owner text, owner text, old_run_at bigint, run_at bigint, old_lease bigint, discarded bigint, budget integer);
create table sim_lease (n bigint primary key, at bigint, process text, worker text, alive_until bigint, gone integer);
create table sim_pause (n bigint primary key, at bigint, consumer text, paused integer);
create table effect (n integer not null, delivery text not null, consumer text not null, attempt integer not null);
create table business (n integer not null);
create function sim.changed() returns trigger language plpgsql as $$
declare o holdfast.delivery; d holdfast.delivery := coalesce(new, old);
begin
  if tg_op <> 'INSERT' then o := old; end if;
  insert into sim.sim_change values (nextval('sim.number'), sim.milliseconds(sim.now()),
    current_setting('sim.process'), d.id, d.message_id, d.consumer, d.flow_key, o.status,
    case when tg_op = 'DELETE' then 'removed' else d.status end, o.fence, d.fence, o.attempts, d.attempts, o.locked_by,
    case when tg_op = 'DELETE' then null else d.locked_by end, sim.milliseconds(o.run_at), sim.milliseconds(d.run_at),
    sim.milliseconds(o.lease_until), sim.milliseconds(d.discarded_at), d.max_attempts);
  return null;
end $$;
create function sim.lease_changed() returns trigger language plpgsql as $$
declare d holdfast.worker := coalesce(new, old);
begin
  insert into sim.sim_lease values (nextval('sim.number'), sim.milliseconds(sim.now()),
    current_setting('sim.process'), d.id, sim.milliseconds(d.alive_until), (tg_op = 'DELETE')::int);
  return null;
end $$;
create function sim.paused() returns trigger language plpgsql as $$
begin
  insert into sim.sim_pause values (nextval('sim.number'), sim.milliseconds(sim.now()), new.name,
    (new.paused_at is not null)::int);
  return null;
end $$;
-- Deferred to the commit: the history is in the order of commits, and what is rolled back is not in it.
create constraint trigger sim_delivery after insert or update or delete on holdfast.delivery
  deferrable initially deferred for each row execute function sim.changed();
create constraint trigger sim_lease after insert or update of alive_until or delete on holdfast.worker
  deferrable initially deferred for each row execute function sim.lease_changed();
create constraint trigger sim_pause after update of paused_at on holdfast.consumer
  deferrable initially deferred for each row execute function sim.paused();
"""


class PostgresDatabase:
    """One database for each run, copied from a migrated template, and a session that observes it."""

    delivery, message = "holdfast.delivery", "holdfast.message"
    name = "postgres"
    fault_factor = 0.4
    """An operation has several statements, and each may meet a fault."""
    longest_transaction = 2.0
    """In virtual seconds. Newer deliveries are committed and claimed during it."""

    def __init__(self) -> None:
        self.dialect = PostgresDialect("holdfast")
        self.clock = Clock()
        # Autovacuum and parallel workers would make a run less repeatable.
        self.server = PostgresServer(
            VERSION, settings={"autovacuum": "off", "deadlock_timeout": "50ms", "max_parallel_workers_per_gather": 0}
        )
        self.server.start()
        self.dsn = self.server.dsn(_RUN)
        self._control: psycopg.Connection | None = None
        self._open: dict[SimulatedConnection, Process] = {}
        self._blocked: dict[SimulatedConnection, asyncio.Future[None]] = {}
        self._create_template()

    def _create_template(self) -> None:
        template = self.server.create_database(_TEMPLATE)
        path = "sim, pg_catalog, public"
        self.server.execute(f"alter database {_TEMPLATE} set search_path = {path}")
        for name in ("now", "clock"):
            self.server.execute(f"alter database {_TEMPLATE} set sim.{name} = '{self.clock.timestamp()}'")
        self.server.execute(f"alter database {_TEMPLATE} set sim.process = 'setup'")
        with psycopg.connect(template, autocommit=True) as connection:
            connection.execute(_CLOCK)
        PostgresStore(template).migrate()
        with psycopg.connect(template, autocommit=True) as connection:
            connection.execute(_TABLES)

    def reset(self, clock: Clock) -> None:
        """A new copy of the template."""
        self.forget_waiting()
        self.clock = clock
        if self._control is not None:
            self._control.close()
        self.server.drop_database(_RUN)
        self.server.create_database(_RUN, _TEMPLATE)
        for name in ("now", "clock"):
            self.server.execute(f"alter database {_RUN} set sim.{name} = '{clock.timestamp()}'")
        self.server.execute(f"alter database {_RUN} set sim.process = 'world'")
        self.server.execute(f"alter database {_RUN} set search_path = sim, pg_catalog, public")
        self._control = psycopg.connect(self.dsn, autocommit=True)

    def shut_down(self) -> None:
        """Ends the server."""
        self.forget_waiting()
        if self._control is not None:
            self._control.close()
        self.server.close()

    def read(self, text: str) -> list[tuple[Any, ...]]:
        """Rows as the world sees them: what is committed."""
        assert self._control is not None
        return self._control.execute(text.encode()).fetchall()

    def number(self) -> int:
        """The next number of the history: changes of rows and events of processes share one order."""
        ((found,),) = self.read("select nextval('sim.number')")
        return int(found)

    @property
    def is_readable(self) -> bool:
        return True

    def store(self, process: "Process", world: Any) -> Any:
        from simulation.statements import SimulatedPostgresStore

        return SimulatedPostgresStore(world, process)

    def opened(self, connection: "SimulatedConnection", process: "Process") -> None:
        self._open[connection] = process

    def close(self, connection: "SimulatedConnection") -> None:
        """Ends a session. When this returns, the server has rolled back what it had open."""
        if self._open.pop(connection, None) is None:
            return
        self._blocked.pop(connection, None)
        pid, was_open = connection.pid, connection.pgconn.transaction_status != TransactionStatus.IDLE
        connection.pgconn.finish()
        if was_open:
            self.read(f"select pg_terminate_backend({pid}, 5000)")
            self.resume_unblocked()

    def end(self, process: "Process") -> None:
        """Ends the sessions of a process that died."""
        for connection in [one for one, owner in self._open.items() if owner is process]:
            self.close(connection)

    def forget_waiting(self) -> None:
        """Ends all sessions."""
        for connection in list(self._open):
            self.close(connection)
        self._blocked.clear()

    def is_blocked(self, connection: "SimulatedConnection") -> bool:
        """Whether the statement of a session waits for a lock."""
        ((found,),) = self.read(f"select cardinality(pg_blocking_pids({connection.pid}))")
        return bool(found)

    def has_result(self, connection: "SimulatedConnection", seconds: float = 0.0) -> bool:
        return bool(select.select([connection.pgconn.socket], (), (), seconds)[0])

    async def unblocked(self, connection: "SimulatedConnection") -> None:
        """Waits until the statement of this session got its lock, while other processes run."""
        future = self._blocked[connection] = asyncio.get_running_loop().create_future()
        try:
            await future
        finally:
            self._blocked.pop(connection, None)

    def resume_unblocked(self) -> None:
        """Resumes the sessions that no longer wait for a lock. Called after each statement of any session."""
        for connection, future in list(self._blocked.items()):
            while not future.done():
                if self.has_result(connection, _WAIT):
                    future.set_result(None)
                elif self.is_blocked(connection):
                    break

    @contextlib.asynccontextmanager
    async def transaction(self, process: "Process") -> AsyncIterator[Any]:
        """A transaction of application code."""
        store = process.app.store
        try:
            connection = await store.open_session()
            try:
                async with connection.transaction():
                    yield connection
            finally:
                if process.alive:
                    self.close(connection)
        except psycopg.OperationalError as error:
            raise StoreUnavailable(store.name, str(error)) from error

    async def insert(self, connection: Any, table: str, *values: object) -> None:
        marks = ", ".join(["%s"] * len(values))
        await connection.execute(f"insert into {table} values ({marks})", values)

    async def complete(self, process: "Process", ctx: Any, connection: Any) -> None:
        await ctx.complete(conn=connection)

    async def publish(self, app: Any, connection: Any, *event: Any) -> Any:
        return await app.publish(*event, conn=connection)

    async def enqueue(self, app: Any, job: Any, n: int) -> Any:
        return await job.enqueue(n)
