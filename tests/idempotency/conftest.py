"""Every place that keeps idempotency records."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.idempotency.redis import RedisRecords
from tests.idempotency.places import EVERYWHERE, RecordPlace, place_of
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=EVERYWHERE)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> AsyncIterator[RecordPlace]:
    """Records in each place, empty."""
    with place_of(request.param, request, tmp_path, database) as place:
        yield place
        if isinstance(place.records, RedisRecords):
            await place.records.close()


@pytest.fixture(params=["sqlite", "postgres18"])
def sql_place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[RecordPlace]:
    """Records in a database."""
    with place_of(request.param, request, tmp_path, database) as place:
        yield place
