"""Adapters for callers' connections (`conn=`), selected by class name so that no driver is imported.

A call with `conn` runs on the caller's connection and thread. Nothing here commits, rolls back, sets a pragma or
changes a session: the message commits or rolls back with the caller's transaction. A connection in autocommit mode
is refused.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar

from holdfast.core.drive import drive, drive_async, expand
from holdfast.core.errors import NoTransaction, UnsupportedConnection
from holdfast.stores.connections.django import Django, django_connection
from holdfast.stores.connections.locked_call import locked_scripts, note_prepared
from holdfast.stores.connections.sqlalchemy import AsyncSqlalchemy, Sqlalchemy
from holdfast.stores.connections.sqlite_autobegin import BEGIN, must_begin
from holdfast.stores.connections.unusable import CLOSED, sqlite_problem
from holdfast.stores.dialect import Answer, Dialect, LockedCall, Parameters, Stream, Style
from holdfast.stores.errors import translate
from holdfast.stores.operation import Operation, Rows

T = TypeVar("T")

_IDLE = 0
"""`psycopg.pq.TransactionStatus.IDLE`; the driver is not imported here."""


class Connection(Protocol):
    """A caller's blocking connection. `database` is the name of its dialect."""

    awaits: Literal[False]
    database: str
    style: Style

    @property
    def physical(self) -> object:
        """The driver's connection: the same object for the same connection to the server."""
        ...

    def check(self) -> None:
        """Raises `NoTransaction` for a connection in autocommit mode without a transaction."""
        ...

    def begin(self) -> None:
        """Begins the transaction that the driver would begin implicitly at the next write."""
        ...

    def run(self, text: str, values: Parameters) -> Answer: ...


class AsyncConnection(Protocol):
    """A caller's async connection. `database` is the name of its dialect."""

    awaits: Literal[True]
    database: str
    style: Style

    @property
    def physical(self) -> object: ...

    async def check(self) -> None: ...

    async def begin(self) -> None: ...

    async def run(self, text: str, values: Parameters) -> Answer: ...


class Sqlite3:
    """A `sqlite3.Connection`."""

    database = "sqlite"
    awaits: Literal[False] = False
    style = Style.NAMED

    def __init__(self, conn: Any) -> None:
        self._conn = self.physical = conn
        self._begins = False

    def check(self) -> None:
        try:
            self._begins = must_begin(self._conn)
            self._conn.cursor()
        except Exception as error:
            if hint := sqlite_problem(error):
                raise UnsupportedConnection("sqlite3.Connection", hint) from None
            raise

    def begin(self) -> None:
        if self._begins:
            self.run(BEGIN, {})

    def run(self, text: str, values: Parameters) -> Answer:
        cursor = self._conn.cursor()
        cursor.row_factory = None
        if isinstance(values, Stream):
            cursor.executemany(text, values.pieces)
            return (), ()
        cursor.execute(text, values)
        if cursor.description is None:
            return (), ()
        rows = cursor.fetchall()
        if self._conn.text_factory is not str:
            rows = [tuple(_as_text(value) for value in row) for row in rows]
        return [column[0] for column in cursor.description], rows


class Psycopg:
    """A `psycopg.Connection`. `answered` is called after each response."""

    database = "postgres"
    awaits: Literal[False] = False
    style = Style.PYFORMAT

    def __init__(self, conn: Any, answered: Callable[[], None] = lambda: None) -> None:
        self._conn, self._answered = conn, answered
        self.physical = conn

    def check(self) -> None:
        _check_psycopg(self._conn)

    def begin(self) -> None:
        """Does nothing: the driver begins implicitly."""

    def run(self, text: str, values: Parameters) -> Answer:
        with self._conn.cursor(row_factory=_tuples, binary=True) as cursor:
            if isinstance(values, Stream):
                with cursor.copy(text) as copy:
                    for piece in values.pieces:
                        copy.write(piece)
                        self._answered()
                return (), ()
            if isinstance(values, LockedCall):
                return (), self._run_locked(text, values)
            if self._conn.pgconn.pipeline_status:
                # In the caller's pipeline a statement is only sent; the end of a nested pipeline receives the results.
                with self._conn.pipeline():
                    cursor.execute(text, values)
            else:
                cursor.execute(text, values)
            self._answered()
            return (), cursor.fetchall() if cursor.description else ()

    def _run_locked(self, text: str, call: LockedCall) -> Rows:
        with self._conn.cursor(row_factory=_tuples) as cursor:
            for script in locked_scripts(text, call, None):
                cursor.execute(script.encode(), prepare=False)
                self._answered()
            while cursor.nextset():
                pass
            return list(cursor.fetchall())


class AsyncPsycopg:
    """A `psycopg.AsyncConnection`. `answered` is called after each response."""

    database = "postgres"
    awaits: Literal[True] = True
    style = Style.PYFORMAT

    def __init__(self, conn: Any, answered: Callable[[], None] = lambda: None) -> None:
        self._conn, self._answered = conn, answered
        self.physical = conn

    async def check(self) -> None:
        _check_psycopg(self._conn)

    async def begin(self) -> None:
        """Does nothing: the driver begins implicitly."""

    async def run(self, text: str, values: Parameters) -> Answer:
        async with self._conn.cursor(row_factory=_tuples, binary=True) as cursor:
            if isinstance(values, Stream):
                async with cursor.copy(text) as copy:
                    for piece in values.pieces:
                        await copy.write(piece)
                        self._answered()
                return (), ()
            if isinstance(values, LockedCall):
                return (), await self._run_locked(text, values)
            if self._conn.pgconn.pipeline_status:
                # As in `Psycopg.run`.
                async with self._conn.pipeline():
                    await cursor.execute(text, values)
            else:
                await cursor.execute(text, values)
            self._answered()
            return (), await cursor.fetchall() if cursor.description else ()

    async def _run_locked(self, text: str, call: LockedCall) -> Rows:
        prepared = getattr(self._conn, "prepared_calls", None)
        # Without parameters and in text format, several statements travel in one message.
        async with self._conn.cursor(row_factory=_tuples) as cursor:
            for script in locked_scripts(text, call, prepared):
                try:
                    await cursor.execute(script.encode(), prepare=False)
                except Exception as error:
                    if prepared is not None:
                        note_prepared(prepared, call.name, error)
                    raise
                self._answered()
            while cursor.nextset():
                pass
            return list(await cursor.fetchall())


class Asyncpg:
    """An `asyncpg` connection, also from its pool."""

    database = "postgres"
    awaits: Literal[True] = True
    style = Style.NUMERIC

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def physical(self) -> object:
        # A pool returns a new proxy for the same connection each time.
        return getattr(self._conn, "_con", self._conn)

    async def check(self) -> None:
        if not self._conn.is_in_transaction():
            raise NoTransaction("asyncpg connection", "use `async with conn.transaction():`")

    async def begin(self) -> None:
        """Does nothing: `check` requires an open transaction."""

    async def run(self, text: str, values: Parameters) -> Answer:
        assert not isinstance(values, Stream | LockedCall)
        return (), [tuple(row.values()) for row in await self._conn.fetch(text, *values)]


def adapt_connection(conn: object) -> Connection | AsyncConnection:
    """The adapter for a caller's connection, or `UnsupportedConnection` with a remedy."""
    if isinstance(conn, str):
        return Django(django_connection(conn))
    kind: type = type(conn)
    if adapter := _adapter(kind):
        return adapter(conn)
    if "django" in _packages(kind) and hasattr(conn, "vendor"):
        return Django(conn)
    names = {cls.__name__ for cls in kind.__mro__}
    raise UnsupportedConnection(f"{kind.__module__}.{kind.__qualname__}", _instead(_packages(kind), names))


@lru_cache(maxsize=256)
def _adapter(kind: type) -> Callable[[Any], Connection | AsyncConnection] | None:
    # Cached: a producer adapts the same few classes for every message.
    modules, names = _packages(kind), {cls.__name__ for cls in kind.__mro__}
    if "sqlite3" in modules and "Connection" in names:
        return Sqlite3
    if "sqlalchemy" in modules:
        if names & {"AsyncSession", "AsyncConnection", "async_scoped_session"}:
            return AsyncSqlalchemy
        if names & {"Session", "Connection", "scoped_session"}:
            return Sqlalchemy
    if "psycopg" in modules and "AsyncConnection" in names:
        return AsyncPsycopg
    if "psycopg" in modules and "Connection" in names:
        return Psycopg
    if "asyncpg" in modules and names & {"Connection", "PoolConnectionProxy"}:
        return Asyncpg
    return None


def _packages(kind: type) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in kind.__mro__}


def _instead(modules: set[str], names: set[str]) -> str:
    """The remedy for an object that is related to a connection, such as an engine or a pool."""
    if "aiosqlite" in modules:
        return "use sqlite3, or SQLAlchemy with sqlite+aiosqlite"
    if "psycopg2" in modules:
        return "use psycopg 3, or psycopg2 through SQLAlchemy or Django"
    opened = "async with" if names & {"AsyncEngine", "async_sessionmaker"} else "with"
    if names & {"Engine", "AsyncEngine"}:
        return f"an engine has no transaction; use `{opened} engine.begin() as conn:` and pass that conn"
    if names & {"sessionmaker", "async_sessionmaker"}:
        return f"it makes sessions; use `{opened} Session.begin() as session:` and pass that session"
    if any(name.endswith("Pool") for name in names):
        return "a pool has no transaction; take a connection out of it, begin a transaction and pass that connection"
    if any(name.endswith("Cursor") for name in names):
        return "pass the cursor's connection"
    return ""


def run_on(operation: Operation[T], dialect: Dialect, conn: Connection) -> T:
    """Runs an operation inside the transaction that is open on `conn`; its owner commits or rolls back."""
    return drive(_statements(operation, dialect, conn.style), lambda statement: conn.run(*statement), Exception)


def run_on_async(operation: Operation[T], dialect: Dialect, conn: AsyncConnection) -> Coroutine[Any, Any, T]:
    """`run_on` for an async connection."""
    return drive_async(_statements(operation, dialect, conn.style), lambda statement: conn.run(*statement), Exception)


def _statements(
    operation: Operation[T], dialect: Dialect, style: Style
) -> Generator[tuple[str, Parameters], Answer, T]:
    """The statements of an operation in the driver's style; errors of the driver are translated by their query."""
    steps = operation.start() if dialect.encryption is None else dialect.encryption.steps(operation.start())
    return expand(steps, lambda query: dialect.expand(query, style), translate)


def _check_psycopg(conn: Any) -> None:
    if conn.closed and not conn.broken:  # a broken one raises an error that is retried
        raise UnsupportedConnection("psycopg.Connection", CLOSED)
    # The number of the enumeration: building the member takes as long as the rest of the check.
    if conn.autocommit and conn.pgconn.transaction_status == _IDLE:
        raise NoTransaction("psycopg connection", "use `with conn.transaction():`")


def _as_text(value: object) -> object:
    # A caller's text_factory may return bytes for text; our tables have no other bytes in these columns.
    return value.decode() if isinstance(value, bytes | bytearray) else value


def _tuples(cursor: Any) -> Any:
    from psycopg.rows import tuple_row

    return tuple_row(cursor)
