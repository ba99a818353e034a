"""The PostgreSQL store: pools of psycopg connections for async callers, blocking callers and hot operations."""

import asyncio
import contextlib
import copy
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.numeric import Int8Dumper

from holdfast.core.errors import (
    LockTimeout,
    PermissionDenied,
    SchemaMismatch,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.stores.connections.connection import (
    AsyncConnection,
    AsyncPsycopg,
    Connection,
    Psycopg,
    run_on,
    run_on_async,
)
from holdfast.stores.migration import Migration, SchemaStatus, migrations, missing, newest
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.dsn import read_dsn, shown_dsn
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.pool import AsyncPool, Pool
from holdfast.stores.postgres.prepared_statement import PreparedPsycopg
from holdfast.stores.postgres.verification import Verification
from holdfast.stores.postgres.watchdog import CancellableConnection, ResponseWatchdog
from holdfast.stores.protocol import Topic
from holdfast.stores.queries.lane_floors import LaneFloors

T = TypeVar("T")

_MIGRATIONS = "holdfast.stores.postgres.migrations"
_TRIES = 6
# Every wait has a deadline: a peer may stop responding without closing. Client-side settings only, because a pooler
# rejects start-up options.
_CONNECT = 5.0
_LISTEN_CHECK = 10.0
_MIGRATION = 3600.0
"""Seconds: to connect, between two checks of an idle listener, and for one migration, which may rewrite a large table."""
_TCP_TIMEOUTS = {
    "tcp_user_timeout": 15000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
# A query plan that was cached when the tables were empty scans them completely until the next ANALYZE: settling 100 of
# 200,000 rows took 23 ms instead of 0.5 ms. Planning each time costs 0.1 to 0.3 ms per statement. The isolation level
# is read committed for any default of the database: statements lock in order to see the commits of other transactions,
# and an older snapshot would hide them.
SESSION = "set plan_cache_mode = force_custom_plan; set default_transaction_isolation = 'read committed'"
# Claims, settlements and small publishes run all the time, and planning is half of the cost of a small one. They use
# cached plans in separate sessions that prefer index scans even when the tables are empty.
HOT_SESSION = (
    "set plan_cache_mode = force_generic_plan; set jit = off; set enable_seqscan = off; set enable_bitmapscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; set enable_material = off; set enable_sort = off; "
    "set default_transaction_isolation = 'read committed'"
)
_ISOLATION = psycopg.IsolationLevel.READ_COMMITTED
# A UniqueViolation occurs when a job is published under the unique key of a replayed one; a retry detects that.
_RETRYABLE = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.InvalidSqlStatementName,  # psycopg removed the statements of the session after a rollback
    psycopg.errors.DuplicatePreparedStatement,  # a cancelled caller prepared it
)
# Time limits of a role or a database can cancel any statement, also at start-up.
_TIME_LIMITS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    psycopg.errors.IdleSessionTimeout,
)
# For psycopg they are operational errors, but the server answered, and a retry fails again.
_TOO_LARGE = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)
_UNREACHABLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)


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
        patience: timedelta = timedelta(seconds=60),
    ) -> None:
        self.dialect = PostgresDialect(schema)
        given = read_dsn(dsn)
        self.name = shown_dsn(given)
        self._connect_seconds = min(_CONNECT, patience.total_seconds())
        timeouts = {"connect_timeout": max(2, round(self._connect_seconds)), **_TCP_TIMEOUTS}
        # Texts are encoded here, so a setting of the role or the environment must not change it.
        settings = {"application_name": application_name, **timeouts, **given, "client_encoding": "UTF8"}
        self.conninfo = make_conninfo(**settings)
        self.channel = f"holdfast_{self.dialect.schema}"
        self.pooled = False
        """Whether connections go through a pooler; then session state ends with each transaction."""
        self._patience = ResponseWatchdog(patience.total_seconds())
        self._pool = Pool(self._connect, pool_size, timeout.total_seconds(), self.name)
        self._async_pool, self._hot_pool, self._publish_pool = (
            AsyncPool(connect, pool_size, timeout.total_seconds(), self.name)
            for connect in (self._connect_async, self._connect_hot, self._connect_hot)
        )
        self.verification = Verification(self)
        self.lane_floors = LaneFloors()
        self._hints, self._result_hints = (
            Notifier(self._channel(topic), self._pool, self._publish_pool, self._patience) for topic in Topic
        )

    def within(self, patience: timedelta) -> "PostgresStore":
        hurried = copy.copy(self)
        hurried._patience = ResponseWatchdog(min(patience.total_seconds(), self._patience.seconds))
        return hurried

    async def run(self, operation: Operation[T]) -> T:
        pool = self._hot_pool if operation.hot else self._publish_pool if operation.publishes else self._async_pool
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._run_once(operation, pool)
            except psycopg.Error as error:
                if task.cancelling() > before:
                    raise asyncio.CancelledError from error
                if not tries_left or not isinstance(error, _RETRYABLE):
                    with self._translated():
                        raise
            await asyncio.sleep(_pause(tries_left))
        raise AssertionError("unreachable")

    async def _run_once(self, operation: Operation[T], pool: AsyncPool) -> T:
        async with pool.connection() as connection:
            with self._patience.watch(connection) as answered:
                if operation.publishes and (prepared := connection.prepared_calls) is not None:
                    return await run_on_async(operation, self.dialect, PreparedPsycopg(connection, prepared))
                conn = AsyncPsycopg(connection, answered)
                if operation.single:
                    return await run_on_async(operation, self.dialect, conn)
                async with connection.transaction():
                    return await run_on_async(operation, self.dialect, conn)

    def run_sync(self, operation: Operation[T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with (
                    self._translated(),
                    self._pool.connection() as connection,
                    self._patience.watch(connection) as answered,
                ):
                    conn = Psycopg(connection, answered)
                    if operation.single:
                        return run_on(operation, self.dialect, conn)
                    with connection.transaction():
                        return run_on(operation, self.dialect, conn)
            except _RETRYABLE:
                if not tries_left:
                    raise
                time.sleep(_pause(tries_left))
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def transaction(self, lock_timeout: timedelta) -> Iterator[psycopg.Connection]:
        with self._translated(), self._pool.connection() as connection:
            try:
                with connection.transaction():
                    limit = round(lock_timeout.total_seconds() * 1000)
                    connection.execute(f"set local lock_timeout = {limit}".encode())
                    yield connection
            except psycopg.errors.LockNotAvailable as error:
                raise LockTimeout(f"a table of {self.name}", lock_timeout) from error

    async def verify(self, conn: AsyncConnection) -> None:
        await self.verification.verify(conn)

    def verify_sync(self, conn: Connection) -> None:
        self.verification.verify_sync(conn)

    def _channel(self, topic: Topic) -> str:
        return self.channel if topic is Topic.WORK else f"{self.channel}_{topic}"

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """LISTEN first, then wake: each reconnect calls `wake` once, because a notification may have been missed.

        An idle connection is checked periodically: one that lost its peer silently would deliver no notification.
        """
        pause = 0.1
        while True:
            try:
                with _preserve_cancellation():
                    async with await self._open_async(f'listen "{self._channel(topic)}"') as connection:
                        if self.pooled:
                            # LISTEN needs a session, and a pooler assigns one only for a transaction.
                            return
                        pause = 0.1
                        wake()
                        while True:
                            async for _ in connection.notifies(timeout=_LISTEN_CHECK):
                                wake()
                            with self._patience.watch(connection, self._connect_seconds):
                                await connection.execute("select 1")
            except psycopg.Error:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, 5.0)

    def hint_is_scheduled(self) -> bool:
        return self._hints.scheduled

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        await (self._hints if topic is Topic.WORK else self._result_hints).send()

    def hint_sync(self) -> None:
        self._hints.send_sync()

    def engine_lock(self) -> contextlib.AbstractContextManager[None]:
        """Any number of engines may run, so there is no lock."""
        return contextlib.nullcontext()

    def migrate(self, lock_timeout: timedelta = timedelta(seconds=10)) -> list[str]:
        with self._translated(), self._open() as connection, self._patience.watch(connection, _MIGRATION):
            try:
                with connection.transaction():
                    return self._migrate(connection, lock_timeout)
            except psycopg.errors.LockNotAvailable as error:
                raise LockTimeout(f"the migration of {self.name}", lock_timeout) from error

    def _migrate(self, connection: psycopg.Connection, lock_timeout: timedelta) -> list[str]:
        """Applies all migrations in one transaction. Its advisory lock ends with it, as a pooler requires."""
        run: Any = connection.execute
        run(f"set local lock_timeout = {max(1, round(lock_timeout.total_seconds() * 1000))}")
        run("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"holdfast.migrate.{self.dialect.schema}",))
        if not self._version_table(connection):
            run(f'create schema if not exists "{self.dialect.schema}"')
            run(_create_version_table(self.dialect))
        done = self._version(connection) or 0
        applied = []
        for migration in missing(migrations(_MIGRATIONS), self.dialect.schema, done):
            run(migration.render({"hf": self.dialect.prefix}))
            run(_version_row(self.dialect, migration))
            applied.append(f"{migration.version:04} {migration.name}")
        return applied

    def schema_status(self) -> SchemaStatus:
        with (
            self._translated(),
            self._open() as connection,
            self._patience.watch(connection, 2 * self._connect_seconds),
        ):
            found = self._version(connection) if self._version_table(connection) else None
            return SchemaStatus(self.dialect.schema, found, newest(_MIGRATIONS))

    def check_schema(self) -> None:
        self.schema_status().check()
        self.verification.load_sync()

    async def close(self) -> None:
        if self._hints.late:
            await asyncio.to_thread(self._hints.finish)
        self.close_sync()

    def close_sync(self) -> None:
        self._hints.finish()
        for pool in (self._pool, self._async_pool, self._hot_pool, self._publish_pool):
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

    async def _connect_hot(self) -> CancellableConnection:
        return await self._open_async(HOT_SESSION)

    async def _connect_async(self) -> CancellableConnection:
        return await self._open_async(SESSION)

    def _connect(self) -> psycopg.Connection:
        return self._open(SESSION)

    async def _open_async(self, session: str) -> CancellableConnection:
        """A new connection that responds, with the session settings applied (not through a pooler)."""
        connection = await CancellableConnection.connect(self.conninfo, autocommit=True)
        try:
            with self._patience.watch(connection, self._connect_seconds) as answered:
                cursor = await connection.execute("select pg_backend_pid()")
                self._adapt(connection, await cursor.fetchone())
                answered()
                await connection.set_isolation_level(_ISOLATION)
                if not self.pooled:
                    connection.prepared_calls = set()
                    await connection.execute(session.encode())
        except BaseException:
            # The caller may be cancelled at any await and does not have the connection yet, so close it here.
            await connection.close()
            raise
        return connection

    def _open(self, session: str = "") -> psycopg.Connection:
        """`_open_async`, blocking."""
        connection = psycopg.connect(self.conninfo, autocommit=True)
        try:
            with self._patience.watch(connection, self._connect_seconds) as answered:
                self._adapt(connection, connection.execute("select pg_backend_pid()").fetchone())
                answered()
                connection.set_isolation_level(_ISOLATION)
                if session and not self.pooled:
                    connection.execute(session.encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _adapt(self, connection: psycopg.BaseConnection[Any], server: tuple[Any, ...] | None) -> None:
        # One type for all integers: otherwise each integer size gets a separate prepared statement and plan.
        connection.adapters.register_dumper(int, Int8Dumper)
        # A pooler reports its own process id. Through a pooler a prepared statement may not exist in the next transaction.
        self.pooled = server is not None and server[0] != connection.info.backend_pid
        if self.pooled:
            connection.prepare_threshold = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (*_RETRYABLE, *_TOO_LARGE):
            raise
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise SchemaMismatch(self.dialect.schema, None, newest(_MIGRATIONS)) from error
        except _TIME_LIMITS as error:
            raise StoreTimeout(self.name, str(error).strip()) from error
        except _UNREACHABLE as error:
            raise StoreUnavailable(self.name, str(error).strip() or type(error).__name__) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise PermissionDenied(self.name, str(error).strip()) from error


@contextlib.contextmanager
def _preserve_cancellation() -> Iterator[None]:
    """Raises `CancelledError` for a cancelled caller. The driver cancels the statement first and may raise that error."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except psycopg.Error as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise


def schema_text(dialect: PostgresDialect) -> str:
    """All migrations as one script for manual use; it records the versions like `migrate`."""
    parts = [f'create schema if not exists "{dialect.schema}"', _create_version_table(dialect)]
    for migration in migrations(_MIGRATIONS):
        parts += [migration.render({"hf": dialect.prefix}).rstrip().removesuffix(";"), _version_row(dialect, migration)]
    return ";\n\n".join(parts) + ";\n"


def _create_version_table(dialect: PostgresDialect) -> str:
    return (
        f"create table {dialect.prefix}schema_version "
        "(version integer primary key, name text not null, applied_at timestamptz not null default now())"
    )


def _version_row(dialect: PostgresDialect, migration: Migration) -> str:
    values = f"({migration.version}, '{migration.name}')"
    return f"insert into {dialect.prefix}schema_version (version, name) values {values}"


def _pause(tries_left: int) -> float:
    return random.uniform(0.01, 0.05) * (_TRIES - tries_left)  # noqa: S311
