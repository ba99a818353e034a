"""A store on one Django connection: for a database in memory, and inside the transaction of a `TestCase`."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from holdfast.core.errors import ConfigurationError
from holdfast.django.database import database_of
from holdfast.runtime.loop import running_loop
from holdfast.stores.connections.connection import AsyncConnection, Connection, Psycopg, Sqlite3, run_on
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Topic
from holdfast.stores.sqlite.dialect import SqliteDialect
from holdfast.stores.sqlite.store import migrate_on

if TYPE_CHECKING:
    from holdfast.stores.postgres.dialect import PostgresDialect

T = TypeVar("T")


class ConnectionStore:
    """Runs each operation on the connection of an alias, in a savepoint of the open transaction if there is one.

    It is the connection of the thread that made the store; other threads take turns with it in `shared`.
    """

    lane_floors = None
    """A test has few deliveries."""

    def __init__(self, alias: str, schema: str) -> None:
        self._alias, self._database = alias, database_of(alias)
        self.name = f"Django's database {alias!r}"
        self.dialect = dialect_of(self._database.vendor, schema)
        self._lock = threading.RLock()

    async def run(self, operation: Operation[T]) -> T:
        # In the thread of the test, if it called `async_to_sync`.
        return cast("T", await sync_to_async(self.run_sync, thread_sensitive=True)(operation))

    def within(self, patience: timedelta) -> "ConnectionStore":
        """Returns the store itself."""
        return self

    def run_sync(self, operation: Operation[T]) -> T:
        if running_loop() is not None:
            # Django refuses to use a connection in the thread of an event loop.
            with ThreadPoolExecutor(1) as threads:
                return threads.submit(self._run, operation).result()
        return self._run(operation)

    def _run(self, operation: Operation[T]) -> T:
        with self.shared(), transaction.atomic(using=self._alias):
            return run_on(operation, self.dialect, self._adapter())

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Inside the block, the alias stands for the store's connection in this thread, and no other thread uses it."""
        with self._lock:
            before = getattr(connections._connections, self._alias, None)
            if before is self._database:
                yield
                return
            self._database.inc_thread_sharing()
            connections[self._alias] = self._database
            try:
                yield
            finally:
                self._database.dec_thread_sharing()
                if before is None:
                    del connections[self._alias]
                else:
                    connections[self._alias] = before

    @contextlib.contextmanager
    def transaction(self, lock_timeout: timedelta) -> Iterator[Any]:
        with self.shared(), transaction.atomic(using=self._alias):
            self._database.ensure_connection()
            yield self._database.connection

    async def verify(self, conn: AsyncConnection) -> None:
        """Accepts the connection: the alias was checked when it was named."""

    def verify_sync(self, conn: Connection) -> None:
        """Accepts the connection: the alias was checked when it was named."""

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """Waits until it is cancelled: no other connection sees the transaction."""
        await asyncio.Event().wait()

    def hint_is_scheduled(self) -> bool:
        """Always true: no hint is needed."""
        return True

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        """Does nothing: there is no listener."""

    def hint_sync(self) -> None:
        """`hint`, blocking."""

    @contextlib.contextmanager
    def engine_lock(self) -> Iterator[None]:
        """No lock: no other engine reaches the transaction."""
        yield

    def migrate(self, lock_timeout: timedelta = timedelta(seconds=10)) -> list[str]:
        if not isinstance(self.dialect, SqliteDialect):
            raise ConfigurationError(f"{self.name} has no tables of Holdfast; run `manage.py migrate`")
        with self.transaction(lock_timeout) as connection:
            return migrate_on(connection, self.dialect)

    def schema_status(self) -> SchemaStatus:
        raise NotImplementedError("the tables of a test database are created by Django's test runner")

    def check_schema(self) -> None:
        """Accepts the tables: the test runner created them with this release."""

    async def close(self) -> None:
        """Does nothing: the connection belongs to Django."""

    def close_sync(self) -> None:
        """Does nothing: the connection belongs to Django."""

    def _adapter(self) -> Connection:
        self._database.ensure_connection()
        connection = self._database.connection
        if self._database.vendor == "sqlite":
            return Sqlite3(connection)
        if type(connection).__module__.partition(".")[0] != "psycopg":
            raise ConfigurationError(f"{self.name} uses psycopg2; install psycopg 3 to run handlers in a TestCase")
        return Psycopg(ServerCursors(connection))


class ServerCursors:
    """A psycopg connection whose cursors bind parameters on the server; those of Django bind them in the client."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, *, row_factory: Any, binary: bool = False) -> Any:
        import psycopg

        made: Any = psycopg.Cursor(self._connection, row_factory=row_factory)
        made.format = psycopg.pq.Format.BINARY if binary else psycopg.pq.Format.TEXT
        return made


def dialect_of(vendor: str, schema: str) -> "SqliteDialect | PostgresDialect":
    """The dialect of a Django backend, with the statements for this schema or prefix."""
    if vendor == "sqlite":
        return SqliteDialect(schema)
    from holdfast.stores.postgres.dialect import PostgresDialect

    return PostgresDialect(schema)
