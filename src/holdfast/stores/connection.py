"""Callers' connections: what `conn=` accepts, told apart without importing any driver.

A call with `conn` runs on the caller's connection and thread. Nothing here commits or rolls back, sets a pragma or
changes a session: the message shares the fate of the caller's transaction. A connection that would commit
each statement by itself is refused.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

from holdfast.core.errors import NoTransaction, UnsupportedConnection
from holdfast.stores.dialect import Answer, Dialect, Parameters, Style
from holdfast.stores.operation import Operation, Query, Rows, drive, drive_async
from holdfast.stores.raised import meaning

T = TypeVar("T")


class Connection(Protocol):
    """A caller's blocking connection. `database` names the dialect it speaks."""

    awaits: Literal[False]
    database: str
    style: Style

    def check(self) -> None:
        """Raises `NoTransaction` when statements would commit by themselves."""
        ...

    def run(self, text: str, values: Parameters) -> Answer: ...


class AsyncConnection(Protocol):
    """A caller's awaiting connection. `database` names the dialect it speaks."""

    awaits: Literal[True]
    database: str
    style: Style

    async def check(self) -> None: ...

    async def run(self, text: str, values: Parameters) -> Answer: ...


class Sqlite3:
    """A `sqlite3.Connection`."""

    database = "sqlite"
    awaits: Literal[False] = False
    style = Style.NAMED

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def check(self) -> None:
        # Python 3.12 added `autocommit`; its legacy value (-1) leaves isolation_level in charge.
        autocommit = getattr(self._conn, "autocommit", -1)
        manual = self._conn.isolation_level is None if autocommit == -1 else autocommit is True
        if manual and not self._conn.in_transaction:
            raise NoTransaction("sqlite3 connection", "execute BEGIN IMMEDIATE first")

    def run(self, text: str, values: Parameters) -> Answer:
        cursor = self._conn.cursor()
        cursor.row_factory = None
        cursor.execute(text, values)
        if cursor.description is None:
            return (), ()
        return [column[0] for column in cursor.description], cursor.fetchall()


class Psycopg:
    """A `psycopg.Connection`."""

    database = "postgres"
    awaits: Literal[False] = False
    style = Style.PYFORMAT

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def check(self) -> None:
        _check_psycopg(self._conn)

    def run(self, text: str, values: Parameters) -> Answer:
        with self._conn.cursor(row_factory=_tuples) as cursor:
            cursor.execute(text, values)
            return (), cursor.fetchall() if cursor.description else ()


class AsyncPsycopg:
    """A `psycopg.AsyncConnection`."""

    database = "postgres"
    awaits: Literal[True] = True
    style = Style.PYFORMAT

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def check(self) -> None:
        _check_psycopg(self._conn)

    async def run(self, text: str, values: Parameters) -> Answer:
        async with self._conn.cursor(row_factory=_tuples) as cursor:
            await cursor.execute(text, values)
            return (), await cursor.fetchall() if cursor.description else ()


class Asyncpg:
    """An `asyncpg` connection, also one from its pool."""

    database = "postgres"
    awaits: Literal[True] = True
    style = Style.NUMERIC

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def check(self) -> None:
        if not self._conn.is_in_transaction():
            raise NoTransaction("asyncpg connection", "use `async with conn.transaction():`")

    async def run(self, text: str, values: Parameters) -> Answer:
        return (), [tuple(row.values()) for row in await self._conn.fetch(text, *values)]


class Sqlalchemy:
    """An SQLAlchemy `Session`, `scoped_session` or `Connection`; goes through it, so that it knows it has begun."""

    awaits: Literal[False] = False

    def __init__(self, conn: Any) -> None:
        self._conn = conn.connection() if hasattr(conn, "connection") and callable(conn.connection) else conn
        self.database, self.style = _sqlalchemy_kind(self._conn)

    def check(self) -> None:
        _check_sqlalchemy(self._conn)

    def run(self, text: str, values: Parameters) -> Answer:
        return _answer(self._conn.exec_driver_sql(text, _sqlalchemy_values(self._conn, values)))


class AsyncSqlalchemy:
    """An SQLAlchemy `AsyncSession` or `AsyncConnection`."""

    awaits: Literal[True] = True

    def __init__(self, conn: Any) -> None:
        self._given = conn
        self._conn: Any = None
        sync = conn.get_bind() if hasattr(conn, "get_bind") else conn.sync_connection
        if sync is None:
            raise UnsupportedConnection(
                "sqlalchemy.AsyncConnection", "it is not started; use `async with engine.begin() as conn:`"
            )
        self.database, self.style = _sqlalchemy_kind(sync)

    async def check(self) -> None:
        given = self._given
        self._conn = await given.connection() if hasattr(given, "get_bind") else given
        _check_sqlalchemy(self._conn.sync_connection)

    async def run(self, text: str, values: Parameters) -> Answer:
        values = _sqlalchemy_values(self._conn, values)
        return _answer(await self._conn.exec_driver_sql(text, values))


class Django:
    """A Django database connection, as `django.db.connections[alias]` gives it."""

    awaits: Literal[False] = False
    style = Style.PYFORMAT

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        database = {"postgresql": "postgres", "sqlite": "sqlite"}.get(conn.vendor)
        if database is None:
            raise UnsupportedConnection(f"Django's {conn.vendor} backend", "use PostgreSQL or SQLite")
        self.database = database
        self.alias: str = conn.alias

    def check(self) -> None:
        if not self._conn.in_atomic_block and self._conn.get_autocommit():
            raise NoTransaction("Django connection", "use `with transaction.atomic():`")

    def run(self, text: str, values: Parameters) -> Answer:
        # Django's debug and conversion layers sit on its cursor; the values must pass through them as they are.
        with self._conn.cursor() as cursor:
            cursor.execute(text, _texts(values) if _is_psycopg2(self._conn.connection) else values)
            if cursor.description is None:
                return (), ()
            return [column[0] for column in cursor.description], [tuple(row) for row in cursor.fetchall()]


def recognise(conn: object) -> Connection | AsyncConnection:
    """The adapter for a caller's connection, or `UnsupportedConnection` that says what would do."""
    roots = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(conn).__mro__}
    modules = {module for module, _ in roots}
    names = {name for _, name in roots}
    if isinstance(conn, str):
        return Django(_django_alias(conn))
    if "sqlite3" in modules and "Connection" in names:
        return Sqlite3(conn)
    if "sqlalchemy" in modules:
        if names & {"AsyncSession", "AsyncConnection", "async_scoped_session"}:
            return AsyncSqlalchemy(conn)
        if names & {"Session", "Connection", "scoped_session"}:
            return Sqlalchemy(conn)
    if "psycopg" in modules and "AsyncConnection" in names:
        return AsyncPsycopg(conn)
    if "psycopg" in modules and "Connection" in names:
        return Psycopg(conn)
    if "asyncpg" in modules and names & {"Connection", "PoolConnectionProxy"}:
        return Asyncpg(conn)
    if "django" in modules and hasattr(conn, "vendor"):
        return Django(conn)
    kind = type(conn)
    raise UnsupportedConnection(f"{kind.__module__}.{kind.__qualname__}")


class OnConnection:
    """Runs queries on a blocking connection in one dialect."""

    def __init__(self, dialect: Dialect, conn: Connection) -> None:
        self._dialect, self._conn = dialect, conn

    def execute(self, query: Query) -> Rows:
        steps = self._dialect.expand(query, self._conn.style)
        try:
            text, values = next(steps)
            while True:
                text, values = steps.send(self._conn.run(text, values))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except Exception as error:
            if typed := meaning(error, query):
                raise typed from error
            raise


class OnAsyncConnection:
    """Runs queries on an awaiting connection in one dialect."""

    def __init__(self, dialect: Dialect, conn: AsyncConnection) -> None:
        self._dialect, self._conn = dialect, conn

    async def execute(self, query: Query) -> Rows:
        steps = self._dialect.expand(query, self._conn.style)
        try:
            text, values = next(steps)
            while True:
                text, values = steps.send(await self._conn.run(text, values))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except Exception as error:
            if typed := meaning(error, query):
                raise typed from error
            raise


def run_on(operation: Operation[T], dialect: Dialect, conn: Connection) -> T:
    """Runs an operation inside the caller's transaction; whether it lasts is the caller's to decide."""
    return drive(operation, OnConnection(dialect, conn))


async def run_on_async(operation: Operation[T], dialect: Dialect, conn: AsyncConnection) -> T:
    """Runs an operation inside the caller's transaction; whether it lasts is the caller's to decide."""
    return await drive_async(operation, OnAsyncConnection(dialect, conn))


def _check_psycopg(conn: Any) -> None:
    if conn.autocommit and conn.info.transaction_status.name == "IDLE":
        raise NoTransaction("psycopg connection", "use `with conn.transaction():`")


def _check_sqlalchemy(conn: Any) -> None:
    if conn.get_isolation_level_autocommit() if hasattr(conn, "get_isolation_level_autocommit") else False:
        raise NoTransaction("SQLAlchemy connection", "use an engine without isolation_level='AUTOCOMMIT'")
    if conn.get_execution_options().get("isolation_level") == "AUTOCOMMIT" or (
        getattr(conn.engine.dialect, "_on_connect_isolation_level", None) == "AUTOCOMMIT"
    ):
        raise NoTransaction("SQLAlchemy connection", "use one without isolation_level='AUTOCOMMIT'")


def _sqlalchemy_kind(conn: Any) -> tuple[str, Style]:
    dialect = conn.dialect
    if dialect.name == "sqlite":
        return "sqlite", Style.NAMED
    if dialect.name == "postgresql" and dialect.driver in {"psycopg", "psycopg_async", "psycopg2"}:
        return "postgres", Style.PYFORMAT
    if dialect.name == "postgresql" and dialect.driver == "asyncpg":
        return "postgres", Style.NUMERIC
    raise UnsupportedConnection(
        f"SQLAlchemy {dialect.name}+{dialect.driver}", "use psycopg, psycopg2, asyncpg, sqlite or aiosqlite"
    )


def _sqlalchemy_values(conn: Any, values: Parameters) -> Any:
    if conn.dialect.driver == "psycopg2":
        return _texts(values)
    return values if isinstance(values, dict) else tuple(values)


def _answer(result: Any) -> Answer:
    if not result.returns_rows:
        return (), ()
    return list(result.keys()), [tuple(row) for row in result.fetchall()]


def _texts(values: Any) -> dict[str, object]:
    """For psycopg2, which adapts neither UUIDs nor lists of them by itself; every statement casts anyway."""
    return {name: _text(value) for name, value in values.items()}


def _text(value: object) -> object:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_text(item) for item in value]
    return str(value) if type(value).__name__ == "UUID" else value


def _is_psycopg2(conn: Any) -> bool:
    return type(conn).__module__.partition(".")[0] == "psycopg2"


def _tuples(cursor: Any) -> Any:
    from psycopg.rows import tuple_row

    return tuple_row(cursor)


def _django_alias(alias: str) -> Any:
    try:
        from django.db import connections
    except ImportError as error:
        raise UnsupportedConnection(
            f"str {alias!r}", "a Django alias needs Django; install holdfast[django]"
        ) from error
    return connections[alias]
