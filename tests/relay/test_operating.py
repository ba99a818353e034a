"""How operators see relays, and what holds them up; what is not yet relayed is not pruned."""

import asyncio
import contextlib
import re
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Filter, Holdfast, NotFound, Refused
from holdfast.brokers.relay import RelayRunner
from holdfast.interfaces.presentation.views import view
from holdfast.stores.event_log.log import Cursor
from holdfast.stores.event_log.position import Reader, move_position, positions, take_position
from tests.relay.broker import Broker
from tests.support.worker import drain, eventually, pass_time, query, working

MOMENT = timedelta(milliseconds=1)


async def backlog(hf: Holdfast, broker: Broker, number: int) -> None:
    """A relay that has sent one event, and has so many before it."""
    hf.relay("order.*", to=broker, name="orders-out")
    await hf.publish("order.placed", {"n": 0}, conn=None)
    await drain(hf)
    for n in range(1, number + 1):
        await hf.publish("order.placed", {"n": n}, conn=None)
    await hf.publish("mail.sent", {}, conn=None)


async def test_lag_is_seen_in_stats_and_in_the_list_of_consumers(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 3)
    await pass_time(hf, timedelta(minutes=10), "message")
    (relay,) = await hf.ops.relays()
    assert (relay.name, relay.patterns, relay.to) == ("orders-out", ("order.*",), "memory:orders")
    assert (relay.waiting, relay.or_more, relay.relayed, relay.owner) == (3, False, 1, None)
    assert relay.lag >= timedelta(minutes=10)
    stats = await hf.ops.stats()
    assert [(one.name, one.waiting) for one in stats.relays] == [("orders-out", 3)]
    assert stats.oldest >= timedelta(minutes=10)
    (consumer,) = await hf.ops.consumers()
    assert (consumer.patterns, consumer.relays_to, consumer.pending) == (("order.*",), "memory:orders", 3)
    assert consumer.lag >= timedelta(minutes=10)
    shaped = view(stats)
    assert isinstance(shaped, dict)
    assert shaped["relays"][0]["waiting"] == 3


async def test_the_doctor_names_one_that_is_far_behind_and_what_to_do(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 2)
    assert await findings(hf) == [("ok", "every relay is caught up or nearly so", "")]
    await pass_time(hf, timedelta(minutes=10), "message")
    ((level, message, remedy),) = await findings(hf)
    assert level == "warn"
    assert re.search(r"orders-out is 10m( \d+s)? behind, 2 to be sent to memory:orders; no worker runs it", message)
    assert "run a worker whose app has it" in remedy
    await hf.ops.pause_consumer("orders-out", actor="ada")
    assert await findings(hf) == [], "paused on purpose is said by another check"


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_the_doctor_says_when_the_store_was_restored_elsewhere(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 1)
    await query(hf, "update holdfast.position set cursor = '9000000000:9000000000:;;0'")
    ((level, message, _),) = await findings(hf)
    assert level == "fail"
    assert "comes from another server" in message


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_after_a_restore_the_how_to_s_statements_make_it_continue_and_nothing_is_skipped(
    hf: Holdfast, broker: Broker
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/relay.md").read_text()
    (repair,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    await backlog(hf, broker, 1)
    await query(hf, "update holdfast.message set tx = '9000000000'")
    await query(hf, "update holdfast.position set cursor = '9000000000:9000000000:;;0'")
    for statement in repair.split(";\n"):
        await query(hf, statement)
    later = await hf.publish("order.placed", {"n": 2}, conn=None)
    given: list[int] = []

    @hf.consumer("order.*")
    def count(order: dict[str, int]) -> None:
        given.append(order["n"])

    await drain(hf)
    assert broker.numbers == [0, 0, 1, 2]
    assert broker.ids[-1] == str(later.id)
    assert sorted(given) == [0, 1, 2]


async def test_what_is_not_yet_relayed_is_not_pruned(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 3)
    await asyncio.sleep(0.01)
    before = [str(m.id) for m in (await hf.events.read()).events]
    await hf.ops.prune(older_than=MOMENT, messages=True, actor="ada")
    kept = [str(m.id) for m in (await hf.events.read()).events]
    assert kept == before[1:], "the first one was relayed"
    await drain(hf)
    assert broker.ids == before[:4]
    await hf.ops.prune(older_than=MOMENT, messages=True, actor="ada")
    assert (await hf.events.read()).events == []
    await hf.publish("mail.sent", {}, conn=None)
    await drain(hf)
    await hf.ops.prune(older_than=MOMENT, messages=True, actor="ada")
    assert (await hf.events.read()).events == [], "it is skipped, too"


async def test_one_that_is_gone_permanently_is_retired_but_not_while_it_runs(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 1)
    held = await hf.store.run(take_position(Reader.RELAY, "orders-out", "w1", timedelta(minutes=1)))
    assert held is not None
    with pytest.raises(Refused, match="run by w1"):
        await hf.ops.retire_consumer("orders-out", actor="ada")
    assert await hf.store.run(move_position(held, Cursor(), timedelta(seconds=-1)))
    broker.down = True
    async with working(hf):
        await eventually(lambda: unheld(hf))
        await eventually(hf.ops.workers)
        with pytest.raises(Refused, match="stop its workers first"):
            await hf.ops.retire_consumer("orders-out", actor="ada")

    async def retired() -> tuple[str, ...] | None:
        # A worker that stops waits two seconds for the release of its relay; on a slow machine the lease ends later.
        with contextlib.suppress(Refused):
            return await hf.ops.retire_consumer("orders-out", actor="ada", reason="moved to NATS")
        return None

    assert await eventually(retired) == ("order.*",)
    assert await hf.ops.relays() == []
    page = await hf.ops.audit(limit=1)
    assert [(entry.action, entry.target, entry.reason) for entry in page] == [("retire", "orders-out", "moved to NATS")]
    with pytest.raises(NotFound):
        await hf.ops.retire_consumer("orders-out", actor="ada")


async def test_a_worker_that_stops_while_it_takes_a_relay_releases_it(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 0)
    runner = RelayRunner(hf.store, hf.relays["orders-out"], "w1", 0)
    for n in range(40):
        task = asyncio.create_task(runner.run())
        await asyncio.sleep(n / 10_000)
        task.cancel()
        await asyncio.wait({task})
        assert await unheld(hf), n


async def test_a_relay_that_is_stopped_while_its_tables_are_missing_ends(hf: Holdfast, broker: Broker) -> None:
    hf.relay("order.*", to=broker, name="orders-out")
    for n in range(40):
        task = asyncio.create_task(RelayRunner(hf.store, hf.relays["orders-out"], "w1", 0).run())
        await asyncio.sleep(n / 10_000)
        task.cancel()
        _, running = await asyncio.wait({task}, timeout=5)
        assert not running, n


async def test_the_event_store_is_read_by_page_from_any_cursor(hf: Holdfast) -> None:
    for n in range(5):
        await hf.publish("order.placed" if n % 2 else "mail.sent", {"n": n}, conn=None)
    first = await hf.events.read(["order.*"], limit=1)
    assert [event.data for event in first.events] == [{"n": 1}]
    assert first.more
    rest = hf.events.sync.read("order.*", after=first.cursor)
    assert [event.data["n"] for event in rest.events] == [3]
    assert not hf.events.sync.read(after=rest.cursor).events
    assert [event.data["n"] async for page in hf.events.pages() for event in page.events] == [0, 1, 2, 3, 4]


async def test_a_dead_letter_of_a_relay_is_listed_as_any_other(hf: Holdfast, broker: Broker) -> None:
    await backlog(hf, broker, 1)
    broker.refuses = {str(event.id) for event in (await hf.events.read()).events}
    async with working(hf):
        pass
    await drain(hf)
    page = await hf.ops.deliveries(Filter(dead=True))
    assert [one.delivery.consumer for one in page] == ["orders-out"]


async def unheld(hf: Holdfast) -> bool:
    (relay,) = await hf.store.run(positions(Reader.RELAY))
    return relay.owner is None


async def findings(hf: Holdfast) -> list[tuple[str, str, str]]:
    return [(one.level.value, one.message, one.remedy) for one in await hf.ops.doctor() if one.check == "relays"]
