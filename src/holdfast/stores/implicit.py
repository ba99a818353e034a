"""SQLite transactions that Python's driver begins by itself, and how we join them.

Unless told otherwise the driver opens a transaction at the first INSERT, UPDATE or DELETE, but neither at a SELECT
nor at DDL: a table made first would be committed at once. So we begin what it would begin at our next write.
"""

from typing import Any

from holdfast.core.errors import NoTransaction

BEGIN = "begin immediate"
"""Immediate, because a write follows: a transaction that reads first may find that it can no longer write."""


def must_begin(conn: Any) -> bool:
    """Whether the driver would begin a transaction at the next write; `NoTransaction` when it never would.

    `conn` is a `sqlite3` or an `aiosqlite` connection.
    """
    if type(conn).__module__.partition(".")[0] == "aiosqlite":
        conn = conn._conn
    if conn.in_transaction:
        return False
    # Python 3.12 added `autocommit`; -1, its legacy value, leaves isolation_level in charge.
    autocommit = getattr(conn, "autocommit", -1)
    if autocommit is True or (autocommit == -1 and conn.isolation_level is None):
        raise NoTransaction("sqlite3 connection", "execute BEGIN IMMEDIATE first, or use holdfast.immediate(conn)")
    return True
