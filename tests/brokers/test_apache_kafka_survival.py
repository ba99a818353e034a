"""Apache Kafka with the defaults of broker and client: nothing is lost while workers and nodes are killed."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.brokers.contract import bodies, prepare_app, settled, start_worker, survives
from tests.brokers.kafka_broker import ApacheBroker
from tests.brokers.programs.app import CONSUMERS
from tests.engine.programs import place as places
from tests.engine.programs.place import Place, until
from tests.servers.apache_kafka import ApacheKafka

pytestmark = pytest.mark.long

FIRST_SECONDS = 10.0
"""From a worker's start to its first record. Three of them are the group's initial rebalance delay."""
TAKE_OVER_SECONDS = 60.0
"""From a worker's kill to the next one's first record. The session of the killed one lasts for 45 of them."""
PATIENCE = 150.0


@pytest.fixture
def second_place(tmp_path: Path) -> Iterator[Place]:
    """SQLite, in a new directory."""
    directory = tmp_path / "second"
    directory.mkdir()
    with places.sqlite_place(directory) as place:
        yield place


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_on_one_node_and_on_a_cluster_while_workers_and_nodes_are_killed(
    apache_kafka: ApacheKafka, apache_cluster: ApacheKafka, second_place: Place, postgres_place: Place
) -> None:
    one, three = ApacheBroker(apache_kafka), ApacheBroker(apache_cluster)
    # At the same time, because most of it is waiting for the sessions of killed workers.
    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(takes_over, second_place, one, "one-node", records=500),
            threads.submit(survives, postgres_place, three, "three-nodes", records=500, workers=2, patience=PATIENCE),
        ]
        for part in running:
            part.result()


def takes_over(place: Place, broker: ApacheBroker, stream: str, records: int) -> None:
    """A worker reads soon after its start, and another soon after the kill of the first."""
    prepare_app(place, broker, stream)
    broker.put(stream, bodies(range(records // 2)))
    first = start_worker(place, broker, stream)
    first.says("worker started")
    started = time.monotonic()
    _handles(place, 0, started + FIRST_SECONDS)
    read = time.monotonic()
    first.kill_family()
    killed, before = time.monotonic(), min(_handled(place).values())
    broker.put(stream, bodies(range(records // 2, records)))
    start_worker(place, broker, stream)
    _handles(place, records // 2, killed + TAKE_OVER_SECONDS)
    print(f"first record {read - started:.1f} s after the start, {before} before the kill")
    print(f"take-over {time.monotonic() - killed:.1f} s after the kill")
    settled(place, broker, stream, records, PATIENCE)


def _handles(place: Place, from_number: int, deadline: float) -> None:
    """Waits until both consumers have handled a record of this number or a later one."""
    for consumer in CONSUMERS:
        until(
            lambda: _handled(place, from_number).get(consumer, 0) > 0,  # noqa: B023
            f"{consumer} is late",
            deadline - time.monotonic(),
            place.logs,
        )


def _handled(place: Place, from_number: int = 0) -> dict[str, int]:
    return dict(place.sql("select consumer, count(*) from effect where n >= ? group by consumer", from_number))


@pytest.mark.soak
def test_ten_thousand_survive_on_the_cluster(apache_cluster: ApacheKafka, postgres_place: Place) -> None:
    broker = ApacheBroker(apache_cluster)
    survives(postgres_place, broker, "many", records=10_000, workers=3, kills=30, restarts=4, patience=300)


@pytest.mark.soak
def test_ten_thousand_survive_on_one_node(apache_kafka: ApacheKafka, sqlite_place: Place) -> None:
    broker = ApacheBroker(apache_kafka)
    survives(sqlite_place, broker, "many", records=10_000, workers=1, kills=30, restarts=0, patience=300)
