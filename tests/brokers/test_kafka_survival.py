"""Kafka: nothing is lost and nothing is applied twice while workers die and nodes go down."""

from collections.abc import Iterator

import pytest

from tests.brokers.contract import each_step, ingested_once, survives
from tests.brokers.kafka_broker import KafkaBroker
from tests.engine.programs.place import Place
from tests.servers.kafka import KafkaCluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaCluster() as cluster:
        yield KafkaBroker(cluster)


def test_nothing_is_lost_or_doubled_while_workers_are_killed_and_a_node_falls_out(
    broker: KafkaBroker, postgres_place: Place
) -> None:
    survives(postgres_place, broker, "payments", records=500, workers=2)


@pytest.mark.soak
def test_ten_thousand_survive_on_postgres(broker: KafkaBroker, postgres_place: Place) -> None:
    survives(postgres_place, broker, "many", records=10_000, workers=3, kills=30, restarts=4, patience=300)


@pytest.mark.soak
def test_ten_thousand_survive_on_sqlite(broker: KafkaBroker, sqlite_place: Place) -> None:
    survives(sqlite_place, broker, "many-more", records=10_000, workers=1, kills=30, restarts=4, patience=300)


@pytest.mark.soak
def test_a_worker_killed_at_any_step_loses_and_doubles_nothing(broker: KafkaBroker, sqlite_place: Place) -> None:
    each_step(sqlite_place, broker, "steps")


@pytest.mark.long
def test_an_ingest_killed_after_its_commit_stores_each_event_once(broker: KafkaBroker, sqlite_place: Place) -> None:
    ingested_once(sqlite_place, broker, "ingest", ["in.unacknowledged"])
