"""The operations service on every store."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.servers.tables import empty


@pytest.fixture(params=["sqlite", "postgres16", "postgres18"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[Callable[[], Store]]:
    """A database with empty tables, as a function that opens a store on it: one for each operator."""
    if request.param == "sqlite":
        first = SqliteStore(tmp_path / "holdfast.db")
        first.migrate()
        first.close_sync()
        yield lambda: SqliteStore(tmp_path / "holdfast.db")
        return
    dsn = database(request.getfixturevalue(request.param))
    yield lambda: PostgresStore(dsn)
    empty(dsn)


@pytest.fixture
async def store(place: Callable[[], Store]) -> AsyncIterator[Store]:
    opened = place()
    yield opened
    await opened.close()


@pytest.fixture
def ops(store: Store) -> Operations:
    return Operations(store)
