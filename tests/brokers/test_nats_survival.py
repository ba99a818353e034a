"""NATS: nothing is lost and nothing is applied twice while workers, servers and a cluster's leader die."""

import asyncio
from collections.abc import Iterator

import nats
import pytest

from holdfast.brokers.nats import stream
from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable
from tests.brokers.contract import each_step, ingested_once, survives
from tests.brokers.nats_broker import NatsBroker
from tests.engine.programs.place import Place
from tests.servers.nats import NatsCluster, NatsServer


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsBroker]:
    with NatsServer() as server:
        yield NatsBroker([server])


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsBroker]:
    with NatsCluster() as cluster:
        yield NatsBroker(cluster.nodes)


@pytest.mark.long
def test_nothing_is_lost_or_doubled_while_workers_and_the_leader_of_a_cluster_are_killed(
    cluster: NatsBroker, postgres_place: Place
) -> None:
    survives(postgres_place, cluster, "payments", records=500, workers=2)


@pytest.mark.soak
async def test_what_is_sent_while_the_leader_dies_is_stored_once_and_in_order_for_each_key(cluster: NatsBroker) -> None:
    await asyncio.to_thread(cluster.prepare, "orders", ())
    target = stream("orders", servers=cluster.environment["HOLDFAST_NATS"])
    messages = [
        OutgoingRecord(id=str(n), type="order.placed", key=f"k{n % 5}", body=str(n).encode(), headers={})
        for n in range(400)
    ]
    batches = [messages[at : at + 20] for at in range(0, len(messages), 20)]
    killed = None
    async with asyncio.timeout(60):
        while batches:
            try:
                async with target.open() as sender:
                    while batches:
                        assert await sender.send(batches[0]) == [None] * 20
                        batches.pop(0)
                        if killed is None and len(batches) == 15:
                            killed = asyncio.create_task(asyncio.to_thread(cluster.restart))
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
        assert killed is not None
        await killed
    connection = await nats.connect(cluster.nodes[0].url)
    reader = await connection.jetstream().subscribe("orders", ordered_consumer=True)
    stored = [int((await reader.next_msg(timeout=10)).data) for _ in messages]
    with pytest.raises(nats.errors.TimeoutError):
        await reader.next_msg(timeout=0.2)
    await connection.close()
    for key in range(5):
        assert [n for n in stored if n % 5 == key] == list(range(key, 400, 5))


async def test_one_copy_in_a_cluster_has_a_warning(cluster: NatsBroker) -> None:
    connection = await nats.connect(cluster.nodes[0].url)
    await connection.jetstream().add_stream(name="single", subjects=["single"])
    await connection.close()
    (doubt,) = await stream("single", servers=cluster.nodes[1].url).durability_warnings()
    assert "set replicas=3" in doubt


def test_a_worker_killed_before_it_acknowledges_loses_and_doubles_nothing(
    broker: NatsBroker, sqlite_place: Place
) -> None:
    # Between the commit and the acknowledgement; the others take too long for every day.
    each_step(sqlite_place, broker, "steps", ["stored.unacknowledged"])


@pytest.mark.soak
def test_a_worker_killed_at_every_step_loses_and_doubles_nothing(broker: NatsBroker, postgres_place: Place) -> None:
    each_step(postgres_place, broker, "all-steps")


@pytest.mark.soak
def test_ten_thousand_survive_on_a_cluster(cluster: NatsBroker, postgres_place: Place) -> None:
    survives(postgres_place, cluster, "many", records=10_000, workers=3, kills=30, restarts=4, patience=300)


@pytest.mark.soak
def test_ten_thousand_survive_on_one_server_and_sqlite(broker: NatsBroker, sqlite_place: Place) -> None:
    survives(sqlite_place, broker, "many-more", records=10_000, workers=1, kills=30, restarts=4, patience=300)


@pytest.mark.long
def test_an_ingest_killed_after_its_commit_stores_each_event_once(broker: NatsBroker, sqlite_place: Place) -> None:
    ingested_once(sqlite_place, broker, "ingest", ["in.unacknowledged"])
