"""The stores under test: each test gets a freshly migrated one, on SQLite, PostgreSQL 16 and PostgreSQL 18."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.servers.tables import empty

POSTGRES = ["postgres16", "postgres18"]
STORES = ["sqlite", *POSTGRES]

_numbers = count(1)


@pytest.fixture(params=STORES)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[Callable[[], Store]]:
    """A database with empty tables, as a function that opens a store on it: one for each process or loop."""
    yield from _place(request, tmp_path, database)


@pytest.fixture(params=POSTGRES)
def postgres_place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[Callable[[], PostgresStore]]:
    """`place`, on PostgreSQL only."""
    yield from _place(request, tmp_path, database)  # type: ignore[misc]


@pytest.fixture
async def store(place: Callable[[], Store]) -> AsyncIterator[Store]:
    """A freshly migrated store, closed after the test."""
    opened = place()
    yield opened
    await opened.close()


@pytest.fixture
def ops(store: Store) -> Operations:
    """The operations service on `store`."""
    return Operations(store)


@pytest.fixture
async def postgres_store(postgres_place: Callable[[], PostgresStore]) -> AsyncIterator[PostgresStore]:
    """`store`, on PostgreSQL only."""
    opened = postgres_place()
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """`store`, on SQLite only."""
    opened = _sqlite(tmp_path / "holdfast.db")
    yield opened
    await opened.close()


@pytest.fixture(params=POSTGRES)
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """A PostgreSQL server, for tests that make their own databases."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def empty_database(server: PostgresServer) -> Iterator[str]:
    """The DSN of a database without Holdfast's tables."""
    name = f"empty_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


def _place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[Callable[[], Store]]:
    if request.param == "sqlite":
        _sqlite(tmp_path / "holdfast.db").close_sync()
        yield lambda: SqliteStore(tmp_path / "holdfast.db")
        return
    dsn = database(request.getfixturevalue(request.param))
    yield lambda: PostgresStore(dsn)
    empty(dsn)


def _sqlite(path: Path) -> SqliteStore:
    """A store on a copy of a migrated file: to migrate each test's file took a tenth of the time of all tests."""
    copy_migrated(path)
    return SqliteStore(path)


def copy_migrated(path: Path) -> None:
    """Makes a file with the tables of Holdfast."""
    path.write_bytes(_migrated())
    path.chmod(0o600)


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as directory:
        store = SqliteStore(path := Path(directory) / "holdfast.db")
        store.migrate()
        store.close_sync()
        return path.read_bytes()
