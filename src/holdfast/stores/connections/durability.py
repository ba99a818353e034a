"""Whether a caller's SQLite connection keeps what it commits when the power fails. Looked at, never set."""

import warnings

from holdfast.stores.connections.connection import AsyncConnection, Connection

_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FULL = 2
_SYNCHRONOUS = "pragma synchronous"
_JOURNAL = "pragma journal_mode"


class DurabilityWarning(UserWarning):
    """A commit on a caller's SQLite connection may be lost when the power fails, and a published message with it."""


def durable(conn: Connection) -> bool:
    """Whether a commit is on disk before it returns; a `DurabilityWarning` that names the remedy when it is not."""
    return _judge(conn.run(_SYNCHRONOUS, {})[1][0][0], conn.run(_JOURNAL, {})[1][0][0])


async def durable_async(conn: AsyncConnection) -> bool:
    """`durable`, awaiting."""
    return _judge((await conn.run(_SYNCHRONOUS, {}))[1][0][0], (await conn.run(_JOURNAL, {}))[1][0][0])


def _judge(synchronous: int, journal: str) -> bool:
    if journal in ("off", "memory"):
        found, remedy = f"journal_mode = {journal.upper()}", "PRAGMA journal_mode = WAL"
    elif synchronous < (_FULL if journal == "wal" else 1):
        found, remedy = f"synchronous = {_LEVELS[synchronous]} in journal mode {journal}", "PRAGMA synchronous = FULL"
    else:
        return True
    warnings.warn(
        f"a message was published through an SQLite connection with {found}: a committed message may be gone after "
        f"a power failure; execute `{remedy}` on every connection you publish through (Holdfast changes no setting "
        "of yours)",
        DurabilityWarning,
        stacklevel=3,
    )
    return False
