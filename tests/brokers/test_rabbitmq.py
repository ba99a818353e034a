"""RabbitMQ, a real node of it: quorum queues, prefetch, confirms; depths read by passive declaration and rabbitmqctl."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiormq
import pytest

from holdfast.brokers import cloudevents, rabbitmq
from holdfast.brokers.protocol import Lag, OutgoingRecord, Record, Source, Subscription, Target
from holdfast.brokers.rabbitmq import RabbitQueue
from holdfast.brokers.rabbitmq.diagnostics import check_settings
from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from tests.brokers.contract import each_step, ingested_once, survives
from tests.brokers.doc_examples import run_example
from tests.brokers.rabbitmq_broker import RabbitBroker
from tests.engine.programs.place import Place
from tests.servers.rabbitmq import RabbitMQ
from tests.support.worker import eventually

pytestmark = pytest.mark.long

_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitMQ]:
    with RabbitMQ() as server:
        yield server


@pytest.fixture
def queue(server: RabbitMQ) -> RabbitQueue:
    return rabbitmq.queue(f"payments-{next(_numbers)}", url=server.url)


@asynccontextmanager
async def bare(server: RabbitMQ) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    connection = await aiormq.connect(server.url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


def outgoing(number: int, *, key: str | None = None, body: bytes | None = None) -> OutgoingRecord:
    headers = {"content-type": "application/json", "cloudEvents:id": f"é-{number}"}
    content = b"%d" % number if body is None else body
    return OutgoingRecord(id=f"m{number}", type="payment.settled", key=key, body=content, headers=headers)


async def send(target: Target, numbers: Sequence[int]) -> None:
    async with target.open() as sender:
        assert await sender.send([outgoing(n) for n in numbers]) == [None] * len(numbers)


async def take(subscription: Subscription, amount: int) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(30):
        while len(records) < amount:
            records += await subscription.fetch(amount - len(records), 0.5)
    return records


async def test_what_was_sent_arrives_whole_in_order_and_once_acknowledged_is_gone(
    server: RabbitMQ, queue: RabbitQueue
) -> None:
    source: Source = queue
    target: Target = queue
    async with target.open() as sender:
        assert await sender.send([outgoing(n, key="k") for n in range(300)]) == [None] * 300
    async with source.open("w1") as subscription:
        records = await take(subscription, 200)
        assert await subscription.fetch(100, 0.2) == [], "no more than the prefetch is handed over"
        assert await subscription.lag() == Lag(waiting=100, unacknowledged=200)
        await subscription.ack(records)
        records += await take(subscription, 100)
        await subscription.ack(records[200:])
        assert [record.body for record in records] == [b"%d" % n for n in range(300)]
        first = records[0]
        assert (first.stream, first.id, first.key, first.delivery_count) == (queue.queue, "m0", "k", 1)
        assert first.headers["content-type"] == "application/json"
        assert first.headers["cloudEvents:id"] == "é-0"
    # The tool reads numbers that a quorum queue notes down now and then.
    await eventually(lambda: server.queues()[queue.queue] == (0, 0), "something is left in the queue")


async def test_released_records_are_redelivered_and_receipts_of_a_lost_channel_settle_nothing(
    queue: RabbitQueue,
) -> None:
    await send(queue, range(4))
    async with queue.open("w1") as subscription:
        records = await take(subscription, 4)
        await subscription.ack([records[0], records[0]])  # sent twice, it would end the channel
        await subscription.release([records[1]])
        [again] = await take(subscription, 1)
        assert (again.id, again.delivery_count) == ("m1", 2)
    async with queue.open("w2") as subscription:
        left = await take(subscription, 3)
        assert {record.id for record in left} == {"m1", "m2", "m3"}
        await subscription.ack(records)  # their tags are others' now
        assert (await subscription.lag()).unacknowledged == 3
    async with queue.open("w3") as subscription:
        assert len(await take(subscription, 3)) == 3


async def test_acknowledging_the_first_and_the_last_leaves_those_between(queue: RabbitQueue) -> None:
    await send(queue, range(6))
    async with queue.open("w1") as subscription:
        records = await take(subscription, 6)
        await subscription.ack([records[4], records[1], records[0]])
        await subscription.ack([records[2]])
    async with queue.open("w1") as subscription:
        assert {record.id for record in await take(subscription, 2)} == {"m3", "m5"}
        assert (await subscription.lag()).waiting == 0


async def test_a_released_record_is_not_acknowledged_with_a_later_one(
    queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing may wait for room: a frame that says "all up to here" must not overtake the others."""
    await send(queue, range(3))
    wire: list[tuple[str, int]] = []
    async with queue.open("w1") as subscription:
        first, second, third = await take(subscription, 3)

        def slow(name: str, real: Any) -> Any:
            async def write(tag: int, **how: Any) -> None:
                await asyncio.sleep(0.01)
                wire.append((name, tag))
                await real(tag, **how)

            return write

        channel = subscription._open  # type: ignore[attr-defined]
        for name in ("basic_ack", "basic_nack"):
            monkeypatch.setattr(channel, name, slow(name, getattr(channel, name)))
        await asyncio.gather(subscription.release([first, second]), subscription.ack([third]))
    assert [name for name, _ in wire] == ["basic_nack", "basic_nack", "basic_ack"]
    async with queue.open("w2") as subscription:
        assert {record.id for record in await take(subscription, 2)} == {"m0", "m1"}
        assert (await subscription.lag()).waiting == 0


async def test_a_deleted_queue_is_reported_and_created_again(server: RabbitMQ, queue: RabbitQueue) -> None:
    async with queue.open("w1") as subscription:
        async with bare(server) as channel:
            await channel.queue_delete(queue.queue)
        with pytest.raises(BrokerUnavailable, match="was deleted"):
            await take(subscription, 1)
    await send(queue, [1])
    async with queue.open("w1") as subscription:
        assert len(await take(subscription, 1)) == 1
    assert await queue.durability_warnings() == []


@pytest.mark.soak
async def test_a_handler_longer_than_the_servers_patience_gets_its_record_again() -> None:
    with RabbitMQ(ack_timeout_seconds=3) as impatient:
        queue = rabbitmq.queue("payments", url=impatient.url)
        await send(queue, range(2))
        async with queue.open("w1") as subscription:
            records = await take(subscription, 2)
            with pytest.raises(BrokerUnavailable, match="timeout"):
                await take(subscription, 1)
            with pytest.raises(BrokerUnavailable):
                await subscription.ack(records)  # the server took them back
        async with queue.open("w1") as subscription:
            again = await take(subscription, 2)
            assert {record.id for record in again} == {"m0", "m1"}
            assert again[0].delivery_count == 2


async def test_an_unroutable_message_is_not_confirmed(server: RabbitMQ, queue: RabbitQueue) -> None:
    async with bare(server) as channel:
        await channel.exchange_declare("events", exchange_type="topic", durable=True)
    events = rabbitmq.exchange("events", url=server.url)
    async with events.open() as sender:
        with pytest.raises(BrokerUnavailable, match=r"message m1 \(312 NO_ROUTE\)"):
            await sender.send([outgoing(1)])
    async with queue.open("w1") as subscription:
        async with bare(server) as channel:
            await channel.queue_bind(queue.queue, "events", "payment.*")
        await send(events, [1])
        assert [record.id for record in await take(subscription, 1)] == ["m1"]


async def test_an_exchange_that_is_not_there_is_reported(server: RabbitMQ) -> None:
    async with rabbitmq.exchange("missing", url=server.url).open() as sender:
        with pytest.raises(BrokerUnavailable, match="no exchange 'missing'"):
            await sender.send([outgoing(1)])


async def test_a_message_that_is_too_large_is_rejected_and_the_others_are_sent(queue: RabbitQueue) -> None:
    async with queue.open() as sender:
        refused = await sender.send([outgoing(0), outgoing(1, body=b"x" * 1_100_000), outgoing(2)])
        assert refused[0] is None
        assert refused[1] == "1100000 bytes, over the server's max_message_size of 1000000"
        assert refused[2] is None
    async with queue.open("w1") as subscription:
        arrived = {record.id for record in await take(subscription, 2)}
        if "m2" not in arrived:  # the first was not confirmed, and sent again
            arrived |= {record.id for record in await take(subscription, 1)}
        assert arrived == {"m0", "m2"}


@pytest.mark.soak
async def test_a_stalled_server_is_reported_and_work_continues_when_it_is_back(server: RabbitMQ) -> None:
    queue = rabbitmq.queue(f"payments-{next(_numbers)}", url=f"{server.url}?heartbeat=1", timeout="1s")
    await send(queue, range(5))
    async with queue.open("w1") as subscription, queue.open() as sender:
        records = await take(subscription, 5)
        server.pause()
        try:
            with pytest.raises(BrokerUnavailable, match="no answer within 1 s"):
                await sender.send([outgoing(5)])
            with pytest.raises(BrokerUnavailable):
                async with queue.open("w2"):
                    pass
            with pytest.raises(BrokerUnavailable):
                await take(subscription, 1)
        finally:
            server.resume()
        with pytest.raises(BrokerUnavailable):
            await subscription.ack(records)
    async with queue.open("w1") as subscription:
        again = await take(subscription, 5)
        assert {record.id for record in again} >= {f"m{n}" for n in range(5)}


async def test_settings_that_lose_records_are_found(server: RabbitMQ) -> None:
    assert await rabbitmq.queue("not-there", url=server.url).durability_warnings() == []
    async with bare(server) as channel:
        loose: dict[str, Any] = {"x-max-length": 10, "x-message-ttl": 60_000}
        await channel.queue_declare("loose", durable=False, arguments=loose)
        await channel.queue_declare("tight", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    found = await rabbitmq.queue("loose", url=server.url).durability_warnings()
    assert len(found) == 4
    said = "\n".join(found)
    for words in ("not durable", "not a quorum queue", "after 60000 ms", "x-max-length; set x-overflow"):
        assert words in said
    [limit] = await rabbitmq.queue("tight", url=server.url).durability_warnings()
    assert "after 3 deliveries" in limit


@pytest.mark.parametrize(
    ("arguments", "version", "said"),
    [
        ({"x-queue-type": "quorum"}, (3, 13), []),
        ({"x-queue-type": "quorum"}, (4, 0), ["after 20 deliveries"]),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, (4, 0), []),
        ({"x-queue-type": "quorum", "x-dead-letter-exchange": "dead"}, (4, 0), []),
        ({"x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "reject-publish"}, (3, 13), []),
        ({"x-queue-type": "quorum", "x-expires": 5}, (3, 13), ["after 5 ms without a consumer"]),
    ],
)
def test_a_quorum_queue_that_can_drop_records_has_a_warning(
    arguments: dict[str, Any], version: tuple[int, ...], said: list[str]
) -> None:
    found = check_settings("rabbitmq:q", {"durable": True, "auto_delete": False, "arguments": arguments}, version)
    assert len(found) == len(said)
    for warning, words in zip(found, said, strict=True):
        assert words in warning


async def test_errors_name_the_problem_without_passwords(server: RabbitMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_RABBITMQ", raising=False)
    with pytest.raises(ConfigurationError, match="HOLDFAST_RABBITMQ"):
        await send(rabbitmq.queue("q"), [])
    with pytest.raises(ConfigurationError, match="is invalid") as wrong:
        await send(rabbitmq.queue("q", url="http://guest:hunter2@here"), [])
    assert "hunter2" not in str(wrong.value)
    with pytest.raises(ConfigurationError, match="is invalid") as unreadable:
        await send(rabbitmq.queue("q", url="amqp://guest:hunter2@[here:5672/"), [])
    assert "hunter2" not in f"{unreadable.value} {unreadable.value.__cause__} {unreadable.value.__context__}"
    refused = rabbitmq.queue("q", url=server.url.replace("guest@", "hunter2@"))
    assert "hunter2" not in f"{refused!r} {refused.name}"
    with pytest.raises(BrokerUnavailable) as denied:
        await send(refused, [])
    assert "hunter2" not in str(denied.value)
    with pytest.raises(BrokerUnavailable):
        await send(rabbitmq.queue("q", url="amqp://guest:guest@127.0.0.1:1/"), [])
    with pytest.raises(ConfigurationError, match="1 to 65535"):
        rabbitmq.queue("q", prefetch=0)
    monkeypatch.setitem(__import__("sys").modules, "aiormq", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[rabbitmq\]'"):
        await send(refused, [])


async def test_the_how_to_runs_as_printed(
    server: RabbitMQ, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_RABBITMQ", server.url)
    monkeypatch.chdir(tmp_path)
    audit = rabbitmq.queue("audit")
    async with audit.open("to have it made"), bare(server) as channel:
        await channel.exchange_declare("events", exchange_type="topic", durable=True)
        await channel.queue_bind("audit", "events", "order.*")
    sent = await run_example("brokers-rabbitmq.md", rabbitmq.queue("payments"), audit, capsys)
    event = cloudevents.decode(sent)
    assert event is not None
    assert (event.type, event.data, event.id) == ("order.placed", {"order_id": 8}, sent.id)


def test_nothing_is_lost_or_doubled_while_workers_and_rabbitmq_are_killed(
    server: RabbitMQ, postgres_place: Place
) -> None:
    survives(postgres_place, RabbitBroker(server), "payments", records=500, workers=2)


@pytest.mark.soak
def test_ten_thousand_survive_on_postgres(server: RabbitMQ, postgres_place: Place) -> None:
    survives(
        postgres_place, RabbitBroker(server), "many", records=10_000, workers=3, kills=30, restarts=4, patience=300
    )


@pytest.mark.soak
def test_ten_thousand_survive_on_sqlite(server: RabbitMQ, sqlite_place: Place) -> None:
    survives(
        sqlite_place, RabbitBroker(server), "many-more", records=10_000, workers=1, kills=30, restarts=4, patience=300
    )


@pytest.mark.soak
def test_a_worker_killed_at_any_step_loses_and_doubles_nothing(server: RabbitMQ, sqlite_place: Place) -> None:
    each_step(sqlite_place, RabbitBroker(server), "steps")


def test_an_ingest_killed_after_its_commit_stores_each_event_once(server: RabbitMQ, sqlite_place: Place) -> None:
    ingested_once(sqlite_place, RabbitBroker(server), "ingest", ["in.unacknowledged"])
