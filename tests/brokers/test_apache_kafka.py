"""A real Apache Kafka with its defaults: groups, transactions, limits and listeners, seen through the adapter."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.brokers import kafka
from holdfast.brokers.kafka import KafkaTopic
from holdfast.brokers.protocol import OutgoingRecord, Record, Subscription
from holdfast.core.errors import BrokerUnavailable
from tests.servers.apache_kafka import PASSWORD, USER, ApacheKafka
from tests.support.worker import eventually

pytestmark = pytest.mark.long

CLASSIC: Mapping[str, str] = {}
CONSUMER = {"group.protocol": "consumer"}
"""Without the three seconds that a new classic group waits for more members: for tests of other things."""
_numbers = count()


def make(
    broker: ApacheKafka,
    partitions: int = 1,
    options: Mapping[str, Any] = CONSUMER,
    settings: Mapping[str, str] | None = None,
) -> KafkaTopic:
    name = f"real-{next(_numbers)}-{os.getpid()}"  # the broker is shared with other test processes
    broker.create(name, partitions, settings)
    return kafka.topic(name, group=name, servers=broker.servers, options=options)


async def send(topic: KafkaTopic, amount: int, *, size: int = 0) -> None:
    batch = [
        OutgoingRecord(id=str(n), type="payment.settled", key=f"k{n}", body=b"%d" % n + b" " * size, headers={})
        for n in range(amount)
    ]
    async with topic.open() as sender:
        assert await sender.send(batch) == [None] * amount


async def take(subscription: Subscription, amount: int, seconds: float = 30) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(seconds):
        while len(records) < amount:
            records += await subscription.fetch(amount - len(records), 0.5)
    return records


def partitions(records: Sequence[Record]) -> set[str]:
    return {str(record.id).partition("-")[0] for record in records}


async def commits(broker: ApacheKafka, topic: KafkaTopic) -> None:
    """Waits until the group has committed the end of every partition."""
    await eventually(lambda: broker.committed(topic.topic, topic.group or "") == broker.ends(topic.topic))


@pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
async def test_a_second_member_gets_its_share_and_what_the_first_had_not_done(
    apache_kafka: ApacheKafka, options: Mapping[str, Any]
) -> None:
    topic = make(apache_kafka, 4, options)
    await send(topic, 80)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(topic.open("w1"))
        mine = await take(first, 80)
        assert len(partitions(mine)) == 4
        second = await stack.enter_async_context(topic.open("w2"))
        # Without a fetch, the first member still takes part in the rebalance.
        theirs = await take(second, 1)
        while len(partitions(theirs)) < 2:
            theirs += await take(second, 1)
        moved = partitions(theirs)
        expected = [record for record in mine if partitions([record]) <= moved]
        theirs += await take(second, len(expected) - len(theirs))
        assert {record.id for record in theirs} == {record.id for record in expected}
        await second.ack(theirs)
        await first.ack(mine)
        await commits(apache_kafka, topic)
        lag = await first.lag()
        assert (lag.waiting, lag.unacknowledged) == (0, 0)


async def test_a_lag_that_is_not_answered_during_the_join_does_not_end_it(apache_kafka: ApacheKafka) -> None:
    topic = make(apache_kafka, 1, CLASSIC)
    await send(topic, 3)
    async with topic.open("w1") as subscription:
        # The join takes three seconds and the lag waits for two. On a slow machine the join can end before the lag is read.
        with suppress(BrokerUnavailable):
            await subscription.lag()
        assert len(await take(subscription, 3, 10)) == 3
        assert (await subscription.lag()).unacknowledged == 3


async def test_a_static_member_that_restarts_gets_its_partitions_back_at_once(apache_kafka: ApacheKafka) -> None:
    topic = make(apache_kafka, 2, {"group.instance.id": "worker-1"})
    await send(topic, 10)
    async with topic.open("w1") as subscription:
        await subscription.ack((await take(subscription, 10))[:4])
    # It did not leave the group: a dynamic member that is killed would be waited for, for 45 s.
    async with topic.open("w1") as subscription:
        again = await take(subscription, 6, 10)
        await subscription.ack(again)
        await commits(apache_kafka, topic)


async def test_two_members_with_the_same_instance_id_get_an_error(apache_kafka: ApacheKafka) -> None:
    topic = make(apache_kafka, 2, {"group.instance.id": "worker-1", **CONSUMER})
    await send(topic, 4)
    async with topic.open("w1") as first:
        await take(first, 4)
        async with topic.open("w2") as second:
            with pytest.raises(BrokerUnavailable, match=r"group\.instance\.id"):
                await asyncio.gather(take(first, 1, 20), take(second, 5, 20))


async def test_only_committed_transactions_are_read_and_nothing_seems_to_wait_behind_them(
    apache_kafka: ApacheKafka,
) -> None:
    topic = make(apache_kafka)
    producer = Producer({"bootstrap.servers": apache_kafka.servers, "transactional.id": topic.topic})
    producer.init_transactions(20)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for part in "ab":
            producer.produce(topic.topic, f"{number}{part}")
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 4)
        assert [record.body for record in records] == [b"0a", b"0b", b"2a", b"2b"]
        await subscription.ack(records)
        assert await subscription.fetch(1, 2.0) == []
        # The end lies behind the aborted records and the markers of the transactions.
        await commits(apache_kafka, topic)
        assert (await subscription.lag()).waiting == 0


async def test_an_open_transaction_holds_back_its_records_only(apache_kafka: ApacheKafka) -> None:
    topic = make(apache_kafka)
    await send(topic, 2)
    producer = Producer({"bootstrap.servers": apache_kafka.servers, "transactional.id": topic.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic.topic, b"late")
    producer.flush(20)
    async with topic.open("w1") as subscription:
        await subscription.ack(await take(subscription, 2))
        assert await subscription.fetch(1, 1.0) == []
        producer.commit_transaction(20)
        (late,) = await take(subscription, 1)
        assert late.body == b"late"


async def test_a_record_over_the_topics_limit_is_refused_alone_and_a_large_one_is_read(
    apache_kafka: ApacheKafka,
) -> None:
    small = make(apache_kafka, settings={"max.message.bytes": "2000"})
    batch = [
        OutgoingRecord(id=str(n), type="t", key=None, body=b"x" * size, headers={})
        for n, size in enumerate([10, 5000, 10])
    ]
    async with small.open() as sender:
        refused = await sender.send(batch)
    assert refused[0] is refused[2] is None
    assert "too large" in (refused[1] or "")
    large = make(
        apache_kafka,
        options={**CONSUMER, "message.max.bytes": 8_000_000},
        settings={"max.message.bytes": "8000000"},
    )
    await send(large, 2, size=3_000_000)
    async with large.open("w1") as subscription:
        assert [len(record.body) for record in await take(subscription, 2)] == [3_000_001, 3_000_001]


@pytest.mark.parametrize("listener", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_listeners_with_tls_and_passwords_are_used(apache_kafka: ApacheKafka, listener: str) -> None:
    topic = make(apache_kafka)
    options = security(apache_kafka, listener)
    secured = kafka.topic(topic.topic, group=listener, servers=apache_kafka.listener(listener), options=options)
    await send(secured, 3)
    async with secured.open("w1") as subscription:
        await subscription.ack(await take(subscription, 3))
    assert (await secured.durability_warnings())[0].startswith(f"{secured.name} keeps one copy")


@pytest.mark.parametrize(
    ("listener", "wrong", "said"),
    [
        ("SASL_PLAINTEXT", {"sasl.password": "guess-7731"}, "[Aa]uthentication"),
        ("SSL", {"ssl.ca.location": ""}, "SSL|certificate"),
    ],
)
async def test_a_wrong_password_or_certificate_is_named(
    apache_kafka: ApacheKafka, listener: str, wrong: dict[str, Any], said: str
) -> None:
    topic = make(apache_kafka)
    options = {**security(apache_kafka, listener), **wrong}
    secured = kafka.topic(topic.topic, group="g", servers=apache_kafka.listener(listener), options=options, timeout=3)
    with pytest.raises(BrokerUnavailable, match=said) as raised:
        async with secured.open("w1"):
            pass
    assert "guess-7731" not in str(raised.value)


def security(broker: ApacheKafka, listener: str) -> dict[str, Any]:
    options: dict[str, Any] = {**CONSUMER, "security.protocol": listener.lower()}
    if "SSL" in listener.removeprefix("SASL"):
        options["ssl.ca.location"] = str(broker.authority)
    if "SASL" in listener:
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    return options


@pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
@pytest.mark.timeout(300)
@pytest.mark.soak
async def test_a_subscription_outlives_a_killed_node_and_moves_of_leader_and_coordinator(
    apache_cluster: ApacheKafka, options: Mapping[str, Any]
) -> None:
    topic = make(apache_cluster, 3, options)
    async with topic.open("w1") as subscription:
        # Electing a leader after a kill takes the brokers nine seconds and more.
        patient = kafka.topic(topic.topic, servers=apache_cluster.servers, timeout=60)

        async def passes(amount: int) -> None:
            await send(patient, amount)
            await subscription.ack(await take(subscription, amount, 60))
            await commits(apache_cluster, topic)

        await passes(30)
        coordinator = apache_cluster.coordinator(topic.group or "")
        leaders = [apache_cluster.leader(topic.topic, partition) for partition in range(3)]
        assert coordinator in leaders
        await asyncio.to_thread(apache_cluster.kill, coordinator)
        await passes(30)
        assert apache_cluster.coordinator(topic.group or "") != coordinator
        await asyncio.to_thread(apache_cluster.start)
        # Leaders move while every node runs; so does the coordinator, which is the leader of a partition.
        async with asyncio.timeout(150):
            while apache_cluster.coordinator(topic.group or "") != coordinator:
                apache_cluster.elect_preferred()
                await asyncio.sleep(0.5)
        assert [apache_cluster.leader(topic.topic, partition) for partition in range(3)] == leaders
        await passes(30)


@pytest.mark.soak
async def test_a_compacted_topic_is_read_and_committed_to_its_end(apache_kafka: ApacheKafka) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1000",
    }
    topic = make(apache_kafka, settings=settings)

    def put(key: str, value: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": apache_kafka.servers})
        producer.produce(topic.topic, value, key)
        assert producer.flush(20) == 0

    for number in range(20):
        put("same", b"%d" % number)
        put(f"other-{number}", b"kept")
    put("other-3", None)

    async def read(group: str) -> list[Record]:
        reader = kafka.topic(topic.topic, group=group, servers=apache_kafka.servers, options=CONSUMER)
        async with reader.open("w1") as subscription:
            records = await take(subscription, 21)
            while more := await subscription.fetch(100, 2.0):
                records += more
            await subscription.ack(records)
            await commits(apache_kafka, reader)
            assert (await subscription.lag()).waiting == 0
        return records

    async with asyncio.timeout(90):
        while True:
            await asyncio.sleep(1.2)
            put("roll", b"a new segment")
            if len(found := await read(f"g-{next(_numbers)}")) < 41:
                break
    assert len([record for record in found if record.key == "same"]) < 20
    assert found[-1].key == "roll"
