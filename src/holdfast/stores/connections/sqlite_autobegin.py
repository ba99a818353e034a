"""SQLite transactions that Python's driver begins by itself, and how we join them.

Unless told otherwise the driver opens a transaction at the first INSERT, UPDATE or DELETE, but neither at a SELECT
nor at DDL: a table made first would be committed at once. So we begin what it would begin at our next write.
"""

from typing import Any

from holdfast.core.errors import NoTransaction

_LEGACY = -1
BEGIN = "begin immediate"
"""Immediate, because a write follows: a transaction that reads first may find that it can no longer write."""


def must_begin(conn: Any) -> bool:
    """Whether the driver would begin a transaction at the next write; `NoTransaction` when it never would.

    `conn` is a `sqlite3` or an `aiosqlite` connection.
    """
    conn = _plain(conn)
    if conn.in_transaction:
        return False
    if _autocommit(conn) is True or (_autocommit(conn) == _LEGACY and conn.isolation_level is None):
        raise NoTransaction("sqlite3 connection", "execute BEGIN IMMEDIATE first, or use holdfast.immediate(conn)")
    return True


def begins_at_once(conn: Any) -> bool:
    """Whether the driver begins the next transaction as soon as one ends, as it does with autocommit=False."""
    return _autocommit(_plain(conn)) is False


def _plain(conn: Any) -> Any:
    return conn._conn if type(conn).__module__.partition(".")[0] == "aiosqlite" else conn


def _autocommit(conn: Any) -> bool | int:
    # From Python 3.12; its legacy value leaves isolation_level in charge, as ever before.
    value: bool | int = getattr(conn, "autocommit", _LEGACY)
    return value
