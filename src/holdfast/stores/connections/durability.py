"""Checks whether commits of a caller's SQLite connection survive a power failure. Changes no setting."""

import warnings

from holdfast.stores.connections.connection import AsyncConnection, Connection

_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FULL = 2
_SYNCHRONOUS = "pragma synchronous"
_JOURNAL = "pragma journal_mode"


class DurabilityWarning(UserWarning):
    """A power failure may lose a commit of the caller's SQLite connection, with the published message."""


def durable(conn: Connection) -> bool:
    """Whether a commit is on disk before it returns; otherwise issues a `DurabilityWarning` with the remedy."""
    return _check(conn.run(_SYNCHRONOUS, {})[1][0][0], conn.run(_JOURNAL, {})[1][0][0])


async def durable_async(conn: AsyncConnection) -> bool:
    """`durable` for an async connection."""
    return _check((await conn.run(_SYNCHRONOUS, {}))[1][0][0], (await conn.run(_JOURNAL, {}))[1][0][0])


def _check(synchronous: int, journal: str) -> bool:
    if journal in ("off", "memory"):
        found, remedy = f"journal_mode = {journal.upper()}", "PRAGMA journal_mode = WAL"
    elif synchronous < (_FULL if journal == "wal" else 1):
        found, remedy = f"synchronous = {_LEVELS[synchronous]} in journal mode {journal}", "PRAGMA synchronous = FULL"
    else:
        return True
    warnings.warn(
        f"a message was published through an SQLite connection with {found}: a power failure may lose a committed "
        f"message; execute `{remedy}` on each connection that publishes (Holdfast does not change your settings)",
        DurabilityWarning,
        stacklevel=3,
    )
    return False
