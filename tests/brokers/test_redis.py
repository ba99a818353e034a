"""The Redis adapter against a real server: hand-over, take-over, sending, and settings that lose data."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
import redis as client

from holdfast.brokers import cloudevents, redis
from holdfast.brokers.protocol import OutgoingRecord
from holdfast.brokers.redis.subscription import RedisSubscription
from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from holdfast.core.message import Message
from tests.brokers.redis_stream import Stream, redis_server, stream
from tests.servers.redis import RedisServer

__all__ = ["redis_server", "stream"]


@pytest.fixture
def small_server() -> Iterator[RedisServer]:
    """A separate server whose settings the tests change."""
    with RedisServer() as server:
        yield server


async def test_what_a_dead_consumer_held_is_taken_over_once_it_is_late(stream: Stream) -> None:
    source = stream.source(ack_timeout="300ms")
    ids = [stream.put({"n": n}) for n in range(3)]
    async with source.open("settle") as dead:
        assert [record.id for record in await dead.fetch(10, 0.1)] == ids
        async with source.open("settle") as alive:
            assert await alive.fetch(10, 0.05) == []
            await asyncio.sleep(0.35)
            taken = await alive.fetch(2, 0.05)
            assert [(record.id, record.delivery_count) for record in taken] == [(ids[0], 2), (ids[1], 2)]
            await alive.ack(taken)
            assert isinstance(alive, RedisSubscription)
            # One that was stalled does not take back what another works on.
            (last,) = await alive.fetch(10, 0.5)
            await dead.extend([last])
            assert (
                stream.client.xpending_range(stream.name, "shop", "-", "+", 9)[0]["consumer"] == alive.instance.encode()
            )
            await alive.ack([last])
    assert stream.pending() == 0


async def test_a_record_that_its_owner_acknowledges_during_a_claim_is_not_lost(stream: Stream) -> None:
    source = stream.source(ack_timeout="100ms")
    ids = [stream.put({"n": n}) for n in range(2)]
    async with source.open("settle") as slow, source.open("settle") as other:
        held = await slow.fetch(10, 0.1)
        await slow.ack(held[:1])
        assert isinstance(other, RedisSubscription)
        # What a claim does after it received the ids.
        assert [(record.id, record.lost) for record in await other._read(ids)] == [(ids[1], None)]


async def test_an_instance_is_deleted_on_close_unless_it_has_pending_records(stream: Stream) -> None:
    source = stream.source()
    stream.put({"n": 1})
    async with source.open("settle") as first:
        await first.fetch(1, 0.1)
    async with source.open("settle"):
        pass
    (left,) = stream.client.xinfo_consumers(stream.name, "shop")
    assert left["pending"] == 1


async def test_the_lag_distinguishes_waiting_and_unacknowledged_records(stream: Stream) -> None:
    for n in range(5):
        stream.put({"n": n})
    async with stream.source().open("settle") as subscription:
        await subscription.fetch(2, 0.1)
        lag = await subscription.lag()
    assert (lag.waiting, lag.unacknowledged) == (3, 2)


async def test_a_group_can_start_with_new_records(stream: Stream) -> None:
    stream.put({"n": 1})
    async with stream.source(start="now").open("settle") as subscription:
        later = stream.put({"n": 2})
        assert [record.id for record in await subscription.fetch(10, 0.1)] == [later]


async def test_a_group_that_went_while_we_were_away_is_read_from_the_start(stream: Stream) -> None:
    source = stream.source(start="now")
    async with source.open("settle"):
        pass
    stream.client.delete(stream.name)
    later = stream.put({"n": 1})
    async with source.open("settle") as subscription:
        assert [record.id for record in await subscription.fetch(10, 0.1)] == [later]


async def test_a_header_does_not_stand_in_for_the_body(stream: Stream) -> None:
    async with redis.stream(stream.name, url=stream.url).open() as sender:
        await sender.send(
            [OutgoingRecord(id="1", type="t", key="k", body=b"right", headers={"body": "no", "key": "no"})]
        )
    async with stream.source().open("settle") as subscription:
        (record,) = await subscription.fetch(10, 0.1)
    assert (record.body, record.key, record.headers) == (b"right", "k", {})


async def test_what_is_sent_arrives_as_it_was(stream: Stream) -> None:
    message = Message(
        id=UUID("01890000-0000-7000-8000-000000000001"),
        type="order.placed",
        source="shop",
        key="order:1",
        payload='{"n":1}',
        headers={"request_id": "r-1"},
        generation=0,
        occurred_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    async with redis.stream(stream.name, url=stream.url).open() as sender:
        assert await sender.send([cloudevents.encode(message), cloudevents.encode(message)]) == [None, None]
    async with stream.source().open("settle") as subscription:
        first, second = await subscription.fetch(10, 0.1)
    found = cloudevents.decode(first)
    assert found is not None
    assert (found.id, found.type, found.data) == (str(message.id), "order.placed", {"n": 1})
    assert (first.key, found.headers) == ("order:1", {"request_id": "r-1"})
    assert first.id != second.id
    assert first.at is not None


async def test_a_full_redis_rejects_new_records_and_still_delivers(small_server: RedisServer) -> None:
    place = redis.stream("payments", group="shop", url=small_server.url)
    with client.Redis.from_url(small_server.url) as direct:
        direct.xadd("payments", {"body": b"{}"})
        async with place.open("settle") as subscription, place.open() as sender:
            direct.config_set("maxmemory", 1)
            message = OutgoingRecord(id="1", type="t", key=None, body=b"{}", headers={})
            with pytest.raises(BrokerUnavailable, match="maxmemory"):
                await sender.send([message])
            records = await subscription.fetch(10, 0.1)
            await subscription.ack(records)
            assert len(records) == 1
            direct.config_set("maxmemory", 0)
            assert await sender.send([message]) == [None]


async def test_a_stalled_server_is_an_outage(small_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "subscription"):
        monkeypatch.setattr(f"holdfast.brokers.redis.{module}.ANSWER_SECONDS", 0.4)
    place = redis.stream("payments", group="shop", url=small_server.url)
    async with place.open("settle") as subscription:
        small_server.pause()
        try:
            with pytest.raises(BrokerUnavailable):
                await asyncio.wait_for(subscription.fetch(10, 1.0), 10)
        finally:
            small_server.resume()
    async with place.open("settle") as subscription:
        assert await subscription.fetch(10, 0.05) == []


async def test_settings_that_lose_acknowledged_records_have_a_warning(
    redis_server: RedisServer, small_server: RedisServer
) -> None:
    assert await redis.stream("payments", url=redis_server.url).durability_warnings() == []
    with client.Redis.from_url(small_server.url) as direct:
        direct.config_set("maxmemory", "100mb")
        direct.config_set("maxmemory-policy", "allkeys-lru")
        off, evicts = await redis.stream("payments", url=small_server.url).durability_warnings()
        assert "appendonly yes" in off
        assert "noeviction" in evicts
        direct.config_set("appendonly", "yes")
        assert "set it to always" in (await redis.stream("payments", url=small_server.url).durability_warnings())[0]


async def test_a_server_that_is_gone_is_one_error_without_its_password() -> None:
    place = redis.stream("payments", group="shop", url="redis://:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in repr(place) + place.name
    for opened in (place.open("settle"), place.open()):
        with pytest.raises(BrokerUnavailable) as caught:
            async with opened:
                pass
        assert "hunter2" not in str(caught.value)


async def test_an_address_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="is invalid") as caught:
        async with redis.stream("payments", url="redis://:hunter/2@localhost:6379/0").open():
            pass
    # What the driver says of it, a part of the password, goes into no traceback.
    assert caught.value.__suppress_context__
    assert "hunter" not in str(caught.value)


async def test_missing_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_REDIS", raising=False)
    with pytest.raises(ConfigurationError, match="group="):
        redis.stream("payments").open("settle")
    with pytest.raises(ConfigurationError, match="HOLDFAST_REDIS"):
        async with redis.stream("payments").open():
            pass
    for options in ({"start": "later"}, {"ack_timeout": "1ms"}):
        with pytest.raises(ConfigurationError):
            redis.stream("payments", **options)  # type: ignore[arg-type]
