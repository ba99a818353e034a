"""Many callers at once: threads with separate stores, or tasks with separate connections."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar

import psycopg

from holdfast.stores.connections.connection import AsyncPsycopg, run_on_async
from holdfast.stores.dialect import Answer, Parameters
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.support.builders import sql

T = TypeVar("T")
S = TypeVar("S", bound=Store)


@contextmanager
def opened(place: Callable[[], S], number: int) -> Iterator[list[S]]:
    """As many stores on one database as there would be processes."""
    stores = [place() for _ in range(number)]
    try:
        yield stores
    finally:
        for store in stores:
            store.close_sync()


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the calls in threads that all start at the same moment; their results, in order."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


class Caller:
    """One connection of a caller's own, in autocommit until it begins."""

    def __init__(self, store: PostgresStore, connection: psycopg.AsyncConnection) -> None:
        self.connection = connection
        self.dialect = store.dialect

    async def run(self, operation: Operation[T]) -> T:
        """Runs an operation in the transaction that is open, or in a new one."""
        return await run_on_async(operation, self.dialect, AsyncPsycopg(self.connection))

    async def commit(self, operation: Operation[T]) -> T:
        async with self.connection.transaction():
            return await self.run(operation)


class Gated(AsyncPsycopg):
    """A caller's connection that waits at a gate before its second statement that inserts."""

    def __init__(self, connection: psycopg.AsyncConnection, gate: Callable[[], Awaitable[None]]) -> None:
        super().__init__(connection)
        self._gate = gate
        self._inserts = 0

    async def run(self, text: str, values: Parameters) -> Answer:
        if "insert into" in text:
            self._inserts += 1
            if self._inserts == 2:
                await self._gate()
        return await super().run(text, values)


@asynccontextmanager
async def callers(store: PostgresStore, number: int) -> AsyncIterator[list[Caller]]:
    """As many real connections to the server."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(number):
            connection = await stack.enter_async_context(await store._connect_async())
            found.append(Caller(store, connection))
        yield found


async def until_waiting(store: PostgresStore, number: int) -> None:
    """Returns when so many sessions of the database wait for a lock."""
    async with await psycopg.AsyncConnection.connect(store.conninfo, autocommit=True) as connection:
        async with asyncio.timeout(60):
            while True:
                cursor = await connection.execute(
                    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
                )
                row = await cursor.fetchone()
                if row is not None and row[0] >= number:
                    return
                await asyncio.sleep(0.005)


def behind(store: Store) -> bool:
    """Whether a subscription may still have something to catch up on.

    On PostgreSQL the log is read up to the oldest transaction that runs, and autovacuum's is one of them.
    """
    mark, last = ("mark_tx", "max(tx)") if isinstance(store, PostgresStore) else ("mark_position", "max(position) - 1")
    late = f"{mark} <= (select {last} from {{hf}}message)"
    return bool(sql(store, f"select 1 from {{hf}}subscription where retired_at is null and {late} limit 1"))
