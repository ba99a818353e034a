"""Records become messages once, through the inbox: unreadable ones are kept, outages are waited out, nothing is lost."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast import Context, Holdfast, RetryPolicy, TerminalError, event
from holdfast.brokers import inbox, redis
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError
from holdfast.core.message import RAW_TYPE
from holdfast.core.telemetry.correlation import correlation
from holdfast.engine.telemetry.alert import DeadLetterAlert
from holdfast.runtime.brokers import dead_letter_forwarder
from holdfast.stores.messages.intake import intakes
from holdfast.stores.queries.query import Filter, messages
from tests.brokers.redis_stream import Stream, redis_server, stream
from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, eventually, logged, only, query, working

__all__ = ["redis_server", "stream"]

SQLITE = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)


@event("payment.settled")
@dataclass
class PaymentSettled:
    n: int


def collect(hf: Holdfast, stream: Stream, name: str = "settle", **options: Any) -> list[int]:
    """Declares a consumer that keeps what it gets."""
    got: list[int] = []

    @hf.consumer(PaymentSettled, name=name, source=options.pop("source", None) or stream.source(), **options)
    async def settle(payment: PaymentSettled) -> None:
        got.append(payment.n)

    return got


async def test_every_record_is_stored_with_its_delivery_run_and_acknowledged(hf: Holdfast, stream: Stream) -> None:
    got = collect(hf, stream)
    ids = [stream.put({"n": n}, request_id=f"r-{n}") for n in range(20)]
    await drain(hf)
    assert sorted(got) == list(range(20))
    assert stream.pending() == 0
    assert stream.left() == 0
    found = await hf.store.run(messages(type="payment.settled", limit=100))
    assert {one.key for one in found} == set(ids)
    assert {one.source for one in found} == {f"redis:{stream.name}"}
    assert {one.headers["request_id"] for one in found} == {f"r-{n}" for n in range(20)}


@SQLITE
async def test_a_cloud_event_delivered_twice_is_one_message(hf: Holdfast, stream: Stream, log: Log) -> None:
    seen: list[Any] = []

    @hf.consumer(PaymentSettled, source=stream.source())
    async def settle(ctx: Context, payment: PaymentSettled) -> None:
        seen.append((payment.n, ctx.key, ctx.headers["request_id"]))

    for _ in range(3):
        stream.put_event("e-1", {"n": 7}, requestid="r-7")
    stream.put_event("e-2", {"n": 8}, type="payment.refused")
    await drain(hf)
    assert seen == [(7, "/bank#e-1", "r-7")]
    assert stream.pending() == stream.left() == 0


@SQLITE
async def test_consumers_of_one_stream_share_its_messages(hf: Holdfast, stream: Stream) -> None:
    first, second = collect(hf, stream, "first"), collect(hf, stream, "second", source=stream.source("other"))
    stream.put({"n": 1})
    await drain(hf)
    assert first == second == [1]
    assert len(await hf.store.run(messages(type="payment.settled"))) == 1


async def test_an_unreadable_record_is_stored_raw_and_the_stream_continues(
    hf: Holdfast, stream: Stream, log: Log
) -> None:
    got = collect(hf, stream)
    bad = stream.put(b"\xff no json", request_id="r-1")
    stream.put(b'{"n": "\\u0000"}')
    stream.put(b"{", **{"content-type": "application/cloudevents+json"})
    stream.put({"n": 1})
    await drain(hf)
    assert got == [1]
    assert stream.pending() == 0
    dead = await hf.ops.deliveries(Filter(dead=True))
    assert [one.type for one in dead] == [RAW_TYPE] * 3
    detail = await hf.ops.delivery(dead[-1].delivery.id)
    assert detail.message is not None
    assert (detail.message.source, detail.message.key) == (f"redis:{stream.name}", f"raw:{bad}")
    assert '"/yBubyBqc29u"' in detail.message.payload
    assert detail.message.headers == {"request_id": "r-1"}
    delivery = detail.listed.delivery
    assert (delivery.attempts, delivery.status) == (1, Status.FAILED)
    assert delivery.completed_at is not None
    assert delivery.first_failed_at is not None
    assert delivery.error_type == "holdfast.UnreadableRecord"
    assert bad in (delivery.last_error or "")
    assert [run.outcome for run in detail.runs] == ["failed"]
    assert {line["dlq_id"] for line in logged(log, "dead letter")} == {str(one.delivery.id) for one in dead}


@SQLITE
async def test_a_payload_of_the_wrong_shape_dies_as_any_other(hf: Holdfast, stream: Stream) -> None:
    collect(hf, stream)
    stream.put({"m": 1})
    await drain(hf)
    assert (await only(hf)).error_type == "holdfast.InvalidPayload"
    assert stream.pending() == 0


async def test_replaying_a_raw_record_decodes_it_again_and_stores_its_message(
    make_app: MakeApp, stream: Stream
) -> None:
    old, new = make_app(max_payload=10), make_app()
    collect(old, stream)
    got = collect(new, stream)
    stream.put({"n": 100_000_000})
    await drain(old)
    (dead,) = await new.ops.deliveries(Filter(dead=True))
    await new.ops.replay([dead.delivery.id], actor="ada", reason="the limit is raised")
    await drain(old)
    (dead,) = await new.ops.deliveries(Filter(dead=True))
    await new.ops.replay([dead.delivery.id], actor="ada", reason="with the right worker")
    await drain(new)
    assert got == [100_000_000]
    assert [found.status for found in await all_of(new)] == [Status.DELIVERED] * 2
    assert await new.ops.deliveries(Filter(dead=True)) == []
    (replayed,) = await new.ops.deliveries(Filter(replayed=True))
    assert (replayed.type, len(replayed.delivery.failure_history)) == (RAW_TYPE, 2)
    # The record itself comes again: it is known by now.
    stream.client.xgroup_setid(stream.name, "shop", "0")
    await drain(new)
    assert got == [100_000_000]


@SQLITE
async def test_dead_letters_are_listed_as_waiting_replayed_or_discarded(hf: Holdfast, stream: Stream) -> None:
    collect(hf, stream)
    for _ in range(3):
        stream.put(b"{")
    await drain(hf)
    third, second, first = [one.delivery.id for one in await hf.ops.deliveries(Filter(dead=True))]
    await hf.ops.discard([first], actor="ada", reason="a test of theirs")
    await hf.ops.replay([second], actor="ada", reason="once more")
    await drain(hf)
    states = {
        "waiting": Filter(dead=True),
        "replayed": Filter(replayed=True),
        "discarded": Filter(statuses=(Status.FAILED,), discarded=True),
    }
    found = {name: [one.delivery.id for one in await hf.ops.deliveries(asked)] for name, asked in states.items()}
    assert found == {"waiting": [third, second], "replayed": [second], "discarded": [first]}


@SQLITE
async def test_a_reused_id_with_other_content_is_stored_raw(hf: Holdfast, stream: Stream) -> None:
    got = collect(hf, stream)
    for n in (1, 2, 2, 3):
        # A stream that is deleted and created again by a producer that sets its own ids.
        stream.client.delete(stream.name)
        stream.put({"n": n}, id="5-1")
        stream.put({"n": n * 10}, id=f"6-{n}")
        await drain(hf)
    assert sorted(got) == [1, 10, 20, 30]
    dead = await hf.ops.deliveries(Filter(dead=True))
    assert [one.type for one in dead] == [RAW_TYPE] * 2
    assert "other content" in (dead[0].delivery.last_error or "")


@SQLITE
async def test_a_record_that_lost_its_content_becomes_a_dead_letter(hf: Holdfast, stream: Stream, log: Log) -> None:
    got = collect(hf, stream, source=stream.source(ack_timeout="200ms"))
    lost = stream.put({"n": 1})
    stream.client.xgroup_create(stream.name, "shop", id="0")
    stream.client.xreadgroup("shop", "another", {stream.name: ">"})
    stream.client.xtrim(stream.name, maxlen=0)
    stream.put({"n": 2})
    await asyncio.sleep(0.25)
    async with working(hf):
        (dead,) = await eventually(lambda: hf.ops.deliveries(Filter(dead=True)))
        await eventually(lambda: got == [2])
        await eventually(lambda: stream.pending() == 0)
    assert lost in (dead.delivery.last_error or "")
    assert "trimmed" in (dead.delivery.last_error or "")
    assert [line["record"] for line in logged(log, "records lost")] == [lost]


@SQLITE
async def test_a_dead_letter_that_cannot_be_written_is_not_acknowledged(hf: Holdfast, stream: Stream, log: Log) -> None:
    got = collect(hf, stream)
    async with working(hf):
        await eventually(lambda: stream.client.exists(stream.name))
        await query(
            hf,
            "create trigger no_raw before insert on {hf}message when new.type = 'holdfast.raw' "
            "begin select raise(fail, 'no room'); end",
        )
        stream.put(b"{")
        await eventually(lambda: logged(log, "intake batch failed"))
        assert stream.pending() == 1
        await query(hf, "drop trigger no_raw")
        await eventually(lambda: hf.ops.deliveries(Filter(dead=True)))
        await eventually(lambda: stream.pending() == 0)
        stream.put({"n": 1})
        await eventually(lambda: got == [1])


async def test_an_intake_waits_for_the_store_and_continues_automatically(stream: Stream, log: Log) -> None:
    with PostgresServer(18, durable=True) as server:
        hf = Holdfast(migrated(server, "outage"))
        got = collect(hf, stream)
        async with working(hf):
            stream.put({"n": 0})
            await eventually(lambda: got == [0])
            await eventually(lambda: stream.pending() == 0)
            await asyncio.to_thread(server.kill)
            for n in range(1, 30):
                stream.put({"n": n} if n % 7 else b"{")
            await eventually(lambda: logged(log, "intake stalled"))
            assert stream.pending() + stream.left() == 29
            await asyncio.to_thread(server.start)
            await eventually(lambda: len(got) == 26)
            await eventually(lambda: stream.pending() + stream.left() == 0)
            assert len(await hf.ops.deliveries(Filter(dead=True))) == 4
        assert len(logged(log, "intake stalled")) == 1
        assert not logged(log, "intake batch failed")
        await hf.close()


@SQLITE
async def test_a_deleted_group_and_a_deleted_stream_are_made_again(hf: Holdfast, stream: Stream, log: Log) -> None:
    got = collect(hf, stream)
    async with working(hf):
        stream.put({"n": 1})
        await eventually(lambda: got == [1])
        stream.client.xgroup_destroy(stream.name, "shop")
        stream.put({"n": 2})
        await eventually(lambda: got == [1, 2])
        stream.client.delete(stream.name)
        await asyncio.sleep(0.05)
        stream.put({"n": 3})
        await eventually(lambda: got == [1, 2, 3])
        await eventually(lambda: stream.pending() == 0)
    assert len(await all_of(hf)) == 3
    assert logged(log, "consumer group recreated")


@SQLITE
async def test_fetching_pauses_while_the_backlog_is_too_long(
    hf: Holdfast, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_BACKLOG", 20)
    monkeypatch.setattr(inbox, "_CHECK_RECORDS", 5)
    monkeypatch.setattr(inbox.Inbox, "max_in_flight", 10)
    got = collect(hf, stream)
    await hf._runtime.registration.prepare()
    await hf.ops.pause_consumer("settle", actor="ada", reason="a check")
    for n in range(100):
        stream.put({"n": n})
    async with working(hf):
        await eventually(lambda: stream.pending() == 0 and stream.left() == 80)
        await asyncio.sleep(0.3)
        assert len(await all_of(hf)) == 20
        await hf.ops.resume_consumer("settle", actor="ada", reason="seen")
        await eventually(lambda: len(got) == 100)


@SQLITE
async def test_the_lag_of_a_source_is_stored_for_operators(hf: Holdfast, stream: Stream) -> None:
    collect(hf, stream)
    await hf._runtime.registration.prepare()
    async with working(hf):
        await eventually(lambda: hf.store.run(intakes()))
    (known,) = (await hf.ops.stats()).sources
    assert (known.consumer, known.source) == ("settle", f"redis:{stream.name}/shop")
    assert (known.waiting, known.unacknowledged, known.problem) == (0, 0, None)


@SQLITE
async def test_a_copy_of_each_dead_letter_is_sent_to_a_separate_stream(hf: Holdfast, stream: Stream, log: Log) -> None:
    target = redis.stream(f"{stream.name}.dead", url=stream.url)

    @hf.consumer(PaymentSettled, source=stream.source(), dead_letters=target)
    async def settle(payment: PaymentSettled) -> None:
        raise TerminalError("no such\naccount")

    unreadable = stream.put(b"\xff", request_id="r-1")
    plain, event = stream.put({"n": 1}), stream.put_event("e-1", {"n": 2})
    await drain(hf)
    copies = [fields for _, fields in stream.client.xrange(f"{stream.name}.dead")]
    copies.sort(key=lambda fields: fields[b"dead-letter-source-message-id"])
    assert [fields[b"dead-letter-source-message-id"].decode() for fields in copies] == [unreadable, plain, event]
    raw, died, _ = copies
    assert (raw[b"request_id"], raw[b"dead-letter-error-type"]) == (b"r-1", b"holdfast.UnreadableRecord")
    assert b'"data":{"n":1}' in died[b"body"]
    # In one line: headers of NATS take no more.
    assert died[b"dead-letter-error"] == b"no such account"
    dead = {str(one.delivery.id).encode() for one in await hf.ops.deliveries(Filter(dead=True))}
    assert {fields[b"dead-letter-id"] for fields in copies} == dead


@SQLITE
async def test_a_copy_that_cannot_be_sent_is_given_up_and_the_store_has_it(
    hf: Holdfast, stream: Stream, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_forwarder, "_SHORTEST_PAUSE", 0.01)
    collect(hf, stream, dead_letters=redis.stream("dead", url="redis://127.0.0.1:1/0"))
    stream.put(b"{")
    await drain(hf)
    assert len(await hf.ops.deliveries(Filter(dead=True))) == 1
    assert logged(log, "dead letter copy abandoned")
    assert stream.pending() == 0


@SQLITE
async def test_a_record_without_a_type_needs_a_consumer_of_one_type(hf: Holdfast, stream: Stream) -> None:
    types: list[str] = []

    @hf.consumer("payment.*", source=stream.source())
    async def every(ctx: Context, payment: dict[str, Any]) -> None:
        types.append(ctx.type)

    stream.put({"n": 1})
    stream.put_event("e-1", {"n": 1}, type="payment.refused")
    await drain(hf)
    assert types == ["payment.refused"]
    (dead,) = await hf.ops.deliveries(Filter(dead=True))
    assert "it has no type" in (dead.delivery.last_error or "")


@SQLITE
async def test_a_source_that_cannot_be_opened_ends_the_worker_with_what_to_do(
    hf: Holdfast, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_REDIS", raising=False)
    collect(hf, stream, source=replace(stream.source(), url=None))
    with pytest.raises(ConfigurationError, match="HOLDFAST_REDIS"):
        await asyncio.wait_for(hf.work(), 20)


def test_what_makes_no_sense_is_refused_when_it_is_declared(stream: Stream) -> None:
    hf = Holdfast("sqlite:///nowhere.db")
    for options, words in [
        ({"source": "redis:payments"}, "give a broker's topic"),
        ({"source": stream.source(), "start": "now"}, "give start='now' to the source"),
        ({"source": stream.source(), "concurrency": 0}, "concurrency is 0"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            hf.consumer(PaymentSettled, name="settle", **options)(lambda payment: None)  # type: ignore[arg-type]


async def test_a_dead_letter_of_a_cloudevent_keeps_the_id_that_the_broker_gave(hf: Holdfast, stream: Stream) -> None:
    published: list[dict[str, str]] = []

    @hf.consumer("payment.settled", name="settle", source=stream.source())
    async def settle(payment: dict[str, int]) -> None:
        await hf.publish("payment.refused", payment, conn=None)
        raise TerminalError("no such account")

    @hf.consumer("payment.refused")
    async def refuse(ctx: Context, payment: dict[str, int]) -> None:
        published.append(dict(ctx.headers))

    id = stream.put_event("e-1", {"n": 1}, source_message_id="forged", requestid="r-1")
    await drain(hf)
    (dead,) = await hf.ops.deliveries(Filter(dead=True))
    (message,) = await hf.store.run(messages(id=dead.delivery.message_id))
    assert message.key == "/bank#e-1"
    assert message.headers == {"request_id": "r-1", "source_message_id": id}
    # It is about that one message: an event that its handler publishes came from no broker.
    assert published == [{"request_id": "r-1"}]


@pytest.mark.parametrize("direct", [False, True], ids=["stored", "direct"])
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_only_ids_of_a_record_are_propagated_unless_its_source_is_trusted(
    hf: Holdfast, stream: Stream, direct: bool, trusted: bool
) -> None:
    propagated: list[dict[str, str]] = []
    headers: list[dict[str, str]] = []

    @hf.consumer("payment.settled", name="settle", source=stream.source(), direct=direct, trust_identity=trusted)
    async def settle(ctx: Context, payment: dict[str, int]) -> None:
        propagated.append(dict(correlation()))
        headers.append(dict(ctx.headers))
        await hf.publish("payment.booked", payment, conn=None)

    ids = {
        "request_id": "r-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Correlation-ID": "c-1",
        "causation_id": "m-1",
    }
    claims = {"user_id": "admin", "tenant": "rival", "org_id": "o-1", "X-User-Id": "u", "x-customer-id": "c-7"}
    stream.put({"n": 1}, **ids, **claims)
    stream.put_event("e-1", {"n": 2}, userid="admin", customerid="c-7", requestid="r-1")
    await drain(hf)
    plain, event = sorted(propagated, key=lambda found: "traceparent" not in found)
    own = {"idempotency_key", "source_message_id"}
    assert {name: plain[name] for name in plain.keys() - own} == (ids | claims if trusted else ids)
    extensions = {"user_id": "admin", "customerid": "c-7"} if trusted else {}
    assert {name: event[name] for name in event.keys() - own} == {"request_id": "r-1"} | extensions
    booked = [message.headers for message in await hf.store.run(messages(type="payment.booked"))]
    assert {("user_id" in found, "customerid" in found or "x-customer-id" in found) for found in booked} == {
        (trusted, trusted)
    }
    # The handler can read all of them as data.
    plain, event = sorted(headers, key=lambda found: "traceparent" not in found)
    assert plain.items() >= (ids | claims).items()
    assert event.items() >= {"user_id": "admin", "customerid": "c-7", "request_id": "r-1"}.items()


@pytest.mark.parametrize("direct", [False, True], ids=["stored", "direct"])
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_log_lines_and_alerts_carry_only_ids_of_a_record_unless_its_source_is_trusted(
    make_app: MakeApp, stream: Stream, direct: bool, trusted: bool, log: Log
) -> None:
    alerts: list[DeadLetterAlert] = []
    hf, retry = make_app(alerts=[alerts.append]), RetryPolicy.fixed(0, attempts=2)
    source = stream.source()

    @hf.consumer("payment.settled", source=source, direct=direct, trust_identity=trusted, retry=retry)
    async def settle(payment: dict[str, int]) -> None:
        raise ConnectionError("the bank is unavailable")

    stream.put({"n": 1}, request_id="r-1", user_id="admin", tenant="rival")
    stream.put(b"\xff no json", request_id="r-2", user_id="admin", tenant="rival")
    await drain(hf)
    about = [*logged(log, "delivery retried"), *logged(log, "dead letter"), *(alert.correlation for alert in alerts)]
    assert sorted(str(line["request_id"]) for line in about) == ["r-1", "r-1", "r-1", "r-2", "r-2"]
    identity = ("admin", "rival") if trusted else (None, None)
    assert {(line.get("user_id"), line.get("tenant")) for line in about} == {identity}
    assert trusted or not [line for line in log if {"admin", "rival"} & {str(value) for value in line.values()}]


@pytest.mark.parametrize("until_idle", [True, False])
async def test_handled_records_are_not_reported_as_waiting(hf: Holdfast, stream: Stream, until_idle: bool) -> None:
    got = collect(hf, stream)
    for n in range(3):
        stream.put({"n": n})

    async def shown() -> list[int | None]:
        return [one.waiting for one in await hf.store.run(intakes())]

    if until_idle:
        await drain(hf)
        assert await shown() == [0]
    else:
        async with working(hf):
            await eventually(lambda: len(got) == 3)
            async with asyncio.timeout(5):  # sooner than the next of the regular reports
                while await shown() != [0]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert len(got) == 3
