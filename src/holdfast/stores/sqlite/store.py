"""The SQLite store: one connection, each write in an immediate transaction."""

import asyncio
import contextlib
import contextvars
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import IO, TypeVar

from holdfast.core.drive import drive
from holdfast.core.errors import (
    ConfigurationError,
    EngineRunning,
    EngineStopping,
    LockTimeout,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreLocked,
    StoreReplaced,
    StoreUnavailable,
)
from holdfast.stores.connections.connection import AsyncConnection, Connection, Sqlite3, run_on
from holdfast.stores.connections.identity import VerifiedConnections
from holdfast.stores.file import private
from holdfast.stores.migration import SchemaStatus, migrations, missing, newest
from holdfast.stores.operation import Operation, Rows
from holdfast.stores.protocol import Topic
from holdfast.stores.sqlite.dialect import SqliteDialect
from holdfast.stores.sqlite.file_access import file_problem
from holdfast.stores.sqlite.lock import WriteLockWait
from holdfast.stores.sqlite.verification import OwnFile

T = TypeVar("T")

_MIGRATIONS = "holdfast.stores.sqlite.migrations"
_OLDEST = (3, 35, 0)
_BUSY_TIMEOUT = timedelta(seconds=10)
_POLL_SECONDS = 0.02
_FAMILY = "HOLDFAST_ENGINE_FAMILY"
_PROCESS = "process "
_UNREACHABLE = tuple(
    f"SQLITE_{name}" for name in ("BUSY", "LOCKED", "IOERR", "FULL", "CANTOPEN", "READONLY", "CORRUPT", "NOTADB")
)


class SqliteStore:
    """Messages and deliveries in one file. Any process may publish and operate; one engine and its children claim.

    Commits are on disk before they return: `synchronous` is FULL.
    """

    lane_floors = None
    """SQLite removes the index entries of finished deliveries at once."""

    def __init__(self, path: str | Path, prefix: str = "holdfast", busy_timeout: timedelta = _BUSY_TIMEOUT) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old; Holdfast needs {'.'.join(map(str, _OLDEST))} or later"
            )
        # Absolute: connections that are opened after a change of directory must find the same file.
        self.path = Path(path).absolute()
        self.dialect = SqliteDialect(prefix)
        self.name = f"sqlite:///{path}"
        self._busy_timeout = busy_timeout
        self._verified = VerifiedConnections()
        self._waiting = WriteLockWait(self.path, self.name)
        self._file = 0, 0
        self._files = OwnFile(self.path, self.name, self.dialect)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._inherited: list[object] = []
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, operation: Operation[T]) -> T:
        self._after_fork()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "holdfast-sqlite")
        # In the caller's context, so that audit entries get the ids of its request.
        call = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, self.run_sync, operation)

    def within(self, patience: timedelta) -> "SqliteStore":
        """Returns the store itself: a file has no response to wait for."""
        return self

    def run_sync(self, operation: Operation[T]) -> T:
        with self._transaction(immediate=not operation.reads) as connection:
            return run_on(operation, self.dialect, Sqlite3(connection))

    @contextlib.contextmanager
    def transaction(self, lock_timeout: timedelta) -> Iterator[sqlite3.Connection]:
        with self._transaction(immediate=True) as connection:
            # `commit` and `executescript` would end the transaction early.
            connection.set_authorizer(_no_transactions)
            try:
                yield connection
            finally:
                connection.set_authorizer(None)

    async def verify(self, conn: AsyncConnection) -> None:
        if conn.physical not in self._verified:
            self._files.check(await conn.run(self._files.query, {}))
            self._verified.add(conn.physical)

    def verify_sync(self, conn: Connection) -> None:
        if conn.physical not in self._verified:
            self._files.check(conn.run(self._files.query, {}))
            self._verified.add(conn.physical)

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """Polls SQLite's counter of commits by other connections, which takes microseconds."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            seen = None
            while True:
                with contextlib.suppress(sqlite3.OperationalError):
                    (version,) = connection.execute("pragma data_version").fetchone()
                    if version != seen:
                        seen = version
                        wake()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            connection.close()

    def hint_is_scheduled(self) -> bool:
        """Always true: no hint is needed."""
        return True

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        """Does nothing: `changes` detects the commit."""

    def hint_sync(self) -> None:
        """`hint`, blocking."""

    @contextlib.contextmanager
    def engine_lock(self) -> Iterator[None]:
        """One engine claims from a file: a worker and its child processes, which inherit the lock."""
        lock = self.path.with_name(self.path.name + "-engine")
        if os.environ.get(_FAMILY) == str(lock.absolute()):
            yield
            return
        with self._lock_file(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip()
                if _is_gone(holder):
                    raise EngineStopping(self.name, holder) from None
                raise EngineRunning(str(self.path), holder) from None
            file.truncate(0)
            file.write(f"{_PROCESS}{os.getpid()}")
            file.flush()
            # Children keep the file open and hold the lock: after the parent was killed they are still one engine.
            os.set_inheritable(file.fileno(), True)
            os.environ[_FAMILY] = str(lock.absolute())
            try:
                yield
            finally:
                os.environ.pop(_FAMILY, None)

    def _lock_file(self, path: Path) -> IO[str]:
        try:
            return open(path, "a+", opener=private)
        except OSError as error:
            raise StoreUnavailable(self.name, file_problem(path, error.strerror or str(error))) from None

    def migrate(self, lock_timeout: timedelta = _BUSY_TIMEOUT) -> list[str]:
        self._after_fork()
        with self._lock:
            connection = self._open()
            connection.execute(f"pragma busy_timeout = {_milliseconds(lock_timeout)}")
            try:
                # An up-to-date file needs no write lock, which an open transaction of the application may hold.
                with self._translated():
                    if schema_version(connection, self.dialect) == newest(_MIGRATIONS):
                        return []
                with self._transaction(immediate=True) as connection:
                    return migrate_on(connection, self.dialect)
            except StoreError as error:
                if _is_busy(error.__cause__):
                    raise LockTimeout(f"the migration of {self.name}", lock_timeout) from error
                raise
            finally:
                connection.execute(f"pragma busy_timeout = {_milliseconds(self._busy_timeout)}")

    def schema_status(self) -> SchemaStatus:
        with self._transaction(immediate=False) as connection:
            return SchemaStatus(self.dialect.schema, schema_version(connection, self.dialect), newest(_MIGRATIONS))

    def check_schema(self) -> None:
        self.schema_status().check()

    async def close(self) -> None:
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        self._after_fork()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    @contextlib.contextmanager
    def _transaction(self, *, immediate: bool) -> Iterator[sqlite3.Connection]:
        self._after_fork()
        with self._lock:
            connection = self._open()
            self._check_file()
            try:
                self._begin(connection, immediate=immediate)
                with self._translated():
                    yield connection
                with self._translated(StoreLocked(self.name)):
                    connection.execute("commit")
            except BaseException as error:
                # RAISE(ROLLBACK) and a full disk end the transaction. A commit that fails with BUSY does not: an open
                # transaction would block all other writers.
                if connection.in_transaction:
                    connection.execute("rollback")
                if not isinstance(error, Exception):
                    # Ctrl-C may leave a statement half read, and then no later transaction of this connection can commit.
                    self._connection = None
                    connection.close()
                raise

    def _begin(self, connection: sqlite3.Connection, *, immediate: bool) -> None:
        started = time.monotonic()
        try:
            with self._translated():
                connection.execute("begin immediate" if immediate else "begin")
        except StoreUnavailable as error:
            if _is_busy(error.__cause__):
                raise self._waiting.refused(timedelta(seconds=time.monotonic() - started)) from error.__cause__
            raise
        if immediate:
            self._waiting.acquired()

    def _check_file(self) -> None:
        """Raises `StoreReplaced` when the path no longer refers to the open file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise StoreReplaced(self.name, "deleted") from None
        if (found.st_dev, found.st_ino) != self._file:
            raise StoreReplaced(self.name, "replaced by another one")

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        with contextlib.suppress(OSError):  # SQLite reports the problem with the path
            # SQLite's additional files (-wal, -shm) get the same mode. Only for a new file: closing a descriptor of an
            # existing file would release the locks of this process's other connections.
            os.close(private(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        with self._translated(), contextlib.ExitStack() as on_failure:
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            on_failure.callback(connection.close)
            connection.execute("pragma synchronous = full")
            # An open transaction of another connection may prevent the switch to WAL; a later connection switches.
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("pragma busy_timeout = 500")
                connection.execute("pragma journal_mode = wal")
            connection.execute(f"pragma busy_timeout = {_milliseconds(self._busy_timeout)}")
            found = self.path.stat()
            self._file = found.st_dev, found.st_ino
            on_failure.pop_all()
        self._connection = connection
        return connection

    def _after_fork(self) -> None:
        """Keeps the parent's connection unused in a child process: even closing it could corrupt the file."""
        if self._process != os.getpid():
            self._inherited += [self._connection, self._thread]
            self._connection = self._thread = None
            # A thread of the parent may have held the lock at the fork.
            self._lock = threading.RLock()
            self._process = os.getpid()

    @contextlib.contextmanager
    def _translated(self, busy: StoreError | None = None) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if busy is not None and _is_busy(error):
                raise busy from error
            if meaning := self._meaning(error):
                raise meaning from error
            raise

    def _meaning(self, error: sqlite3.DatabaseError) -> StoreError | None:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_BUSY_SNAPSHOT":
            return StoreBusy(self.name)
        if "no such table" in str(error) and self.dialect.prefix in str(error):
            return SchemaMismatch(self.dialect.schema, None, newest(_MIGRATIONS))
        if name.startswith(_UNREACHABLE):
            return StoreUnavailable(self.name, str(error) if _is_busy(error) else file_problem(self.path, str(error)))
        return None


def migrate_on(connection: sqlite3.Connection, dialect: SqliteDialect) -> list[str]:
    """Applies the missing migrations in the open transaction of this connection; returns their names."""
    return drive(migration_steps(dialect), lambda text: connection.execute(text).fetchall())


def migration_steps(dialect: SqliteDialect) -> Generator[str, Rows, list[str]]:
    """The statements of the missing migrations, for any connection that runs them in one transaction."""
    table = f"{dialect.prefix}schema_version"
    yield (
        f"create table if not exists {table} (version integer primary key, name text not null, "
        f"applied_at integer not null default ({dialect.now}))"
    )
    (row,) = yield f"select coalesce(max(version), 0) from {table}"
    applied = []
    for migration in missing(migrations(_MIGRATIONS), dialect.schema, int(str(row[0]))):
        for statement in list(_statements(migration.render({"hf": dialect.prefix, "now": dialect.now}))):
            _ = yield statement
        yield f"insert into {table} (version, name) values ({migration.version}, '{migration.name}')"
        applied.append(f"{migration.version:04} {migration.name}")
    return applied


def schema_version(connection: sqlite3.Connection, dialect: SqliteDialect) -> int | None:
    """The version of the tables; None without tables."""
    table = f"{dialect.prefix}schema_version"
    if not connection.execute("select 1 from sqlite_master where name = ?", (table,)).fetchone():
        return None
    (version,) = connection.execute(f"select max(version) from {table}").fetchone()
    return None if version is None else int(version)


def schema_text(dialect: SqliteDialect) -> str:
    """All migrations as one script for manual use; it records the versions like `migrate`."""
    script: list[str] = []

    def record(text: str) -> Rows:
        if text.startswith("select"):  # the query of the schema version; 0 means that every migration is missing
            return [(0,)]
        script.append(text)
        return []

    drive(migration_steps(dialect), record)
    return ";\n\n".join(text.strip().removesuffix(";") for text in script) + ";\n"


def _statements(text: str) -> Iterator[str]:
    """The statements of a script. A trigger contains semicolons, so SQLite determines where a statement ends."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip() and not all(line.startswith("--") or not line.strip() for line in pending.splitlines()):
        yield pending


def _is_busy(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _no_transactions(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _is_gone(holder: str) -> bool:
    """Whether the process that wrote its id into the lock file no longer runs on this machine."""
    number = holder.removeprefix(_PROCESS)
    if not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False
