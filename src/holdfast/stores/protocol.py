"""The interface of a store."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.dialect import Dialect
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.operation import Operation
from holdfast.stores.queries.lane_floors import LaneFloors

T = TypeVar("T")


class Topic(StrEnum):
    """What a notification is about. Workers listen for work, and callers that wait for results listen for results."""

    WORK = "work"
    RESULTS = "results"


class Store(Protocol):
    """A database that holds messages and deliveries. Safe to share between threads and tasks."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def name(self) -> str:
        """The location of the store without secrets, for logs and errors."""
        ...

    @property
    def lane_floors(self) -> LaneFloors | None:
        """What this process knows about where lanes begin; None if finished deliveries leave no dead rows."""
        ...

    async def run(self, operation: Operation[T]) -> T:
        """Runs an operation on a connection of the store and commits it.

        Deadlocks and serialization failures are retried. When it raises, nothing was committed. The exception is
        `StoreUnavailable`: the reply to the commit may be lost, so check before you repeat the operation.
        """
        ...

    def within(self, patience: timedelta) -> "Store":
        """The same store and connections, with a shorter limit for each response of the server."""
        ...

    def run_sync(self, operation: Operation[T]) -> T:
        """`run`, blocking."""
        ...

    def transaction(self, lock_timeout: timedelta) -> AbstractContextManager[Any]:
        """A blocking connection with an open transaction, which is committed at the end of the block.

        For code with custom statements, which cannot commit. Raises `LockTimeout` when a lock is not available in time.
        """
        ...

    async def verify(self, conn: AsyncConnection) -> None:
        """Raises `WrongDatabase` unless a caller's connection uses this store's database; writes nothing.

        A connection to a server is checked once.
        """
        ...

    def verify_sync(self, conn: Connection) -> None:
        """`verify`, blocking."""
        ...

    async def changes(self, wake: Callable[[], None], topic: Topic = Topic.WORK) -> None:
        """Calls `wake` when another connection may have published or settled, until cancelled. Best effort: polling finds
        the rest."""
        ...

    def hint_is_scheduled(self) -> bool:
        """Whether listeners will notice a commit made before this call without another `hint`."""
        ...

    async def hint(self, topic: Topic = Topic.WORK) -> None:
        """Notifies listeners after a commit that there is work, or a result. Best effort, never raises. Concurrent calls
        are merged."""
        ...

    def hint_sync(self) -> None:
        """`hint`, blocking for a short time."""
        ...

    def engine_lock(self) -> AbstractContextManager[None]:
        """The lock of a running engine; raises `EngineRunning` when the store allows only one engine and another one runs,
        `EngineStopping` when child processes of a killed one still run."""
        ...

    def migrate(self, lock_timeout: timedelta = timedelta(seconds=10)) -> list[str]:
        """Migrates the tables to the version of this release and returns the applied migrations. Blocking.

        Safe to run twice and in several processes at once. Raises `LockTimeout` when the lock is not available in time, and
        `SchemaMismatch` when the tables belong to a newer release.
        """
        ...

    def schema_status(self) -> SchemaStatus:
        """The version of the tables and the version that this release needs. Blocking."""
        ...

    def check_schema(self) -> None:
        """Raises `SchemaMismatch` unless the tables have the version this release needs. Blocking."""
        ...

    async def close(self) -> None: ...

    def close_sync(self) -> None: ...
