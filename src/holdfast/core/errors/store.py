"""Errors of the store. The transaction in which one occurs is not committed."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.core.errors.root import HoldfastError, quoted
from holdfast.core.redaction.mask import mask
from holdfast.core.values.duration import Duration, format_duration, to_timedelta


class StoreError(HoldfastError):
    """The store could not complete an operation. Writes in the same transaction are not committed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached. `store` is its DSN without a password."""

    def __init__(self, store: str, cause: str = "") -> None:
        cause = mask(cause)
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        remedy = "check that it is running and that the DSN is correct"
        if self.store.startswith("sqlite:"):
            remedy = "check the path in the DSN and the permissions of the file and its folder"
        return f"store {self.store} is unavailable{cause}; {remedy}"


class PermissionDenied(StoreError):
    """The database refused a statement because the role lacks a grant. Nothing was changed."""

    def __init__(self, store: str, cause: str) -> None:
        cause = mask(cause)
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        return (
            f"store {self.store} refused: {self.cause}; connect with a role that has the permission, or grant it as "
            "docs/operate/roles.md describes"
        )


class EngineStopping(StoreUnavailable):
    """The engine of this SQLite file was killed, but its child processes still run. A worker waits until they end."""

    def __init__(self, store: str, holder: str) -> None:
        super().__init__(store, "its engine was killed")
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"the engine of store {self.store} ({self.holder}) is not running on this machine, but its lock is held: its "
            "child processes end within the time of their --grace; if it runs in another container, stop it first"
        )


class StoreLocked(StoreUnavailable):
    """Another connection holds a lock on the SQLite file. Nothing was stored, and a retry may succeed.

    `since` is the time when this process was first refused the write lock; None if readers prevented a commit.
    `holder` is the process that holds the lock, if known.
    """

    def __init__(
        self, store: str, since: datetime | None = None, held: timedelta | None = None, holder: str = ""
    ) -> None:
        super().__init__(store, "database is locked")
        self.since, self.held, self.holder = since, held, holder

    def __str__(self) -> str:
        if self.since is None or self.held is None:
            return (
                f"store {self.store} could not commit and has rolled back: another connection was reading, which "
                "blocks writers in this journal mode; end its transaction or cursor, and run `PRAGMA journal_mode "
                "= WAL` once while no other connection is open"
            )
        return (
            f"store {self.store} is locked: another connection{self.holder and f' of {self.holder}'} has held the write "
            f"lock since {self.since:%Y-%m-%d %H:%M:%S} UTC ({self.held.total_seconds():,.0f} s); find the "
            "transaction that wrote and was neither committed nor rolled back"
        )


class StoreTimeout(StoreUnavailable):
    """PostgreSQL cancelled a statement at a time limit of the role or the database. A retry may succeed."""

    def __str__(self) -> str:
        return (
            f"store {self.store} cancelled a statement at a time limit ({self.cause}); Holdfast retries it where that is "
            "safe. If this happens often, find transactions that hold locks, or raise lock_timeout, statement_timeout, "
            "idle_in_transaction_session_timeout or transaction_timeout of the role (`alter role ... set ...`)"
        )


class StoreReplaced(StoreError):
    """The SQLite file was deleted or replaced while it was open. Writes through the open file would be lost."""

    def __init__(self, store: str, what: str) -> None:
        super().__init__(store, what)
        self.store, self.what = store, what

    def __str__(self) -> str:
        return (
            f"the file of store {self.store} was {self.what} while this process had it open, so this process no longer "
            "uses it; restore the file if this was a mistake, and start this process again"
        )


class StoreBusy(StoreError):
    """SQLite does not let this transaction write; roll it back. `cause` is the SQLite error name."""

    def __init__(self, store: str = "SQLite", cause: str = "SQLITE_BUSY_SNAPSHOT") -> None:
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        if self.cause == "SQLITE_BUSY_SNAPSHOT":
            what = "this transaction read first and another connection wrote since, so it can no longer write"
        else:
            what = "another connection is writing, and a transaction that read first cannot wait for the lock"
        return (
            f"{self.store}: {what} ({self.cause}; a longer timeout does not help); roll back, and start "
            "transactions that write with BEGIN IMMEDIATE: use holdfast.immediate(conn), or for SQLAlchemy "
            "holdfast.begin_immediate(engine)"
        )


class TransactionConflict(StoreError):
    """PostgreSQL: the caller's transaction has a snapshot from before a concurrent change. Roll back and run it again."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return (
            f"cannot {self.action} in this transaction: another transaction changed the same rows after its snapshot was "
            "taken (isolation level repeatable read or serializable); roll back and run the transaction again"
        )


class SchemaMismatch(StoreError):
    """The tables do not have the version that this release needs. Nothing was read or written."""

    def __init__(self, schema: str, found: int | None, expected: int) -> None:
        super().__init__(schema, found, expected)
        self.schema, self.found, self.expected = schema, found, expected

    def __str__(self) -> str:
        if self.found is None:
            return f"schema {quoted(self.schema)} has no Holdfast tables; run `holdfast schema migrate`"
        what = f"schema {quoted(self.schema)} is at version {self.found}, this release needs {self.expected}"
        if self.found < self.expected:
            return f"{what}; run `holdfast schema migrate`"
        return f"{what}; upgrade holdfast in this environment"


class LogRewound(StoreError):
    """The event store contains higher transaction ids than this server has assigned.

    This happens after a dump is restored on another server: transaction ids start again at a low number, so new
    events would be mistaken for old ones.
    """

    def __init__(self, done: str, newest: str) -> None:
        super().__init__(done, newest)
        self.done, self.newest = done, newest

    def __str__(self) -> str:
        return (
            f"the event store comes from another server (a reader is at {self.done or 'its start'}, the newest event "
            f"belongs to transaction {self.newest or '-'}, and this server has not reached these transaction ids); "
            "reading stops so that nothing is skipped: run `holdfast doctor`"
        )


class EngineRunning(StoreError):
    """Another engine, a worker with its child processes, already uses this SQLite file. This engine did not start."""

    def __init__(self, path: str, holder: str = "") -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        holder = f" ({self.holder})" if self.holder else ""
        return (
            f"another worker{holder} already uses {self.path}; stop it first, start one with --processes, or use PostgreSQL to "
            "run several (publishing and operator commands work while it runs)"
        )


class LockTimeout(StoreError):
    """A migration could not acquire its lock in time. Nothing was changed."""

    def __init__(self, what: str, waited: Duration) -> None:
        self.what, self.waited = what, to_timedelta(waited, name="waited")
        super().__init__(what, self.waited)

    def __str__(self) -> str:
        return (
            f"{self.what} could not acquire its lock within {format_duration(self.waited)}; nothing was changed. "
            "Find the long transaction that holds the lock, end it or wait, and run the migration again"
        )
