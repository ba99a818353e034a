"""Implicit transactions of Python's sqlite3 driver.

By default the driver begins a transaction at the first INSERT, UPDATE or DELETE, but not at a SELECT or at DDL: a
table that is created first would commit at once. So Holdfast begins the transaction before its first statement.
"""

from typing import Any

from holdfast.core.errors import NoTransaction

_LEGACY = -1
BEGIN = "begin immediate"
"""Immediate, because a write follows: a transaction that reads first may fail at its first write."""


def must_begin(conn: Any) -> bool:
    """Whether the driver would begin a transaction at the next write. Raises `NoTransaction` in autocommit mode.

    `conn` is a `sqlite3` or an `aiosqlite` connection.
    """
    conn = _plain(conn)
    if conn.in_transaction:
        return False
    if _autocommit(conn) is True or (_autocommit(conn) == _LEGACY and conn.isolation_level is None):
        raise NoTransaction("sqlite3 connection", "execute BEGIN IMMEDIATE first, or use holdfast.immediate(conn)")
    return True


def begins_at_once(conn: Any) -> bool:
    """Whether the driver begins the next transaction when one ends (autocommit=False)."""
    return _autocommit(_plain(conn)) is False


def _plain(conn: Any) -> Any:
    return conn._conn if type(conn).__module__.partition(".")[0] == "aiosqlite" else conn


def _autocommit(conn: Any) -> bool | int:
    # From Python 3.12; with the legacy value isolation_level decides, as in earlier versions.
    value: bool | int = getattr(conn, "autocommit", _LEGACY)
    return value
