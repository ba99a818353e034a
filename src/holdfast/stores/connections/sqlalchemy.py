"""Adapters for the connections of SQLAlchemy.

Statements run through the framework, so that it knows that its transaction has begun and logs our statements.
"""

from typing import Any, Literal

from holdfast.core.errors import NoTransaction, UnsupportedConnection
from holdfast.stores.connections.sqlite_autobegin import BEGIN, must_begin
from holdfast.stores.dialect import Answer, LockedCall, Parameters, Stream, Style


class _Given:
    """The object that the caller passed, and its connection."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._conn: Any = None
        self._begins = False
        self.database, self.style = _kind(_bind(given))


class Sqlalchemy(_Given):
    """An SQLAlchemy `Session`, `scoped_session` or `Connection`."""

    awaits: Literal[False] = False

    @property
    def physical(self) -> object:
        return self._conn.connection.driver_connection

    def check(self) -> None:
        given = self._given
        self._conn = given.connection() if hasattr(given, "get_bind") else given
        # A connection begins at its first statement; hooks that begin the driver's transaction run then.
        if not self._conn.in_transaction():
            self._conn.begin()
        self._begins = _begins(self._conn, self.database)

    def begin(self) -> None:
        if self._begins:
            self.run(BEGIN, {})

    def run(self, text: str, values: Parameters) -> Answer:
        return _answer(self._conn.exec_driver_sql(text, _values(values)))


class AsyncSqlalchemy(_Given):
    """An SQLAlchemy `AsyncSession`, `async_scoped_session` or `AsyncConnection`."""

    awaits: Literal[True] = True

    @property
    def physical(self) -> object:
        return self._conn.sync_connection.connection.driver_connection

    async def check(self) -> None:
        given = self._given
        self._conn = await given.connection() if hasattr(given, "get_bind") else given
        if not self._conn.in_transaction():
            await self._conn.begin()
        self._begins = _begins(self._conn.sync_connection, self.database)

    async def begin(self) -> None:
        if self._begins:
            await self.run(BEGIN, {})

    async def run(self, text: str, values: Parameters) -> Answer:
        return _answer(await self._conn.exec_driver_sql(text, _values(values)))


def _bind(given: Any) -> Any:
    """The engine or connection of a session, found without connecting."""
    if not hasattr(given, "get_bind"):
        bind = getattr(given, "sync_connection", given)
        if bind is None:
            raise UnsupportedConnection(
                "sqlalchemy.AsyncConnection", "it is not started; use `async with engine.begin() as conn:`"
            )
        return bind
    from sqlalchemy.exc import UnboundExecutionError

    try:
        return given.get_bind()
    except UnboundExecutionError as error:
        raise UnsupportedConnection(
            "SQLAlchemy session with a bind for each mapper",
            "choose the database: pass conn=session.connection(bind_arguments={'mapper': ...})",
        ) from error


def _begins(conn: Any, database: str) -> bool:
    """Whether Holdfast must begin the driver's transaction; raises `NoTransaction` in autocommit mode."""
    pooled = conn.connection
    if database == "sqlite":
        return must_begin(pooled.driver_connection)
    # The same attribute in psycopg, psycopg2 and SQLAlchemy's adapter for asyncpg.
    if pooled.dbapi_connection.autocommit:
        raise NoTransaction("SQLAlchemy connection", "use one without isolation_level='AUTOCOMMIT'")
    return False


def _kind(bind: Any) -> tuple[str, Style]:
    dialect = bind.dialect
    if dialect.name == "sqlite" and dialect.driver in {"pysqlite", "aiosqlite"}:
        return "sqlite", Style.NAMED
    if dialect.name == "postgresql" and dialect.driver in {"psycopg", "psycopg_async", "psycopg2"}:
        return "postgres", Style.PYFORMAT
    if dialect.name == "postgresql" and dialect.driver == "asyncpg":
        return "postgres", Style.NUMERIC
    raise UnsupportedConnection(
        f"SQLAlchemy {dialect.name}+{dialect.driver}", "use psycopg, psycopg2, asyncpg, sqlite or aiosqlite"
    )


def _values(values: Parameters) -> Any:
    assert not isinstance(values, Stream | LockedCall)
    return values if isinstance(values, dict) else tuple(values)


def _answer(result: Any) -> Answer:
    if not result.returns_rows:
        return (), ()
    return list(result.keys()), [tuple(row) for row in result.fetchall()]
