"""Relays: everything reaches the broker, in order, and is marked only when the broker has it."""

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import psycopg
import pytest

from holdfast import ConfigurationError, Filter, Holdfast, Router, correlate
from holdfast.brokers import relay
from holdfast.brokers.relay import RelayRunner
from holdfast.core.delivery import Status
from holdfast.core.message import Message
from holdfast.stores.event_log.log import Cursor
from holdfast.stores.event_log.position import (
    Position,
    Reader,
    move_position,
    positions,
    release_position,
    take_position,
)
from tests.relay.broker import Broker
from tests.support.apps import MakeApp
from tests.support.worker import PATIENCE, Log, drain, eventually, logged, only, query, run_records, wait_for, working

on_postgres = pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)


async def publish(hf: Holdfast, *numbers: int, type: str = "order.placed", **given: Any) -> list[str]:
    return [str((await hf.publish(type, {"n": n}, conn=None, **given)).id) for n in numbers]


async def position(hf: Holdfast) -> Position:
    (found,) = await hf.store.run(positions(Reader.RELAY))
    return found


async def marked(hf: Holdfast, number: int) -> bool:
    return [one.passed for one in await hf.store.run(positions(Reader.RELAY))] == [number]


async def test_events_are_relayed_once_in_order_and_only_those_that_were_asked_for(
    hf: Holdfast, broker: Broker
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    ids = await publish(hf, *range(5))
    await publish(hf, 9, type="mail.sent")
    await drain(hf)
    assert broker.ids == ids
    assert broker.numbers == [0, 1, 2, 3, 4]
    ids += await publish(hf, 5, 6)
    await drain(hf)
    assert broker.ids == ids, "what was marked is not sent again"
    assert (await position(hf)).passed == 7
    assert not (await position(hf)).held, "one that ends in good order leaves nothing to wait for"


async def test_a_backlog_of_many_pages_arrives_whole(hf: Holdfast, broker: Broker) -> None:
    hf.relay("*", to=broker, name="all-out")
    await hf.publish_many([("order.placed", {"n": n}) for n in range(1300)], conn=None)
    await drain(hf)
    assert broker.numbers == list(range(1300))
    assert broker.opened == 1


async def test_what_handlers_publish_is_relayed_before_the_worker_ends(hf: Holdfast, broker: Broker) -> None:
    @hf.consumer("order.placed")
    async def confirm(order: dict[str, Any]) -> None:
        await hf.publish("order.confirmed", order, conn=None)

    hf.relay("order.*", to=broker, name="orders-out")
    await publish(hf, 1)
    await drain(hf)
    assert [one.type for one in broker.sent] == ["order.placed", "order.confirmed"]


async def test_a_running_relay_is_woken_by_a_publish(
    hf: Holdfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_IDLE", 60.0)
    hf.relay("order.*", to=broker, name="orders-out")
    ids: list[str] = []
    async with working(hf):
        for n in range(3):
            ids.extend(await publish(hf, n))
            await eventually(lambda: broker.ids == ids)


@on_postgres
async def test_a_late_committer_is_relayed_though_later_ones_were_and_a_transaction_stays_open(
    hf: Holdfast, broker: Broker
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    async with (
        await psycopg.AsyncConnection.connect(hf.dsn) as ages,
        await psycopg.AsyncConnection.connect(hf.dsn) as slow,
        working(hf),
    ):
        await ages.execute("select pg_current_xact_id()")
        late = str((await hf.publish("order.placed", {"n": 0}, conn=slow)).id)
        early = await publish(hf, 1, 2)
        await eventually(lambda: broker.ids == early)
        await slow.commit()
        await eventually(lambda: broker.ids == [*early, late])
        more = await publish(hf, 3)
        await eventually(lambda: broker.ids == [*early, late, *more])


async def test_one_that_starts_now_sends_nothing_older(hf: Holdfast, broker: Broker) -> None:
    await publish(hf, 1)
    hf.relay("order.*", to=broker, name="orders-out", start="now")
    await drain(hf)
    ids = await publish(hf, 2)
    await drain(hf)
    assert broker.ids == ids


async def test_key_and_correlation_travel_along(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out", key=lambda event: f"order-{event.data['n']}")
    with correlate(request_id="r-1"):
        await publish(hf, 7, key="order:7:placed:v1")
    await drain(hf)
    (sent,) = broker.sent
    body = orjson.loads(sent.body)
    assert (sent.key, body["partitionkey"], body["subject"]) == ("order-7", "order-7", "order:7:placed:v1")
    assert body["requestid"] == "r-1"


async def test_a_rejected_event_is_a_dead_letter_and_the_others_are_sent(
    hf: Holdfast, broker: Broker, log: Log
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    ids = await publish(hf, 1, 2, 3)
    broker.refuses.add(ids[1])
    await drain(hf)
    assert broker.ids == [ids[0], ids[2]]
    dead = await only(hf, "orders-out")
    assert (dead.status, str(dead.message_id)) == (Status.FAILED, ids[1])
    assert "memory:orders rejects it: too large" in str(dead.last_error)
    assert [run.outcome for run in await run_records(hf, "orders-out")] == ["failed"]
    assert [line["event_id"] for line in logged(log, "dead letter")] == [ids[1]]

    broker.refuses.clear()
    plan = await hf.ops.plan_replay(Filter(consumers=("orders-out",)), limit=10)
    await plan.execute(actor="ada", reason="the limit was raised")
    await drain(hf)
    assert broker.ids == [ids[0], ids[2], ids[1]], "under the id it always had"
    assert (await only(hf, "orders-out")).status is Status.DELIVERED


async def test_an_event_that_has_no_key_for_the_broker_is_a_separate_dead_letter(
    hf: Holdfast, broker: Broker, log: Log
) -> None:
    def key(event: Message) -> str:
        customer: str = event.data["customer"]
        return customer

    hf.relay("order.*", to=broker, name="orders-out", key=key)
    await publish(hf, 1)
    await hf.publish("order.placed", {"n": 3, "customer": 7}, conn=None)
    good = await hf.publish("order.placed", {"n": 2, "customer": "ada"}, conn=None)
    async with working(hf):
        await eventually(lambda: broker.ids == [str(good.id)])
        await eventually(lambda: len(logged(log, "delivery retried")) >= 2)
    assert {line["error_type"].rpartition(".")[2] for line in logged(log, "delivery retried")} == {
        "KeyError",
        "TypeError",
    }


async def test_a_relay_does_not_move_during_an_outage_and_continues_automatically(
    hf: Holdfast, broker: Broker, log: Log
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    ids = await publish(hf, 1)
    async with working(hf):
        await eventually(lambda: marked(hf, 1))
        before = (await position(hf)).cursor
        broker.down = True
        ids += await publish(hf, 2, 3)
        await eventually(lambda: logged(log, "relay stalled"))
        await asyncio.sleep(0.5)
        assert (await position(hf)).cursor == before
        broker.down = False
        await eventually(lambda: broker.ids == ids)
        await eventually(lambda: logged(log, "relay resumed"))
    assert len(logged(log, "relay stalled")) == 1, "once per outage"
    assert not await query(hf, f"select 1 from {table(hf, 'delivery')}"), "an outage is not a failed delivery"


@on_postgres
async def test_sessions_that_the_database_cuts_lose_nothing(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    await hf._runtime.registration.prepare()
    ids: list[str] = []
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with working(hf):
        for n in range(3):
            await query(hf, cut)
            async with await psycopg.AsyncConnection.connect(hf.dsn) as own:
                ids.append(str((await hf.publish("order.placed", {"n": n}, conn=own)).id))
            await eventually(lambda: set(ids) <= set(broker.ids))
    assert list(dict.fromkeys(broker.ids)) == ids


async def test_one_that_is_to_end_when_idle_runs_its_handlers_though_the_broker_is_down(
    hf: Holdfast, broker: Broker
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    handled = asyncio.Event()

    @hf.consumer("order.*")
    async def handle(order: object) -> None:
        handled.set()

    broker.down = True
    await publish(hf, 1)
    draining = asyncio.create_task(drain(hf))
    await wait_for(handled)
    broker.down = False
    await draining
    assert broker.numbers == [1]


async def test_a_confirmation_that_never_came_means_the_same_events_again_under_the_same_ids(
    hf: Holdfast, broker: Broker
) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    ids = await publish(hf, 1, 2)
    broker.let_go.clear()
    async with working(hf):
        await eventually(lambda: broker.ids == ids)
    broker.let_go.set()
    assert (await position(hf)).passed == 0
    await drain(hf)
    assert broker.ids == ids * 2


async def test_paused_it_sends_nothing_until_it_is_resumed(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    await drain(hf)
    await hf.ops.pause_consumer("orders-out", actor="ada")
    ids = await publish(hf, 1)
    async with working(hf):
        await eventually(lambda: broker.opened == 2)
        await asyncio.sleep(0.3)
        assert broker.ids == []
        await hf.ops.resume_consumer("orders-out", actor="ada")
        await eventually(lambda: broker.ids == ids)


async def test_of_two_with_one_name_one_sends_and_the_other_takes_over(make_app: MakeApp, broker: Broker) -> None:
    """Two relays in one loop: one engine is all that SQLite bears, and the lease does not know of engines."""
    hf = make_app()
    hf.relay("order.*", to=broker, name="orders-out", lease=timedelta(seconds=1))
    await hf._runtime.registration.prepare()
    both = [RelayRunner(hf.store, hf.relays["orders-out"], owner, 0) for owner in ("one", "two")]
    first, second = [asyncio.create_task(one.run()) for one in both]
    ids = await publish(hf, *range(20))
    await eventually(lambda: marked(hf, 20))
    assert broker.ids == ids
    assert broker.opened == 1
    ended, running = (first, second) if (await position(hf)).owner == "one" else (second, first)
    ended.cancel()
    ids += await publish(hf, *range(20, 40))
    await eventually(lambda: len(broker.ids) >= 40)
    assert broker.ids == ids
    running.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_relay_that_was_replaced_while_it_sent_marks_nothing(
    make_app: MakeApp, broker: Broker, log: Log
) -> None:
    hf = make_app()
    hf.relay("order.*", to=broker, name="orders-out", lease=timedelta(seconds=60))
    await hf._runtime.registration.prepare()
    ids = await publish(hf, 1, 2)
    broker.let_go.clear()
    stale = asyncio.create_task(RelayRunner(hf.store, hf.relays["orders-out"], "stale", 0).run())
    await eventually(lambda: broker.ids == ids)
    long_ago = "lease_until - interval '1 hour'" if "postgres" in hf.dsn else "lease_until - 3600000"
    await query(hf, f"update {table(hf, 'position')} set lease_until = {long_ago}")
    fresh = await hf.store.run(take_position(Reader.RELAY, "orders-out", "fresh", timedelta(seconds=60)))
    assert fresh is not None
    before = await position(hf)
    broker.let_go.set()
    await eventually(lambda: logged(log, "relay lease lost"))
    after = await position(hf)
    assert (after.cursor, after.passed, after.owner) == (before.cursor, 0, "fresh")
    stale.cancel()
    await asyncio.gather(stale, return_exceptions=True)


async def test_a_stale_owner_moves_and_releases_nothing(hf: Holdfast) -> None:
    await hf._runtime.registration.prepare()
    lease = timedelta(seconds=60)
    old = await hf.store.run(take_position(Reader.RELAY, "r", "same-name", lease))
    assert old is not None
    assert await hf.store.run(take_position(Reader.RELAY, "r", "other", lease)) is None
    new = await hf.store.run(take_position(Reader.RELAY, "r", "same-name", lease))
    assert new is not None
    assert new.fence == old.fence + 1
    assert not await hf.store.run(move_position(old, Cursor("", "", 7), lease))
    await hf.store.run(release_position(old))
    assert (await position(hf)).cursor == Cursor()
    assert (await position(hf)).held
    assert await hf.store.run(move_position(new, Cursor("", "", 7), lease))
    assert (await position(hf)).cursor == Cursor("", "", 7)


async def test_a_wake_up_during_the_stop_does_not_keep_a_relay_running(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    await hf._runtime.registration.prepare()
    relaying = RelayRunner(hf.store, hf.relays["orders-out"], "one", 0)
    for _ in range(3):
        task = asyncio.create_task(relaying.run())
        await relaying.caught_up()
        relaying.wake()
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()


async def test_a_relay_of_another_queue_is_left_to_its_workers(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out", queue="outbound")
    ids = await publish(hf, 1)
    await drain(hf, queues={"default": 5})
    assert broker.ids == []
    await drain(hf, queues={"outbound": 5})
    assert broker.ids == ids


async def test_a_router_declares_relays_too(hf: Holdfast, broker: Broker) -> None:
    router = Router()
    router.relay("order.*", to=broker, name="orders-out")
    hf.include(router)
    ids = await publish(hf, 1)
    broker.refuses.update(ids)
    await drain(hf)
    assert (await only(hf, "orders-out")).status is Status.FAILED


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"to": "kafka"}, "give a broker's topic"),
        ({"mode": "xml"}, "'structured' or 'binary'"),
        ({"start": "later"}, "'beginning' or 'now'"),
        ({"lease": "10ms"}, "give 1 s or more"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(broker: Any, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Router().relay("order.*", **{"to": broker, "name": "orders-out", **given})


def table(hf: Holdfast, name: str) -> str:
    return f"holdfast.{name}" if "postgres" in hf.dsn else f"holdfast_{name}"
