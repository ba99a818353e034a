"""Write transactions on SQLite that take the write lock at once, by BEGIN IMMEDIATE.

A transaction that starts with a read cannot write once another connection has written: SQLite refuses at once, without the
connection's timeout. A transaction that starts with the lock waits for its turn, and this error cannot occur.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import ConfigurationError
from holdfast.stores.connections.sqlite_autobegin import BEGIN, begins_at_once

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


@contextmanager
def immediate(conn: "sqlite3.Connection") -> "Iterator[sqlite3.Connection]":
    """A transaction that holds the write lock from the start: committed at the end, rolled back by an exception.

    It waits for the lock for at most the connection's `timeout`.

    Examples:
        >>> import sqlite3
        >>> db = sqlite3.connect(":memory:")
        >>> with immediate(db):
        ...     _ = db.execute("create table orders (id integer primary key)")
        ...     _ = db.execute("insert into orders default values")
        >>> db.in_transaction
        False
        >>> db.close()
    """
    if conn.in_transaction:
        raise ConfigurationError(
            "immediate(conn) begins a transaction and this connection is in one already; commit or roll back first "
            "(a connection made with autocommit=False is always in one: make it with isolation_level=None)"
        )
    conn.execute(BEGIN)
    try:
        yield conn
        # As a statement: with autocommit=True the method would do nothing.
        conn.execute("commit")
    except BaseException:
        _roll_back(conn)
        raise


def begin_immediate(engine: "Engine | AsyncEngine") -> None:
    """Makes every transaction of an SQLAlchemy engine on SQLite start with BEGIN IMMEDIATE, including reads.

    Call it once, when the engine is created. Connections with isolation_level="AUTOCOMMIT" are not changed.

    Examples:
        >>> from sqlalchemy import create_engine
        >>> engine = create_engine("sqlite:///shop.db")
        >>> begin_immediate(engine)
    """
    try:
        from sqlalchemy import event
    except ImportError as error:
        raise ConfigurationError(
            "begin_immediate() needs SQLAlchemy; run `pip install 'holdfast[sqlalchemy]'`"
        ) from error
    chosen: Engine = getattr(engine, "sync_engine", None) or engine  # type: ignore[assignment]
    if chosen.dialect.name != "sqlite":
        raise ConfigurationError(f"begin_immediate() is for SQLite, and this engine uses {chosen.dialect.name}")
    event.listen(chosen, "begin", _begin)


def _roll_back(conn: "sqlite3.Connection") -> None:
    # A full disk may have ended the transaction already.
    if conn.in_transaction:
        conn.execute("rollback")


def _begin(conn: "Connection") -> None:
    dialect: Any = conn.dialect
    level = conn.get_execution_options().get("isolation_level") or getattr(dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        return
    if begins_at_once(conn.connection.driver_connection):
        # Nothing has been done in it yet: SQLAlchemy is only about to begin.
        conn.exec_driver_sql("rollback")
    conn.exec_driver_sql(BEGIN)
