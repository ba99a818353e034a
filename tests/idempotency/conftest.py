"""Every place that keeps idempotency records."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.idempotency.redis import RedisRecords
from tests.idempotency.record_stores import EVERYWHERE, RecordStore, open_record_store
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=EVERYWHERE)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> AsyncIterator[RecordStore]:
    """Records in each place, empty."""
    with open_record_store(request.param, request, tmp_path, database) as place:
        yield place
        if isinstance(place.records, RedisRecords):
            await place.records.close()


@pytest.fixture(params=["sqlite", "postgres18"])
def sql_place(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[RecordStore]:
    """Records in a database."""
    with open_record_store(request.param, request, tmp_path, database) as place:
        yield place
