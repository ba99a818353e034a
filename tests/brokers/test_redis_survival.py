"""Redis Streams: nothing is lost and nothing is applied twice while workers and the server die."""

from collections.abc import Iterator

import pytest

from tests.brokers.contract import each_step, ingested_once, survives
from tests.brokers.redis_broker import RedisBroker
from tests.engine.programs.place import Place
from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisBroker]:
    with RedisServer(durable=True) as server:
        yield RedisBroker(server)


@pytest.mark.long
def test_nothing_is_lost_or_doubled_while_workers_are_killed_and_redis_is_restarted(
    broker: RedisBroker, postgres_place: Place
) -> None:
    survives(postgres_place, broker, "payments", records=500, workers=2)


@pytest.mark.soak
def test_ten_thousand_survive_on_postgres(broker: RedisBroker, postgres_place: Place) -> None:
    survives(postgres_place, broker, "many", records=10_000, workers=3, kills=20, restarts=4, patience=300)


@pytest.mark.soak
def test_ten_thousand_survive_on_sqlite(broker: RedisBroker, sqlite_place: Place) -> None:
    survives(sqlite_place, broker, "many-more", records=10_000, workers=1, kills=20, restarts=4, patience=300)


def test_a_worker_killed_before_or_after_its_commit_loses_and_doubles_nothing(
    broker: RedisBroker, sqlite_place: Place
) -> None:
    # The others take too long for every day.
    each_step(sqlite_place, broker, "steps", ["publish.uncommitted", "straight.committed"])


@pytest.mark.soak
def test_a_worker_killed_at_every_step_loses_and_doubles_nothing(broker: RedisBroker, postgres_place: Place) -> None:
    each_step(postgres_place, broker, "all-steps")


@pytest.mark.long
def test_an_ingest_killed_after_its_commit_stores_each_event_once(broker: RedisBroker, sqlite_place: Place) -> None:
    ingested_once(sqlite_place, broker, "ingest", ["in.unacknowledged"])


@pytest.mark.soak
@pytest.mark.parametrize("where", ["sqlite_place", "postgres_place"])
def test_an_ingest_killed_at_every_step_stores_each_event_once(
    broker: RedisBroker, where: str, request: pytest.FixtureRequest
) -> None:
    ingested_once(request.getfixturevalue(where), broker, f"ingest-{where}")
