"""NATS JetStream against a real server: deliveries, acknowledgements, releases, sends and warnings."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import nats as client
import pytest
from nats.js import JetStreamContext
from nats.js.errors import ServerError
from structlog.testing import capture_logs

from holdfast import Holdfast, WorkerOptions
from holdfast.brokers import nats
from holdfast.brokers.nats.connection import NatsConnection
from holdfast.brokers.nats.stream import NatsStream
from holdfast.brokers.nats.subscription import NatsSubscription
from holdfast.brokers.protocol import Lag, OutgoingRecord, Record, Source, Target
from holdfast.core.errors import BrokerUnavailable, ConfigurationError, InvalidName
from tests.servers.nats import NatsServer

WAIT = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def jetstream(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """JetStream without any stream."""

    async def quiet(error: Exception) -> None:
        pass

    connection = await client.connect(server.url, error_cb=quiet, reconnect_time_wait=0.1)
    jetstream = connection.jetstream()
    for stream in await jetstream.streams_info():
        await jetstream.delete_stream(stream.config.name or "")
    yield jetstream
    await connection.close()


def pay(server: NatsServer, **given: Any) -> NatsStream:
    return nats.stream("PAY", **{"group": "shop", "servers": server.url, "ack_timeout": 30, **given})


async def make(jetstream: JetStreamContext, name: str, subject: str, **settings: Any) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            try:
                await jetstream.add_stream(name=name, subjects=[subject], **settings)
                return
            except ServerError:
                # The files of one that was deleted under this name are still going.
                await asyncio.sleep(0.01)


async def filled(jetstream: JetStreamContext, count: int, **settings: Any) -> None:
    await make(jetstream, "PAY", "pay.>", **settings)
    for number in range(count):
        await jetstream.publish("pay.in", str(number).encode())


def outgoing(id: str, *, key: str | None = None, body: bytes = b"{}", **headers: str) -> OutgoingRecord:
    return OutgoingRecord(
        id=id, type="order.placed", key=key, body=body, headers={"content-type": "text/plain", **headers}
    )


async def until_waiting(jetstream: JetStreamContext) -> None:
    """Returns when a fetch waits at the server."""
    async with asyncio.timeout(WAIT):
        while not (await jetstream.consumer_info("PAY", "shop")).num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def cancelled_fetch(subscription: NatsSubscription, jetstream: JetStreamContext) -> None:
    """A cancelled fetch, and a record that still arrives for it."""
    task = asyncio.create_task(subscription.fetch(10, 30))
    await until_waiting(jetstream)
    task.cancel()
    await asyncio.wait([task])
    await jetstream.publish("pay.in", b"late")
    async with asyncio.timeout(WAIT):
        while subscription._connection.arrived.empty():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def group_lag(jetstream: JetStreamContext) -> tuple[int | None, int | None]:
    """The records of the group that wait, and those that are not acknowledged."""
    info = await jetstream.consumer_info("PAY", "shop")
    return info.num_pending, info.num_ack_pending


async def until_fetched(source: NatsStream, consumer: str = "a") -> Sequence[Record]:
    """Opens and fetches as a worker does: again and again while the broker is away."""
    async with asyncio.timeout(WAIT):
        while True:
            try:
                async with source.open(consumer) as subscription:
                    while not (records := await subscription.fetch(100, 1)):
                        pass
                    await subscription.ack(records)
                    return records
            except BrokerUnavailable:
                await asyncio.sleep(0.05)


async def test_a_batch_is_delivered_in_order_and_removed_after_its_acknowledgement(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 5)
    await jetstream.publish("pay.in", b"", headers={"colour": "grün", "Status": "503"})
    source: Source = pay(server)
    async with source.open("a") as subscription:
        assert await subscription.lag() == Lag(waiting=6, unacknowledged=0)
        first = await subscription.fetch(4, 5)
        assert [record.body for record in first] == [b"0", b"1", b"2", b"3"]
        assert await subscription.lag() == Lag(waiting=2, unacknowledged=4)
        await subscription.ack(first)
        rest = await subscription.fetch(100, 5)
        assert [record.body for record in rest] == [b"4", b""]
        assert dict(rest[1].headers) == {"colour": "grün", "Status": "503", "nats-subject": "pay.in"}
        assert (rest[1].stream, rest[1].delivery_count) == ("PAY", 1)
        assert rest[1].at is not None
        await subscription.ack(rest)
        await subscription.ack(first)  # nothing to say against acknowledging twice
        assert await subscription.lag() == Lag(waiting=0, unacknowledged=0)
        assert await subscription.fetch(10, 0.2) == []
    info = await jetstream.consumer_info("PAY", "shop")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_records_of_a_dead_consumer_are_delivered_to_another_with_the_same_id(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 2)
    source = pay(server, ack_timeout="500ms")
    async with source.open("a") as subscription:
        dead = await subscription.fetch(10, 5)
    again = await until_fetched(source, "b")
    assert [record.id for record in again] == [record.id for record in dead]
    assert [record.delivery_count for record in again] == [2, 2]


async def test_extended_records_stay_and_released_records_are_redelivered_at_once(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 2)
    source = pay(server, ack_timeout=3)
    async with source.open("a") as ours, source.open("b") as theirs:
        kept, given = await ours.fetch(2, 5)
        expired: Sequence[Record] = []
        while not expired:
            await ours.extend([kept])
            expired = await theirs.fetch(10, 0.5)
        assert [record.id for record in expired] == [given.id]
        await theirs.release(expired)
        (back,) = await ours.fetch(10, 5)
        assert (back.id, back.delivery_count) == (given.id, 3)
        await ours.ack([kept, back])
        assert await ours.lag() == Lag(waiting=0, unacknowledged=0)


async def test_records_for_a_cancelled_fetch_are_returned_by_the_next_fetch(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 0)
    async with pay(server).open("a") as subscription:
        assert isinstance(subscription, NatsSubscription)
        await cancelled_fetch(subscription, jetstream)
        before = subscription._connection.new_reply_subject()
        assert [record.body for record in await subscription.fetch(1, 5)] == [b"late"]
        assert before.endswith(".2")
        assert subscription._connection.new_reply_subject().endswith(".3"), "it requested more than the limit"


async def test_records_that_arrive_too_late_are_released(server: NatsServer, jetstream: JetStreamContext) -> None:
    await filled(jetstream, 0)
    async with pay(server).open("a") as subscription:
        assert isinstance(subscription, NatsSubscription)
        await cancelled_fetch(subscription, jetstream)
    async with pay(server).open("b") as subscription:
        (record,) = await subscription.fetch(10, 5)
        assert record.delivery_count == 2


async def test_a_full_window_waits_instead_of_asking_without_pause(
    server: NatsServer, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.brokers.nats.subscription._MAX_ACK_PENDING", 2)
    await filled(jetstream, 5)
    async with pay(server).open("a") as subscription:
        held = await subscription.fetch(10, 5)
        assert len(held) == 2
        rounds, end = 0, asyncio.get_running_loop().time() + 0.5
        while asyncio.get_running_loop().time() < end:
            assert await subscription.fetch(10, 0.2) == []
            rounds += 1
        assert rounds < 10
        await subscription.ack(held)
        assert len(await subscription.fetch(10, 5)) == 2


async def test_a_deleted_consumer_is_made_again_where_it_was(server: NatsServer, jetstream: JetStreamContext) -> None:
    await filled(jetstream, 4)
    source = pay(server)
    async with source.open("a") as subscription:
        await subscription.ack(await subscription.fetch(3, 5))
        assert await subscription.lag() == Lag(waiting=1, unacknowledged=0)
        last = await subscription.fetch(3, 20)
        assert len(last) == 1
        waiting = asyncio.create_task(subscription.fetch(3, 20))
        await until_waiting(jetstream)
        await jetstream.delete_consumer("PAY", "shop")
        with pytest.raises(BrokerUnavailable, match="Consumer Deleted"):
            await waiting
        with pytest.raises(BrokerUnavailable, match="consumer shop of stream PAY"):
            await subscription.fetch(3, 1)
        with pytest.raises(BrokerUnavailable):  # the consumer is gone, and the record is redelivered
            await subscription.ack(last)
    with capture_logs() as logs:
        # The last was not acknowledged, as far as anybody knows.
        assert [record.body for record in await until_fetched(source)] == [b"3"]
    assert [entry["first_sequence"] for entry in logs if entry["log_level"] == "warning"] == [4]


@pytest.mark.parametrize("start", ["beginning", "now"])
async def test_a_stream_that_was_deleted_and_made_again_is_read_from_its_start_under_other_ids(
    server: NatsServer, jetstream: JetStreamContext, start: str
) -> None:
    await filled(jetstream, 0)
    source = pay(server, start=start)
    async with source.open("a") as subscription:
        for body in (b"0", b"1"):
            await jetstream.publish("pay.in", body)
        before = await subscription.fetch(2, 5)
    await jetstream.delete_stream("PAY")
    with pytest.raises(BrokerUnavailable, match="there is no stream PAY"):
        async with source.open("a"):
            pass
    await filled(jetstream, 2)
    after = await until_fetched(source)
    assert [record.body for record in after] == [b"0", b"1"]
    assert not {record.id for record in before} & {record.id for record in after}


async def test_a_server_that_does_not_answer_about_its_state_still_delivers_records(
    jetstream: JetStreamContext, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(jetstream, 3, max_msgs=5)
    async with pay(server).open("w") as subscription:
        assert isinstance(subscription, NatsSubscription)
        assert len(await subscription.fetch(3, WAIT)) == 3
        for number in range(9):
            await jetstream.publish("pay.in", str(number).encode())

        async def silent(*_: object) -> None:
            raise client.errors.TimeoutError

        monkeypatch.setattr(subscription._connection.jetstream, "stream_info", silent)
        monkeypatch.setattr(subscription._connection.jetstream, "consumer_info", silent)
        subscription._floor_at = 0.0
        with capture_logs() as logs:
            assert len(await subscription.fetch(9, WAIT)) == 5
    assert [entry["lost"] for entry in logs if entry["log_level"] == "error"] == [4]


async def test_records_that_limits_dropped_before_they_were_read_are_reported(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 2, max_msgs=3)
    source = pay(server)
    async with source.open("a") as subscription:
        await subscription.ack(await subscription.fetch(10, 5))
        for number in range(10):
            await jetstream.publish("pay.in", str(number).encode())
        with capture_logs() as logs:
            assert len(await subscription.fetch(10, 5)) == 3
        assert [entry["lost"] for entry in logs if entry["log_level"] == "error"] == [7]
    for number in range(5):
        await jetstream.publish("pay.in", str(number).encode())
    with capture_logs() as logs:
        async with source.open("a") as subscription:
            await subscription.fetch(10, 5)
    assert [entry["lost"] for entry in logs if entry["log_level"] == "error"] == [2]


async def test_a_killed_server_is_noticed_and_hands_over_the_rest_once_it_is_back(
    jetstream: JetStreamContext, server: NatsServer
) -> None:
    await filled(jetstream, 4)
    source = pay(server, ack_timeout=1)
    async with source.open("a") as subscription:
        done = await subscription.fetch(2, 5)
        await subscription.ack(done)
        held = await subscription.fetch(1, 5)
        server.kill()
        with pytest.raises(BrokerUnavailable):
            await subscription.ack(held)
        with pytest.raises(BrokerUnavailable):
            await subscription.fetch(10, 5)
    with pytest.raises(BrokerUnavailable):
        async with source.open("a"):
            pass
    server.start()
    # The place that a killed server had noted for a consumer may be older than what it confirmed: some come again.
    seen: set[bytes] = set()
    while not {b"2", b"3"} <= seen:
        seen |= {record.body for record in await until_fetched(source)}


async def test_a_server_that_stalls_is_noticed(
    server: NatsServer, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(jetstream, 1)
    async with pay(server).open("a") as subscription, nats.subject("pay.out", servers=server.url).open() as sender:
        records = await subscription.fetch(1, 5)
        for module in ("connection", "subscription"):
            monkeypatch.setattr(f"holdfast.brokers.nats.{module}.ANSWER_SECONDS", 0.3)
        monkeypatch.setattr("holdfast.brokers.nats.connection._CLOSE_SECONDS", 0.1)
        monkeypatch.setattr("holdfast.brokers.nats.subscription._HEARTBEAT_SECONDS", 0.2)
        server.pause()
        try:
            with pytest.raises(BrokerUnavailable):
                await subscription.ack(records)
            with pytest.raises(BrokerUnavailable, match="does not respond"):
                await subscription.fetch(1, 30)
            with pytest.raises(BrokerUnavailable):
                await sender.send([outgoing("1")])
            with pytest.raises(BrokerUnavailable):
                await pay(server).durability_warnings()
        finally:
            server.resume()


@pytest.mark.soak
async def test_a_handler_that_runs_longer_than_the_ack_timeout_keeps_its_record(
    server: NatsServer, jetstream: JetStreamContext, tmp_path: Path
) -> None:
    await filled(jetstream, 1)
    app, source, stop = Holdfast(f"sqlite:///{tmp_path / 'a.db'}"), pay(server, ack_timeout=3), asyncio.Event()
    began = asyncio.Event()
    others: list[Record] = []

    @app.consumer("payment.settled", name="till", source=source, direct=True)
    async def settle(payment: int) -> None:
        began.set()
        async with source.open("other") as other:
            for _ in range(10):
                others.extend(await other.fetch(10, 1))
        stop.set()

    async with asyncio.timeout(2 * WAIT):
        await app.work(WorkerOptions(), stop=stop)
    await app.close()
    assert began.is_set()
    assert others == []
    assert await group_lag(jetstream) == (0, 0)


async def test_an_older_consumer_of_the_group_is_brought_to_settings_that_lose_nothing(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 3)
    await jetstream.pull_subscribe("pay.>", durable="shop", config=client.js.api.ConsumerConfig(max_deliver=2))
    assert len(await until_fetched(pay(server))) == 3
    found = (await jetstream.consumer_info("PAY", "shop")).config
    assert (found.max_deliver, found.ack_wait, found.filter_subject) == (-1, 30, None)
    await jetstream.add_consumer("PAY", durable_name="all", ack_policy=client.js.api.AckPolicy.ALL)
    with pytest.raises(ConfigurationError, match="acknowledges each"):
        async with pay(server, group="all").open("a"):
            pass


async def test_a_subject_finds_its_stream_and_takes_only_its_own(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await filled(jetstream, 2)
    await jetstream.publish("pay.out", b"mine")
    source = nats.subject("pay.out", group="shop", servers=server.url)
    assert source.name == "nats:pay.out/shop"
    (record,) = await until_fetched(source)
    assert (record.body, record.headers["nats-subject"]) == (b"mine", "pay.out")
    with pytest.raises(BrokerUnavailable, match="no stream that contains nowhere"):
        await nats.subject("nowhere", group="shop", servers=server.url).durability_warnings()


async def test_a_group_can_start_with_new_records(server: NatsServer, jetstream: JetStreamContext) -> None:
    await filled(jetstream, 3)
    source = pay(server, start="now")
    async with source.open("a") as subscription:
        await jetstream.publish("pay.in", b"next")
        assert [record.body for record in await subscription.fetch(10, 5)] == [b"next"]
    assert await group_lag(jetstream) == (0, 1)


async def test_what_is_sent_is_stored_in_order_with_its_headers_and_repetitions_are_not(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await make(jetstream, "ORDERS", "orders.>")
    target: Target = nats.stream("ORDERS", subject="orders.{type}", servers=server.url)
    assert target.name == "nats:ORDERS"
    batch = [outgoing(str(number), key="k", body=str(number).encode()) for number in range(200)]
    async with target.open() as sender:
        assert await sender.send(batch) == [None] * 200
        assert await sender.send(batch) == [None] * 200
        assert await sender.send([]) == []
    info = await jetstream.stream_info("ORDERS")
    assert info.state.messages == 200
    stored = [await jetstream.get_msg("ORDERS", number) for number in (1, 200)]
    assert [(one.subject, one.data) for one in stored] == [
        ("orders.order.placed", b"0"),
        ("orders.order.placed", b"199"),
    ]
    assert (stored[0].headers or {})["content-type"] == "text/plain"


async def test_in_a_cluster_a_key_waits_for_the_confirmation_of_the_one_before(
    server: NatsServer, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the leader may change, a later one could be stored and the one before it not."""
    await make(jetstream, "ORDERS", "orders")
    waves: list[list[str]] = [[]]

    class Watched(NatsConnection):
        clustered = True

        async def request(self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
            waves[-1].append(body.decode())
            return await super().request(subject, body, headers)

        async def responses(self, requests: Any) -> Any:
            waves.append([])
            return await super().responses(requests)

    monkeypatch.setattr("holdfast.brokers.nats.connection.NatsConnection", Watched)
    batch = [outgoing(id, key=key, body=id.encode()) for id, key in [("1", "a"), ("2", "b"), ("3", "a"), ("4", None)]]
    async with nats.subject("orders", servers=server.url).open() as sender:
        assert await sender.send([*batch, outgoing("5", key=None, body=b"5")]) == [None] * 5
    assert waves[:-1] == [["1", "2", "4", "5"], ["3"]]


async def test_a_message_that_cannot_be_sent_is_refused_and_the_others_are_sent(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await make(jetstream, "ORDERS", "orders", max_msg_size=500_000)
    async with nats.subject("orders", servers=server.url).open() as sender:
        verdicts = await sender.send(
            [
                outgoing("1"),
                outgoing("2", body=b"x" * 600_000),
                # Allowed by its body alone; with such headers the server would end the connection.
                outgoing("3", body=b"x" * (1024 * 1024 - 100), long="y" * 100),
                OutgoingRecord(id="4", type="t", key=None, body=b"", headers={"not a name": "x"}),
                outgoing("5", lines="a\r\nb"),
                outgoing("6"),
            ]
        )
    assert [verdict is None for verdict in verdicts] == [True, False, False, False, False, True]
    assert "exceeds maximum" in str(verdicts[1])
    assert "over the server's limit of 1,048,576" in str(verdicts[2])
    assert (await jetstream.stream_info("ORDERS")).state.messages == 2


async def test_what_another_sender_said_to_the_server_is_not_said_again(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    await make(jetstream, "DEAD", "dead", allow_rollup_hdrs=True)
    async with nats.subject("dead", servers=server.url).open() as sender:
        assert await sender.send([outgoing("a")]) == [None]
        # A record's own headers, as they were kept with it.
        control: dict[str, Any] = {"Nats-Expected-Stream": "PAY", "Nats-Rollup": "all", "nats-subject": "pay.in"}
        assert await sender.send([outgoing("b", **control)]) == [None]
    assert (await jetstream.stream_info("DEAD")).state.messages == 2
    stored = await jetstream.get_msg("DEAD", 2)
    assert set(stored.headers or {}) == {"content-type", "Nats-Msg-Id", "nats-subject"}


async def test_nothing_counts_as_sent_without_a_stream_or_into_a_wrong_or_full_one(
    server: NatsServer, jetstream: JetStreamContext
) -> None:
    async with nats.subject("orders", servers=server.url).open() as sender:
        with pytest.raises(BrokerUnavailable, match="no stream contains subject orders"):
            await sender.send([outgoing("1")])
    await make(jetstream, "OTHER", "orders", max_msgs=1, discard="new")
    async with nats.stream("ORDERS", subject="orders", servers=server.url).open() as sender:
        with pytest.raises(BrokerUnavailable, match="expected stream"):
            await sender.send([outgoing("1")])
    async with nats.subject("orders", servers=server.url).open() as sender:
        with pytest.raises(BrokerUnavailable, match="maximum messages"):
            await sender.send([outgoing("1"), outgoing("2")])


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({}, None),
        ({"storage": "memory"}, "storage=file"),
        ({"max_age": 3600}, "after 1h"),
        ({"max_msgs": 10}, "at max_msgs; set discard=new"),
        ({"max_msgs": 10, "discard": "new"}, None),
        ({"retention": "interest"}, "retention=limits"),
        ({"no_ack": True}, "no_ack=false"),
    ],
)
async def test_settings_that_lose_records_have_a_warning(
    server: NatsServer, jetstream: JetStreamContext, settings: dict[str, Any], warning: str | None
) -> None:
    await make(jetstream, "PAY", "pay.>", **settings)
    found = await pay(server).durability_warnings()
    assert len(found) == (warning is not None)
    assert warning is None or warning in found[0]


async def test_without_its_client_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[nats\]'"):
        await nats.stream("PAY", servers="nats://127.0.0.1:1").durability_warnings()


def test_creating_an_endpoint_does_not_import_the_client() -> None:
    asked = "import sys; from holdfast.brokers import nats; nats.stream('PAY'); sys.exit('nats.aio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=60).returncode == 0


async def test_an_endpoint_shows_no_secret_and_names_missing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_NATS", raising=False)
    with pytest.raises(ConfigurationError, match="HOLDFAST_NATS"):
        await nats.stream("PAY", group="shop").durability_warnings()
    monkeypatch.setenv("HOLDFAST_NATS", "nats://me:hunter2@127.0.0.1:1, nats://me:hunter2@127.0.0.1:2")
    place = nats.stream("PAY", group="shop", options={"password": "hunter2"})
    with pytest.raises(BrokerUnavailable) as caught:
        await place.durability_warnings()
    assert "hunter2" not in f"{caught.value} {place!r} {place.name} {nats.stream('P', servers='nats://hunter2@h')!r}"
    with pytest.raises(InvalidName):
        nats.stream("a.b")
    with pytest.raises(InvalidName):
        nats.subject("a..b")
    with pytest.raises(ConfigurationError, match="beginning"):
        nats.stream("PAY", start="middle")
    with pytest.raises(ConfigurationError, match="no group"):
        async with nats.stream("PAY", servers="nats://127.0.0.1:1").open("a"):
            pass
    with pytest.raises(ConfigurationError, match="many subjects"):
        async with nats.subject("a.>", servers="nats://127.0.0.1:1").open():
            pass
