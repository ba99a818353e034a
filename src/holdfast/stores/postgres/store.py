"""The PostgreSQL store: pools of psycopg connections, one for awaiting and one for blocking callers."""

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from holdfast.core.errors import LockTimeout, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores.connection import AsyncPsycopg, OnAsyncConnection, OnConnection, Psycopg
from holdfast.stores.migration import SchemaStatus, migrations, newest
from holdfast.stores.operation import Operation, drive, drive_async
from holdfast.stores.postgres.dialect import PostgresDialect

T = TypeVar("T")

_MIGRATIONS = "holdfast.stores.postgres.migrations"
_TRIES = 6
_HINT_EVERY = 0.01
# Nothing may wait for ever on a peer that went silent without a word. Client-side settings only: a pooler
# refuses start-up options.
_PATIENCE = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
# A plan that was kept from when the tables were empty reads them whole until the next ANALYZE: 200,000 rows, 100
# settled, 23 ms instead of 0.5. Planning anew costs 0.1 to 0.3 ms a statement.
_PLANNING = "set plan_cache_mode = force_custom_plan"
# A replay can meet a job that was published under its unique key meanwhile; looking again tells.
_AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
_UNREACHABLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction, PoolTimeout)


class PostgresStore:
    """Messages and deliveries in one schema. Any number of processes may publish, work and operate."""

    def __init__(
        self,
        dsn: str,
        schema: str = "holdfast",
        *,
        pool_size: int = 10,
        application_name: str = "holdfast",
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self.dialect = PostgresDialect(schema)
        given = conninfo_to_dict(dsn)
        self.name = _shown(given)
        settings: dict[str, Any] = {"application_name": application_name, **_PATIENCE, **given}
        self.conninfo = make_conninfo(**settings)
        self.channel = f"holdfast_{self.dialect.schema}"
        self._hinted_at = float("-inf")
        self.pooled = False
        """Whether a pooler answers in the server's place; then no session state outlives a transaction."""
        self._pool_size = pool_size
        self._timeout = timeout.total_seconds()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pool: ConnectionPool[psycopg.Connection] | None = None
        self._async_pool: AsyncConnectionPool[psycopg.AsyncConnection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, operation: Operation[T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._translated():
                    async with self._async_connection() as connection:
                        executor = OnAsyncConnection(self.dialect, AsyncPsycopg(connection))
                        if operation.single:
                            return await drive_async(operation, executor)
                        async with connection.transaction():
                            return await drive_async(operation, executor)
            except _AGAIN:
                if not tries_left:
                    raise
                await asyncio.sleep(_pause(tries_left))
        raise AssertionError("unreachable")

    def run_sync(self, operation: Operation[T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._translated(), self._sync_pool().connection() as connection:
                    executor = OnConnection(self.dialect, Psycopg(connection))
                    if operation.single:
                        return drive(operation, executor)
                    with connection.transaction():
                        return drive(operation, executor)
            except _AGAIN:
                if not tries_left:
                    raise
                time.sleep(_pause(tries_left))
        raise AssertionError("unreachable")

    async def changes(self, wake: Callable[[], None]) -> None:
        """LISTEN first, then look: after every reconnect `wake` is called once, because a hint may have been missed."""
        pause = 0.1
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True) as connection:
                    cursor = await connection.execute("select pg_backend_pid()")
                    self._adapt(connection, await cursor.fetchone())
                    if self.pooled:
                        # LISTEN belongs to a session, and a pooler lends one only for a transaction: polling serves.
                        return
                    await connection.execute(f'listen "{self.channel}"'.encode())
                    pause = 0.1
                    wake()
                    async for _ in connection.notifies():
                        wake()
            except psycopg.Error:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, 5.0)

    def hint(self) -> None:
        """NOTIFY in a transaction of its own: inside the publisher's it would take a global lock at commit."""
        now = time.monotonic()
        if now - self._hinted_at < _HINT_EVERY:
            return
        self._hinted_at = now
        with contextlib.suppress(psycopg.Error, PoolTimeout), self._sync_pool().connection() as connection:
            connection.execute("select pg_notify(%s, '')", (self.channel,))

    def engine_lock(self) -> contextlib.AbstractContextManager[None]:
        """Any number of engines may run."""
        return contextlib.nullcontext()

    def migrate(self, lock_timeout: timedelta = timedelta(seconds=10)) -> list[str]:
        with self._translated(), psycopg.connect(self.conninfo) as connection:
            try:
                return self._migrate(connection, lock_timeout)
            except psycopg.errors.LockNotAvailable as error:
                raise LockTimeout(f"the migration of {self.name}", lock_timeout) from error

    def _migrate(self, connection: psycopg.Connection, lock_timeout: timedelta) -> list[str]:
        """One transaction for all of it; the lock is the transaction's, so it works through a pooler too."""
        run: Any = connection.execute
        run(f"set local lock_timeout = {max(1, round(lock_timeout.total_seconds() * 1000))}")
        run("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"holdfast.migrate.{self.dialect.schema}",))
        if not self._version_table(connection):
            run(f'create schema if not exists "{self.dialect.schema}"')
            run(
                f"create table {self.dialect.prefix}schema_version "
                "(version integer primary key, name text not null, applied_at timestamptz not null default now())"
            )
        done = self._version(connection) or 0
        applied = []
        for migration in migrations(_MIGRATIONS):
            if migration.version > done:
                run(migration.render({"hf": self.dialect.prefix}))
                run(
                    f"insert into {self.dialect.prefix}schema_version (version, name) values (%s, %s)",
                    (migration.version, migration.name),
                )
                applied.append(f"{migration.version:04} {migration.name}")
        return applied

    def schema_status(self) -> SchemaStatus:
        with self._translated(), psycopg.connect(self.conninfo) as connection:
            found = self._version(connection) if self._version_table(connection) else None
            return SchemaStatus(self.dialect.schema, found, newest(_MIGRATIONS))

    def check_schema(self) -> None:
        self.schema_status().check()

    async def close(self) -> None:
        pool, self._async_pool = self._async_pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            await pool.close()
        self.close_sync()

    def close_sync(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _version_table(self, connection: psycopg.Connection) -> bool:
        (found,) = connection.execute(
            "select to_regclass(%s) is not null", (f"{self.dialect.prefix}schema_version",)
        ).fetchone() or (False,)
        return bool(found)

    def _version(self, connection: psycopg.Connection) -> int | None:
        run: Any = connection.execute
        row = run(f"select max(version) from {self.dialect.prefix}schema_version").fetchone()
        return None if row is None else row[0]

    @contextlib.asynccontextmanager
    async def _async_connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        loop = asyncio.get_running_loop()
        if self._async_pool is None or self._loop is not loop or self._process != os.getpid():
            # A pool belongs to its loop and process; one left over from an earlier loop cannot be closed from here.
            self._process, self._loop = os.getpid(), loop
            self._async_pool = AsyncConnectionPool(
                self.conninfo,
                kwargs={"autocommit": True},
                min_size=1,
                max_size=self._pool_size,
                timeout=self._timeout,
                configure=self._configure_async,
                open=False,
            )
            await self._async_pool.open()
        async with self._async_pool.connection() as connection:
            yield connection

    def _sync_pool(self) -> "ConnectionPool[psycopg.Connection]":
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._process = os.getpid()
                self._pool = ConnectionPool(
                    self.conninfo,
                    kwargs={"autocommit": True},
                    min_size=0,
                    max_size=self._pool_size,
                    timeout=self._timeout,
                    configure=self._configure,
                    open=True,
                )
            return self._pool

    async def _configure_async(self, connection: psycopg.AsyncConnection) -> None:
        cursor = await connection.execute("select pg_backend_pid()")
        self._adapt(connection, await cursor.fetchone())
        if not self.pooled:
            await connection.execute(_PLANNING)

    def _configure(self, connection: psycopg.Connection) -> None:
        self._adapt(connection, connection.execute("select pg_backend_pid()").fetchone())
        if not self.pooled:
            connection.execute(_PLANNING)

    def _adapt(self, connection: psycopg.BaseConnection[Any], server: tuple[Any, ...] | None) -> None:
        # One type for every integer: otherwise each size of number gets a prepared statement and a plan of its own.
        connection.adapters.register_dumper(int, Int8Dumper)
        # A pooler announces a process of its own; behind one a prepared statement may be gone at the next transaction.
        self.pooled = server is not None and server[0] != connection.info.backend_pid
        if self.pooled:
            connection.prepare_threshold = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _AGAIN:
            raise
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise SchemaMismatch(self.dialect.schema, None, newest(_MIGRATIONS)) from error
        except psycopg.errors.LockNotAvailable:
            raise
        except _UNREACHABLE as error:
            raise StoreUnavailable(self.name, str(error).strip() or type(error).__name__) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(f"store {self.name} refused: {error}; grant the role what it needs") from error


def schema_text(dialect: PostgresDialect) -> str:
    """All migrations as one script, for people who apply it themselves."""
    head = f'create schema if not exists "{dialect.schema}";\n'
    return head + "\n".join(m.render({"hf": dialect.prefix}) for m in migrations(_MIGRATIONS))


def _pause(tries_left: int) -> float:
    return random.uniform(0.01, 0.05) * (_TRIES - tries_left)  # noqa: S311


def _shown(given: dict[str, Any]) -> str:
    host = given.get("host") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{host}{port}/{given.get('dbname') or ''}"
