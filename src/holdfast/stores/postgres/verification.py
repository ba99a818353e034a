"""Checks that a caller's connection uses the store's server and database."""

from typing import NamedTuple, Protocol

from holdfast.core.errors import WrongDatabase
from holdfast.stores.connections.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.connections.identity import VerifiedConnections, database_identity
from holdfast.stores.operation import Operation, Row
from holdfast.stores.postgres.dialect import PostgresDialect


class _Identity(NamedTuple):
    """A database of a running server."""

    database: str
    server: str


class _Own(Protocol):
    """The part of the store that verification needs."""

    dialect: PostgresDialect
    name: str

    async def run(self, operation: Operation[Row]) -> Row: ...

    def run_sync(self, operation: Operation[Row]) -> Row: ...


class Verification:
    """Compares callers' connections with the store's database, once per connection."""

    def __init__(self, store: _Own) -> None:
        self._store = store
        self._own: _Identity | None = None
        self.verified = VerifiedConnections()

    def load_sync(self) -> None:
        """Reads the store's own identity before callers open transactions.

        Otherwise the first check inside a transaction needs a second connection, and transactions that fill a pooler
        would wait for each other.
        """
        if self._own is None:
            self._own = _Identity(*self._store.run_sync(database_identity()))

    async def verify(self, conn: AsyncConnection) -> None:
        if conn.physical in self.verified:
            return
        found = _Identity(*await run_on_async(database_identity(), self._store.dialect, conn))
        if found != self._own:
            # Read again: the server may have restarted or failed over since.
            self._own = _Identity(*await self._store.run(database_identity()))
        self._compare(conn.physical, found, self._own)

    def verify_sync(self, conn: Connection) -> None:
        if conn.physical in self.verified:
            return
        found = _Identity(*run_on(database_identity(), self._store.dialect, conn))
        if found != self._own:
            self._own = _Identity(*self._store.run_sync(database_identity()))
        self._compare(conn.physical, found, self._own)

    def _compare(self, physical: object, found: _Identity, own: _Identity) -> None:
        if found != own:
            where = "this server" if found.server == own.server else "another server"
            raise WrongDatabase(f"{found.database!r} of {where}", self._store.name)
        self.verified.add(physical)
