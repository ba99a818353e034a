"""Kafka against librdkafka's own cluster: real protocol, real clients, offsets read by the admin client."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.brokers import cloudevents, kafka
from holdfast.brokers.kafka import KafkaTopic
from holdfast.brokers.kafka.diagnostics import check_settings
from holdfast.brokers.kafka.record import time_of
from holdfast.brokers.kafka.subscription import KafkaSubscription
from holdfast.brokers.protocol import OutgoingRecord, Record, Source, Subscription, Target
from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from tests.brokers.doc_examples import run_example
from tests.servers.kafka import KafkaCluster
from tests.support.worker import eventually

# Short, so that a member that is gone is found out within a test.
_QUICK: Mapping[str, int] = {
    "heartbeat.interval.ms": 200,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 500,
}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: KafkaCluster) -> KafkaTopic:
    return make(cluster, partitions=1)


def make(
    cluster: KafkaCluster,
    *,
    partitions: int,
    start: str = "beginning",
    timeout: float = 5.0,
    session: float = 2.0,
) -> KafkaTopic:
    number = next(_numbers)
    cluster.create(f"payments-{number}", partitions)
    return kafka.topic(
        f"payments-{number}",
        group=f"shop-{number}",
        servers=cluster.servers,
        start=start,
        timeout=timeout,
        options={**_QUICK, "session.timeout.ms": round(session * 1000), "max.poll.interval.ms": round(session * 1000)},
    )


def outgoing(number: int, *, key: str | None = None, body: bytes | None = None) -> OutgoingRecord:
    headers = {"content-type": "application/json", "ce_id": f"é-{number}"}
    content = b"%d" % number if body is None else body
    return OutgoingRecord(id=str(number), type="payment.settled", key=key, body=content, headers=headers)


async def send(topic: KafkaTopic, amount: int, *, keyed: bool = False) -> None:
    """Prepares a test: the time limit of the topic is for what the test does, and a new producer may need longer."""
    async with replace(topic, timeout=30.0).open() as sender:
        batch = [outgoing(number, key=f"k{number}" if keyed else None) for number in range(amount)]
        assert await sender.send(batch) == [None] * amount


def committed(cluster: KafkaCluster, topic: KafkaTopic) -> Mapping[int, int]:
    return cluster.committed(topic.topic, topic.group or "")


async def commits(cluster: KafkaCluster, topic: KafkaTopic, offsets: Mapping[int, int], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        await eventually(lambda: committed(cluster, topic) == offsets, f"not committed: {offsets}")


def open_record_store(record: Record) -> str:
    """Partition and offset."""
    return str(record.id).rpartition("-")[0]


async def take(subscription: Subscription, amount: int, seconds: float = 30) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(seconds):
        while len(records) < amount:
            records += await subscription.fetch(amount - len(records), 0.5)
    return records


async def test_sent_records_arrive_unchanged_and_in_order(cluster: KafkaCluster, topic: KafkaTopic) -> None:
    source: Source = topic
    target: Target = topic
    async with target.open() as sender:
        assert await sender.send([outgoing(n, key="k") for n in range(50)]) == [None] * 50
    async with source.open("w1") as subscription:
        records = await take(subscription, 50)
        assert [record.body for record in records] == [b"%d" % n for n in range(50)]
        first = records[0]
        assert (first.stream, open_record_store(first), first.key) == (topic.topic, "0-0", "k")
        assert first.headers == {"content-type": "application/json", "ce_id": "é-0"}
        assert first.at is not None
        assert first.at.tzinfo is not None
        assert (await subscription.lag()).unacknowledged == 50
        await subscription.ack(records)
        await commits(cluster, topic, {0: 50})
        assert (await subscription.lag()).waiting == 0


async def test_only_contiguous_offsets_are_committed_and_the_rest_is_redelivered(
    cluster: KafkaCluster, topic: KafkaTopic
) -> None:
    await send(topic, 10)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 10)
        await subscription.ack(records[1:3])
        assert committed(cluster, topic) == {}
        await subscription.ack([records[0], records[5]])
    await commits(cluster, topic, {0: 3})
    async with topic.open("w2") as subscription:
        again = await take(subscription, 7)
        assert [open_record_store(record) for record in again] == [f"0-{offset}" for offset in range(3, 10)]


async def test_released_records_are_redelivered_and_old_receipts_settle_nothing(
    cluster: KafkaCluster, topic: KafkaTopic
) -> None:
    await send(topic, 10)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 6)
        await subscription.ack(records[:2])
        await subscription.release(records[3:5])
        again = await take(subscription, 7)
        assert [open_record_store(record) for record in again] == [f"0-{offset}" for offset in range(3, 10)]
        await subscription.ack(records)  # of the old ones, only 2 is still held
        await commits(cluster, topic, {0: 3})
        await subscription.ack(again)
        await commits(cluster, topic, {0: 10})


async def test_a_rebalance_in_mid_handler_loses_nothing_and_commits_only_what_is_owned(cluster: KafkaCluster) -> None:
    topic = make(cluster, partitions=4)
    await send(topic, 80, keyed=True)
    done: set[str] = set()
    async with AsyncExitStack() as second_stays, topic.open("w1") as first:
        records = await take(first, 80)
        # Done in each partition but for its first: nothing may be committed.
        held = [record for record in records if open_record_store(record).endswith("-0")]
        early = [record for record in records if record not in held]
        await first.ack(early)
        assert committed(cluster, topic) == {}
        second = await second_stays.enter_async_context(topic.open("w2"))
        # Without a fetch, the first member must still take part in the rebalance.
        moved = (await take(second, 1))[0]
        theirs = [moved, *await take(second, len(_of(records, _partitions([moved]))) - 1)]
        while len(_partitions(theirs)) < 2:  # the second partition may come a moment later
            theirs += await take(second, 1)
        await take_rest(second, theirs, records)
        lost = _partitions(theirs)
        await first.ack(held)
        await commits(cluster, topic, {n: len(_of(records, {n})) for n in {0, 1, 2, 3} - lost})
        done |= {str(record.id) for record in records if _partition(record) not in lost}
        await second.ack(theirs)
        done |= {str(record.id) for record in theirs}
        assert done == {str(record.id) for record in records}
        # Before the first member leaves: a commit that meets the next rebalance may be refused, and is then repeated.
        await commits(cluster, topic, {n: len(_of(records, {n})) for n in range(4)})


class WatchedConsumer:
    """Passes all calls to a client, and remembers what it had when it was closed."""

    def __init__(self, client: Any) -> None:
        self.client, self.at_close = client, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def close(self) -> None:
        self.at_close = self.client.assignment()
        self.client.close()


async def test_a_client_has_no_partitions_when_it_is_closed(cluster: KafkaCluster) -> None:
    """Otherwise its close may wait forever, with the lock of the interpreter (librdkafka issue 4884)."""
    topic = make(cluster, partitions=2)
    await send(topic, 10, keyed=True)
    async with topic.open("w1") as subscription:
        assert isinstance(subscription, KafkaSubscription)
        records = await take(subscription, 10)
        await subscription.ack(records)
        assert subscription._consumer.assignment()
        watched: Any = WatchedConsumer(subscription._consumer)
        subscription._consumer = watched
    assert watched.at_close == []
    assert committed(cluster, topic) == {n: len(_of(records, {n})) for n in _partitions(records)}


async def take_rest(subscription: Subscription, taken: list[Record], all_records: Sequence[Record]) -> None:
    taken += await take(subscription, len(_of(all_records, _partitions(taken))) - len(taken))


def _partition(record: Record) -> int:
    return int(str(record.id).split("-")[0])


def _partitions(records: Sequence[Record]) -> set[int]:
    return {_partition(record) for record in records}


def _of(records: Sequence[Record], partitions: set[int]) -> list[Record]:
    return [record for record in records if _partition(record) in partitions]


async def test_a_handler_longer_than_the_groups_patience_keeps_its_partition(
    cluster: KafkaCluster, topic: KafkaTopic
) -> None:
    await send(topic, 20)
    assert topic.ack_timeout == 2
    async with topic.open("w1") as first:
        mine = await take(first, 5)
        async with topic.open("w2") as second:
            assert await second.fetch(5, 3.0) == [], "the partition was given away in mid-handler"
            await first.ack(mine)
            await commits(cluster, topic, {0: 5})
            assert len(await take(first, 15)) == 15, "it is paused no longer"


@pytest.mark.parametrize("milliseconds", [1_762_000_000_000_000, -(10**15), 1_762_000_000_000])
def test_a_clock_that_counts_in_other_units_stops_no_partition(milliseconds: int) -> None:
    known = time_of(milliseconds)
    assert (known is not None) == (milliseconds == 1_762_000_000_000)


async def test_an_unavailable_broker_is_reported_and_reading_continues_when_it_is_back(
    cluster: KafkaCluster,
) -> None:
    topic = make(cluster, partitions=1, timeout=2.0)
    await send(topic, 10)
    try:
        async with topic.open("w1") as subscription:
            records = await take(subscription, 5)
            await subscription.ack(records[:3])
            await commits(cluster, topic, {0: 3})
            cluster.down()
            with pytest.raises(BrokerUnavailable, match=f"kafka:{topic.topic}/"):
                await take(subscription, 6)
        with pytest.raises(BrokerUnavailable):
            async with topic.open("w1"):
                pass
    finally:
        cluster.up()
    async with replace(topic, timeout=10.0).open("w1") as subscription:  # the nodes need a moment to start again
        # The former member did not leave the group, so the group waits until it expires.
        again = await take(subscription, 7, 60)
        assert [open_record_store(record) for record in again] == [f"0-{offset}" for offset in range(3, 10)]


async def test_a_stalled_broker_is_reported_and_unconfirmed_records_are_redelivered(
    cluster: KafkaCluster,
) -> None:
    topic = make(cluster, partitions=1, timeout=2.0)
    await send(topic, 4)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 4)
        cluster.stall(60)
        try:
            await subscription.ack(records[:2])
            with pytest.raises(BrokerUnavailable, match="no commit was confirmed within 2 s"):
                await take(subscription, 1)
        finally:
            cluster.stall(0)
    async with topic.open("w1") as subscription:
        assert open_record_store(records[-1]) in {open_record_store(record) for record in await take(subscription, 2)}


async def test_a_member_stays_in_the_group_while_brokers_are_away_for_less_than_its_session(
    cluster: KafkaCluster,
) -> None:
    topic = make(cluster, partitions=1, timeout=2.0, session=20.0)
    await send(topic, 6)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 3)
        cluster.down()
        try:
            await subscription.ack(records)
            for _ in range(6):
                await subscription.fetch(3, 0.5)  # does not raise
        finally:
            cluster.up()
        # One that had left without a word would be waited for until its session ends.
        await commits(cluster, topic, {0: 3}, 15)


async def test_a_failed_node_is_bypassed(cluster: KafkaCluster, topic: KafkaTopic) -> None:
    cluster.lead(topic.topic, 0, 2)
    cluster.coordinate(topic.group or "", 2)
    await send(topic, 5)
    async with topic.open("w1") as subscription:
        await subscription.ack(await take(subscription, 5))
        cluster.lead(topic.topic, 0, 3)
        cluster.coordinate(topic.group or "", 3)
        cluster.down(2)
        try:
            await send(topic, 5)
            await subscription.ack(await take(subscription, 5))
            await commits(cluster, topic, {0: 10})
        finally:
            cluster.up(2)


async def test_records_deleted_before_they_were_read_are_named(cluster: KafkaCluster, topic: KafkaTopic) -> None:
    await send(topic, 20)
    async with topic.open("w1") as subscription:
        await subscription.ack(await take(subscription, 5))
    cluster.trim(topic.topic, 0, 12)
    with capture_logs() as logs:
        async with topic.open("w1") as subscription:
            assert (await subscription.lag()).waiting == 8
            records = await take(subscription, 8)
            await subscription.ack(records)
    assert open_record_store(records[0]) == "0-12"
    [line] = [line for line in logs if line["log_level"] == "error"]
    assert (line["event"], line["lost"]) == ("records lost", 7)
    await commits(cluster, topic, {0: 20})


async def test_a_topic_that_was_created_again_is_read_from_its_beginning(
    cluster: KafkaCluster, topic: KafkaTopic
) -> None:
    async def all_of_it() -> list[str | None]:
        await send(topic, 3)
        async with topic.open("w1") as subscription:
            records = await take(subscription, 3)
            await subscription.ack(records)
        return [record.id for record in records]

    before = await all_of_it()
    cluster.delete(topic.topic)
    cluster.create(topic.topic, 1)
    await asyncio.sleep(0.01)  # its records are later ones
    assert not set(before) & set(await all_of_it())


async def test_a_partition_that_is_won_while_others_are_paused_leaves_none_behind(cluster: KafkaCluster) -> None:
    topic = make(cluster, partitions=2)
    # Some must be left: the first takes one at a time until the second has joined.
    await send(topic, 400, keyed=True)
    async with topic.open("w1") as first, asyncio.timeout(30):
        async with topic.open("w2") as second:
            owned: Any = first._offsets  # type: ignore[attr-defined]
            while len(owned) != 1:
                await asyncio.gather(first.fetch(1, 0.1), second.fetch(1, 0.1))
            await asyncio.sleep(1.2)  # without a fetch their partitions are paused
        await eventually(lambda: len(owned) == 2)
        taken: set[int] = set()
        while taken != {0, 1}:
            taken |= _partitions(await first.fetch(100, 0.1))


async def test_a_released_record_that_is_deleted_blocks_nothing(cluster: KafkaCluster, topic: KafkaTopic) -> None:
    await send(topic, 10)
    async with topic.open("w1") as subscription:
        records = await take(subscription, 6)
        cluster.trim(topic.topic, 0, 8)
        await subscription.release(records)
        await subscription.ack(await take(subscription, 2))
        await commits(cluster, topic, {0: 10})


async def test_a_group_may_start_now(cluster: KafkaCluster) -> None:
    topic = make(cluster, partitions=1, start="now")
    await send(topic, 5)
    async with topic.open("w1") as subscription:
        async with asyncio.timeout(30):
            while committed(cluster, topic) != {0: 5}:
                assert await subscription.fetch(5, 0.2) == []
    await send(topic, 1)  # without a consumer
    async with topic.open("w1") as subscription:
        assert [open_record_store(record) for record in await take(subscription, 1)] == ["0-5"]


async def test_a_topic_that_is_not_there_is_reported(cluster: KafkaCluster) -> None:
    missing = kafka.topic("missing", group="shop", servers=cluster.servers)
    with pytest.raises(BrokerUnavailable, match=r"kafka:missing/shop"):
        async with missing.open("w1"):
            pass


async def test_a_cancelled_fetch_loses_nothing(topic: KafkaTopic) -> None:
    async with topic.open("w1") as subscription:
        waiting = asyncio.create_task(subscription.fetch(5, 30))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await send(topic, 3)
        assert len(await take(subscription, 3)) == 3


async def test_a_record_that_is_too_large_is_rejected_and_the_others_are_sent(topic: KafkaTopic) -> None:
    batch = [outgoing(0), outgoing(1, body=b"x" * 1_100_000), outgoing(2)]
    async with topic.open() as sender:
        refused = await sender.send(batch)
    assert refused[0] is None
    assert "too large" in (refused[1] or "")
    assert refused[2] is None
    async with topic.open("w1") as subscription:
        assert [record.body for record in await take(subscription, 2)] == [b"0", b"2"]


async def test_what_is_not_confirmed_raises_and_is_sent_again(cluster: KafkaCluster) -> None:
    topic = make(cluster, partitions=1, timeout=5.0)  # a new producer may need more than a second
    async with topic.open() as sender:
        assert await sender.send([outgoing(0)]) == [None]
        cluster.down()
        try:
            with pytest.raises(BrokerUnavailable, match="no confirmation within 5 s"):
                await sender.send([outgoing(1)])
        finally:
            cluster.up()
    async with replace(topic, timeout=10.0).open() as sender:  # the nodes need a moment to start again
        assert await sender.send([outgoing(1)]) == [None]
    async with topic.open("w1") as subscription:
        assert [record.body for record in await take(subscription, 2)] == [b"0", b"1"]


def test_settings_that_would_break_a_promise_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit"):
        kafka.topic("payments", options={"enable.auto.commit": True})
    with pytest.raises(ConfigurationError, match="start is 'latest'"):
        kafka.topic("payments", start="latest")


def test_missing_settings_are_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = kafka.topic("payments", group="shop", servers="h:1", options={"sasl.password": "hunter2"})
    assert "hunter2" not in f"{secret!r} {secret.name}"
    assert secret.name == "kafka:payments/shop"
    with pytest.raises(ConfigurationError, match="no group"):
        kafka.topic("payments", servers="h:1").open("w1")
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[kafka\]'"):
        secret.open()


async def test_the_address_comes_from_the_environment(
    cluster: KafkaCluster, topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_KAFKA", raising=False)
    with pytest.raises(ConfigurationError, match="HOLDFAST_KAFKA"):
        async with kafka.topic(topic.topic).open():
            pass
    monkeypatch.setenv("HOLDFAST_KAFKA", cluster.servers)
    assert await kafka.topic(topic.topic, timeout=1).durability_warnings() == []  # this cluster reports only its copies
    with pytest.raises(ConfigurationError, match=r"no\.such"):
        async with kafka.topic(topic.topic, options={"no.such": 1}).open():
            pass


async def test_the_how_to_runs_as_printed(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_KAFKA", cluster.servers)
    monkeypatch.chdir(tmp_path)
    for name in ("payments", "orders"):
        cluster.create(name, 1)
    sent = await run_example("brokers-kafka.md", kafka.topic("payments"), kafka.topic("orders", group="audit"), capsys)
    event = cloudevents.decode(sent)
    assert event is not None
    assert (event.type, event.data) == ("order.placed", {"order_id": 8})
    assert cluster.committed("payments", "till") == {0: 1}


@pytest.mark.parametrize(
    ("copies", "settings", "said"),
    [
        (3, {}, []),
        (3, {"min.insync.replicas": "2", "retention.ms": "604800000", "cleanup.policy": "delete"}, []),
        (1, {"min.insync.replicas": "1"}, ["replication factor of 3"]),
        (3, {"min.insync.replicas": "1"}, ["min.insync.replicas=2"]),
        (3, {"unclean.leader.election.enable": "true"}, ["set it to false"]),
        (3, {"cleanup.policy": "compact,delete"}, ["cleanup.policy=delete"]),
        (3, {"retention.ms": "3600000"}, ["1.0 hours"]),
        (3, {"retention.ms": "-1"}, []),
    ],
)
def test_settings_that_lose_records_are_named(copies: int, settings: dict[str, str], said: list[str]) -> None:
    found = check_settings("kafka:payments", copies, settings)
    assert len(found) == len(said)
    for doubt, words in zip(found, said, strict=True):
        assert words in doubt
