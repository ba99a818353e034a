"""Places to publish in, and an app for each test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, event
from holdfast.stores.postgres.store import PostgresStore
from tests.produce.callers import POSTGRES, SQLITE, Caller
from tests.produce.place import Place, PostgresPlace, SqlitePlace
from tests.servers.postgres import PostgresServer


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int


@pytest.fixture(scope="session")
def postgres_dsn(postgres18: PostgresServer) -> str:
    """A database with Holdfast's tables and one of the caller's own, made once."""
    dsn = postgres18.create_database("holdfast_produce")
    store = PostgresStore(dsn)
    store.migrate()
    store.close_sync()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table orders (id bigint primary key)")
    return dsn


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "shop.db")


@pytest.fixture
def postgres_place(postgres_dsn: str) -> Iterator[PostgresPlace]:
    place = PostgresPlace(postgres_dsn)
    yield place
    place.clear()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """The kind of database that the test's `way` of connecting leads to."""
    way = request.getfixturevalue("way")
    found: Place = request.getfixturevalue("sqlite_place" if way in SQLITE else "postgres_place")
    return found


@pytest.fixture
def make_app() -> Iterator[Callable[[Place], Holdfast]]:
    """An app with one consumer, `billing`, for events of type order.placed; closed after the test."""
    made: list[Holdfast] = []

    def make(place: Place) -> Holdfast:
        hf = Holdfast(place.dsn, source="shop")
        hf.consumer(OrderPlaced, name="billing")(bill)
        made.append(hf)
        return hf

    yield make
    for hf in made:
        hf.store.close_sync()


def bill(order: OrderPlaced) -> None:
    """Never run here."""


@pytest.fixture
def hf(place: Place, make_app: Callable[[Place], Holdfast]) -> Holdfast:
    return make_app(place)


@pytest.fixture
def caller(place: Place, way: str) -> Iterator[Caller]:
    caller = {**SQLITE, **POSTGRES}[way](place)
    yield caller
    caller.end()


@dataclass(frozen=True)
class Stored:
    """What a third party sees: the caller's rows, and each message with the consumers it is for."""

    orders: list[int]
    messages: dict[UUID, list[str]]


def stored(place: Place) -> Stored:
    orders = [row[0] for row in place.rows("select id from orders order by id")]
    messages: dict[UUID, list[str]] = {
        UUID(str(row[0])): [] for row in place.rows("select id from {hf}message order by position")
    }
    for message_id, consumer in place.rows("select message_id, consumer from {hf}delivery order by consumer"):
        messages[UUID(str(message_id))].append(consumer)
    return Stored(orders, messages)
