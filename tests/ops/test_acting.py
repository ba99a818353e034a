"""Operator actions: each is audited, and an unknown name is refused."""

from datetime import UTC, timedelta

import pytest

from holdfast.core.change import Deliver
from holdfast.core.delivery import Status
from holdfast.core.errors import InvalidName, InvalidPayload, KeyConflict, NotFound, Refused
from holdfast.ops.maintenance import Pruned
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import audit, block_consumer
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import (
    age,
    all_deliveries,
    catch_up_fully,
    claim_all,
    finish,
    job,
    message,
    put,
    register_consumers,
    sql,
    start,
)
from tests.support.failures import dead_letters, one_in_each_state

HOUR = timedelta(hours=1)


async def acts(store: Store) -> list[tuple[str, str, str, str, str | None]]:
    """Everything that was done, oldest first."""
    entries = await store.run(audit(limit=100))
    return [(e.actor, e.action, e.kind, e.target, e.reason) for e in reversed(entries)]


async def test_a_queue_is_paused_and_resumed(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []}, queue="slow")
    await put(store, job("mail", queue="slow"))
    assert await ops.pause_queue("slow", actor="ada", reason="smtp moves")
    assert not await ops.pause_queue("slow", actor="bob"), "it was paused"
    (queue,) = await ops.queues()
    assert (queue.name, queue.consumers, queue.pending, queue.paused_at is not None) == ("slow", ("mail",), 1, True)
    assert await claim_all(store) == []
    assert await ops.resume_queue("slow", actor="ada")
    assert not await ops.resume_queue("slow", actor="ada")
    assert len(await claim_all(store)) == 1
    assert await acts(store) == [
        ("ada", "pause", "queue", "slow", "smtp moves"),
        ("ada", "resume", "queue", "slow", None),
    ]


async def test_a_slip_of_the_pen_pauses_nothing(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []}, queue="slow")
    for wrong in (
        ops.pause_queue("slwo", actor="ada"),
        ops.resume_queue("slwo", actor="ada"),
        ops.pause_consumer("mial", actor="ada"),
        ops.resume_consumer("mial", actor="ada"),
        ops.unblock_consumer("mial", actor="ada"),
        ops.retire_consumer("mial", actor="ada"),
        ops.pause_schedule("nihgtly", actor="ada"),
        ops.resume_schedule("nihgtly", actor="ada"),
        ops.run_schedule("nihgtly", actor="ada"),
    ):
        with pytest.raises(NotFound, match=r"registered: mail|known: "):
            await wrong
    for name in ("a b", "", "x'y", "a\nb"):
        with pytest.raises(InvalidName):
            await ops.pause_queue(name, actor="ada")
    assert await acts(store) == []
    await ops.pause_queue("later", actor="ada", force=True)
    assert {queue.name for queue in await ops.queues()} == {"later", "slow"}


async def test_a_consumer_is_paused_resumed_and_unblocked(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.*"]})
    await start(store, "w", ["mail"], generation=3)
    assert await ops.pause_consumer("mail", actor="ada", reason="smtp moves")
    assert not await ops.pause_consumer("mail", actor="bob"), "it was paused"
    (state,) = await ops.consumers()
    assert (state.patterns, state.workers, state.live_generation, state.paused_at is not None) == (
        ("order.*",),
        1,
        3,
        True,
    )
    assert await ops.resume_consumer("mail", actor="ada")
    assert not await ops.resume_consumer("mail", actor="ada")
    await store.run(block_consumer("mail", "smtp", HOUR, "w"))
    (state,) = await ops.consumers()
    assert state.blocked_resource == "smtp"
    assert await ops.unblock_consumer("mail", actor="ada")
    assert not await ops.unblock_consumer("mail", actor="ada")
    (state,) = await ops.consumers()
    assert state.blocked_until is None
    assert [act[1] for act in await acts(store)] == ["pause", "resume", "block", "unblock"]


async def test_a_retired_consumer_gets_nothing_new(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.*", "user.*"]})
    assert await ops.retire_consumer("mail", actor="ada", pattern="user.*") == ("user.*",)
    with pytest.raises(NotFound, match="subscription"):
        await ops.retire_consumer("mail", actor="ada", pattern="user.*")
    assert await ops.retire_consumer("mail", actor="ada", reason="gone") == ("order.*",)
    await put(store, message())
    assert await all_deliveries(store) == []
    assert [act[:4] for act in await acts(store)] == [("ada", "retire", "consumer", "mail")] * 2


async def test_catching_up_gives_a_new_consumer_what_was_published_before(store: Store, ops: Operations) -> None:
    await put(store, *(message() for _ in range(3)))
    await register_consumers(store, {"mail": ["order.*"]})
    seen: list[int] = []
    assert await ops.catch_up(actor="ada", progress=seen.append) == 3
    assert seen[-1] == 3
    assert len(await all_deliveries(store)) == 3
    assert (await acts(store))[0][:3] == ("ada", "catch-up", "store")


async def test_an_event_published_by_hand_reaches_its_consumers_and_the_audit(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.*"]})
    first = await ops.publish("order.placed", {"n": 1}, actor="ada", key="order:1", headers={"request_id": "r"})
    again = await ops.publish("order.placed", {"n": 1}, actor="ada", key="order:1")
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(KeyConflict):
        await ops.publish("order.placed", {"n": 2}, actor="ada", key="order:1")
    with pytest.raises(InvalidPayload):
        await ops.publish("order.placed", {"n": float("nan")}, actor="ada")
    assert [d.consumer for d in await all_deliveries(store)] == ["mail"]
    assert await acts(store) == [("ada", "publish", "message", str(first.id), None)]


async def test_a_job_enqueued_by_hand_goes_where_its_registration_says(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []}, queue="slow", priority=3)
    await register_consumers(store, {"billing": ["order.*"]})
    await start(store, "w", ["mail"], generation=5, queues=["slow"])
    published = await ops.enqueue("mail", {"to": "ada"}, actor="ada", delay=HOUR)
    row = (await ops.job(published.id)).listed.delivery
    assert (row.consumer, row.queue, row.priority, row.generation) == ("mail", "slow", 3, 5)
    assert row.run_at - row.created_at >= HOUR
    with pytest.raises(NotFound, match="registered: mail"):
        await ops.enqueue("maul", {}, actor="ada")
    with pytest.raises(Refused, match="consumer of order"):
        await ops.enqueue("billing", {}, actor="ada")
    forced = await ops.enqueue("later", {}, actor="ada", force=True, queue="other")
    assert (await ops.job(forced.id)).listed.delivery.queue == "other"
    assert [act[1] for act in await acts(store)] == ["enqueue", "enqueue"]


async def test_a_schedule_is_paused_resumed_and_run_by_hand(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"nightly": []}, queue="slow")
    await store.run(save_schedules([("nightly", "0 7 * * *", "Europe/Berlin", "last")]))
    (schedule,) = await ops.schedules()
    assert schedule.next_at is not None
    assert schedule.next_at > await ops.now()
    assert schedule.next_at.tzinfo is UTC
    await ops.pause_schedule("nightly", actor="ada", reason="holiday")
    assert (await ops.schedules())[0].next_at is None
    assert await ops.resume_schedule("nightly", actor="ada")
    assert not await ops.resume_schedule("nightly", actor="ada")
    runs = [await ops.run_schedule("nightly", actor="ada") for _ in range(2)]
    assert len({run.id for run in runs}) == 2, "every run by hand is a run"
    rows = await all_deliveries(store)
    assert [(row.consumer, row.queue, row.status) for row in rows] == [("nightly", "slow", Status.PENDING)] * 2
    assert [act[1] for act in await acts(store)] == ["pause", "resume", "run", "run"]


async def test_pruning_counts_first_and_removes_what_it_counted(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.*"]})
    await one_in_each_state(store)
    await put(store, *(message() for _ in range(3)))
    for claimed in await claim_all(store):
        await finish(store, claimed, Deliver())
    await catch_up_fully(store)
    age(store, 48 * HOUR)
    # Ids carry their time: rows and messages of two days ago have ids of two days ago.
    for table, column in (("delivery", "id"), ("delivery", "message_id"), ("message", "id")):
        _backdate(store, table, column)
    counted = await ops.prunable(24 * HOUR, discarded=True, messages=True)
    assert (counted.delivered, counted.discarded) == (4, 1)
    assert await ops.prunable(24 * HOUR) == Pruned(delivered=4)
    before = len(await all_deliveries(store))
    seen: list[Pruned] = []
    removed = await ops.prune(24 * HOUR, actor="ada", discarded=True, messages=True, progress=seen.append)
    assert removed == counted == seen[-1]
    left = await all_deliveries(store)
    assert len(left) == before - 5
    assert any(row.status is Status.FAILED for row in left), "dead letters stay"
    assert len(await ops.messages()) == len({row.message_id for row in left})
    assert (await acts(store))[-1][:3] == ("ada", "prune", "store")


async def test_nothing_young_is_pruned(store: Store, ops: Operations) -> None:
    await dead_letters(store, 1)
    await one_in_each_state(store)
    assert await ops.prune(HOUR, actor="ada", discarded=True, messages=True) == Pruned()


async def test_the_audit_is_read_by_item_and_page(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 3)
    await ops.replay(ids, actor="ada", reason="again")
    (entry,) = await ops.audit(target=("delivery", str(ids[0])))
    assert (entry.actor, entry.action, entry.reason) == ("ada", "replay", "again")
    await ops.pause_queue("default", actor="bob")
    (newest,) = await ops.audit(limit=1)
    (older,) = await ops.audit(limit=10, before=newest.id)
    assert (newest.kind, older.kind) == ("queue", "plan"), "three deliveries are one plan"
    assert (await ops.deliveries(Filter(ids=(ids[0],))))[0].delivery.status is Status.PENDING


def _backdate(store: Store, table: str, column: str) -> None:
    # 48 hours are 172,800,000 ms; the first 48 bits of an id are milliseconds.
    for (value,) in sql(store, f"select {column} from {{hf}}{table}"):
        text = str(value)
        early = int(text.replace("-", "")[:12], 16) - 172_800_000
        digits = f"{early:012x}"
        new = f"{digits[:8]}-{digits[8:12]}{text[13:]}"
        sql(store, f"update {{hf}}{table} set {column} = '{new}' where {column} = '{text}'")
