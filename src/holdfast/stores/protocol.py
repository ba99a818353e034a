"""What the rest of Holdfast may ask of a store."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.dialect import Dialect
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.operation import Operation

T = TypeVar("T")


class Store(Protocol):
    """A database that holds messages and deliveries. Safe to share between threads and tasks."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def name(self) -> str:
        """Where the store is, without secrets: fit for logs and errors."""
        ...

    async def run(self, operation: Operation[T]) -> T:
        """Runs an operation on a connection of the store's own and commits it.

        Deadlocks and serialisation failures are tried again. When it raises, nothing was committed, except after
        `StoreUnavailable`, when the reply may have been lost: look before you repeat.
        """
        ...

    def within(self, patience: timedelta) -> "Store":
        """The same store, with its connections shared, that waits no longer than this for each answer of its server."""
        ...

    def run_sync(self, operation: Operation[T]) -> T:
        """`run`, blocking."""
        ...

    def transaction(self, lock_timeout: timedelta) -> AbstractContextManager[Any]:
        """A blocking connection of the store's own in an open transaction, which is committed at the end of the block.

        For code that brings statements of its own; it cannot commit. `LockTimeout` when a lock cannot be had.
        """
        ...

    async def verify(self, conn: AsyncConnection) -> None:
        """Raises `WrongDatabase` unless a caller's connection leads to this store's database; writes nothing.

        A connection to a server is asked once.
        """
        ...

    def verify_sync(self, conn: Connection) -> None:
        """`verify`, blocking."""
        ...

    async def changes(self, wake: Callable[[], None]) -> None:
        """Calls `wake` whenever another connection may have published, until cancelled. A hint: nothing depends on it."""
        ...

    async def hint(self) -> None:
        """Tells listeners that there is work, after a commit. Best effort, never raises. Many at once are as good as one."""
        ...

    def hint_sync(self) -> None:
        """`hint`, blocking shortly."""
        ...

    def engine_lock(self) -> AbstractContextManager[None]:
        """Held while an engine runs here; `EngineRunning` when this kind of store bears only one and it is taken."""
        ...

    def migrate(self, lock_timeout: timedelta = timedelta(seconds=10)) -> list[str]:
        """Brings the tables to the version this release needs and names what it applied. Blocking.

        Safe to run twice and by several processes at once. `LockTimeout` when the lock cannot be had.
        """
        ...

    def schema_status(self) -> SchemaStatus:
        """Which version the tables have and which this release needs. Blocking."""
        ...

    def check_schema(self) -> None:
        """Raises `SchemaMismatch` unless the tables have the version this release needs. Blocking."""
        ...

    async def close(self) -> None: ...

    def close_sync(self) -> None: ...
