"""Plans act on what was previewed: once, audited, resumable, with an exact report."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.delivery import Claim, Status
from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Address
from holdfast.ops.plans import Plan, Report
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import audit
from holdfast.stores.admin.plan import Action, PlanState, SkipReason, StoredPlan, plan_items
from holdfast.stores.admin.plan_creation import PlanRequest, create_plan
from holdfast.stores.deliveries.settle import ClaimState, claim_states
from holdfast.stores.operation import Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.servers.postgres import PostgresServer
from tests.servers.tables import empty
from tests.stores.concurrency.query_hook import before_each_query
from tests.support.builders import (
    all_deliveries,
    claim_all,
    delivery,
    failure,
    finish,
    fresh_id,
    job,
    message,
    put,
    register_consumers,
    sql,
    start,
    until_one_waits,
)
from tests.support.failures import dead_letters, fail_pending, one_in_each_state


async def replays(store: Store) -> dict[UUID, int]:
    """How often each delivery was replayed, by the audit."""
    found: dict[UUID, int] = {}
    for entry in await store.run(audit(limit=1000)):
        if entry.kind == "delivery" and entry.action == "replay":
            found[UUID(entry.target)] = found.get(UUID(entry.target), 0) + 1
    return found


async def ids_of(plan: Plan) -> tuple[UUID, ...]:
    """The deliveries that a plan acts on, in its order."""
    return tuple(one.id for one in await Operations(plan.store).plan_items(plan.id, limit=1000) if one.why is None)


async def exported(plan: Plan) -> Any:
    """A plan as it is written to a file and read again."""
    return orjson.loads(orjson.dumps(await Operations(plan.store).export_plan(plan.id)))


async def test_a_preview_shows_what_it_holds_and_changes_nothing(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 3)
    await dead_letters(store, 1, consumer="export")
    await start(store, "w-41", ["mail"], generation=41)
    before = await all_deliveries(store)
    plan = await ops.plan_replay(Filter(), limit=3)
    assert await ids_of(plan) == tuple(ids), "the oldest first"
    assert (plan.items, plan.preview.remaining) == (3, 1)
    assert plan.preview.consumers == {"mail": 3}
    items = await ops.plan_items(plan.id)
    assert [(item.status, item.generation, item.to_generation) for item in items] == [(Status.FAILED, 0, 41)] * 3
    assert plan.preview.changes == {"mail": [[0, 41]]}
    assert plan.preview.unserved == []
    everything = await ops.plan_replay(Filter(), limit=10)
    assert everything.preview.consumers == {"mail": 3, "export": 1}
    assert everything.preview.unserved == ["export"]
    assert everything.preview.remaining == 0
    assert await all_deliveries(store) == before


async def test_a_plan_acts_on_what_was_previewed_and_not_on_what_came_since(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 2)
    plan = await ops.plan_replay(Filter(consumers=("mail",)))
    since = await dead_letters(store, 2)
    report = await plan.execute(actor="ada", reason="fixed in 42", generation=42)
    assert (set(report.done), report.skipped, report.earlier) == (set(ids), (), 0)
    for id in ids:
        row = await delivery(store, id)
        assert (row.status, row.generation, row.attempts, row.last_error) == (Status.PENDING, 42, 0, None)
        assert (row.failure_history[-1].replayed_by, row.failure_history[-1].reason) == ("ada", "fixed in 42")
    assert {(await delivery(store, id)).status for id in since} == {Status.FAILED}


async def test_what_cannot_be_replayed_is_named_with_its_reason(store: Store, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    absent = fresh_id()
    plan = await ops.plan_replay(Filter(ids=(*ids.values(), absent)))
    assert await ids_of(plan) == (ids["failed"],)
    assert {one.id: one.why for one in await ops.plan_items(plan.id, skipped=True)} == {
        ids["delivered"]: SkipReason.DELIVERED,
        ids["discarded"]: SkipReason.DISCARDED,
        ids["in_flight"]: SkipReason.IN_FLIGHT,
        ids["retrying"]: SkipReason.PENDING,
        absent: SkipReason.NOT_FOUND,
    }
    report = await plan.execute(actor="ada")
    assert report.done == (ids["failed"],)
    assert len(report.skipped) == 5
    assert await replays(store) == {ids["failed"]: 1}


async def test_done_work_is_run_again_only_on_request(store: Store, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    plain = await ops.plan_replay(Filter(statuses=(Status.DELIVERED,)))
    assert (plain.items, plain.skipped) == (0, {SkipReason.DELIVERED: 1})
    plan = await ops.plan_replay(Filter(statuses=(Status.DELIVERED,)), rerun=True)
    report = await plan.execute(actor="ada")
    assert report.done == (ids["delivered"],)
    assert (await delivery(store, ids["delivered"])).status is Status.PENDING


async def test_executing_a_plan_twice_replays_once(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 3)
    plan = await ops.plan_replay(Filter())
    assert len((await plan.execute(actor="ada")).done) == 3
    await fail_pending(store)
    again = await plan.execute(actor="ada")
    assert (again.done, again.earlier, again.skipped) == ((), 3, ())
    assert await replays(store) == dict.fromkeys(ids, 1)


async def test_two_operators_at_once_replay_each_delivery_once(
    place: Callable[[], Store], store: Store, ops: Operations
) -> None:
    ids = await dead_letters(store, 150)
    other = place()
    theirs = Operations(other)
    plans = await asyncio.gather(ops.plan_replay(Filter(), limit=200), theirs.plan_replay(Filter(), limit=200))
    assert await ids_of(plans[0]) == await ids_of(plans[1])
    ada, bob = await asyncio.gather(plans[0].execute(actor="ada"), plans[1].execute(actor="bob"))
    assert sorted([*ada.done, *bob.done]) == sorted(ids)
    for mine, others in ((ada, "bob"), (bob, "ada")):
        assert {one.why for one in mine.skipped} <= {SkipReason.PENDING}
        assert {one.by for one in mine.skipped} <= {others}
        assert len(mine.done) + len(mine.skipped) == len(ids)
    assert await replays(store) == dict.fromkeys(ids, 1)
    await other.close()


async def test_an_interrupted_plan_continues_where_it_stopped(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 250)
    plan = await ops.plan_replay(Filter(), limit=1000)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupted:
        await plan.execute(actor="ada", progress=interrupt)
    (note,) = interrupted.value.__notes__
    assert note.startswith(f"plan {plan.id} paused; `holdfast plans resume {plan.id}` continues it")
    done = await replays(store)
    assert len(done) == 100
    # What it replayed has failed again: that is another failure, and not this plan's to act on.
    await fail_pending(store)
    kept = await exported(plan)
    seen: list[StoredPlan] = []
    again = await (await ops.load_plan(kept)).execute(actor="bob", progress=seen.append)
    assert (len(again.done), again.earlier, again.skipped) == (150, 100, ())
    assert await replays(store) == dict.fromkeys(ids, 1)
    assert (seen[-1].done, seen[-1].skipped, seen[-1].total) == (250, {}, 250)
    entries = (await store.run(audit(limit=10, target=("plan", str(plan.id)))))[::-1]
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("ada", "start"),
        ("ada", "replay"),
        ("ada", "pause"),
        ("bob", "resume"),
        ("ada", "replay"),
        ("ada", "replay"),
        ("ada", "finish"),
    ]
    batches = [entry.detail["deliveries"] for entry in entries if entry.action == "replay"]  # type: ignore[index]
    assert sorted(id for batch in batches for id in batch) == sorted(map(str, ids))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
async def test_an_error_after_the_last_batch_is_raised_unchanged(
    store: Store, ops: Operations, error: type[BaseException]
) -> None:
    await dead_letters(store, 3)
    plan = await ops.plan_replay(Filter())

    def fail(_: object) -> None:
        raise error

    with pytest.raises(error) as raised:
        await plan.execute(actor="ada", progress=fail)
    assert (await ops.plan(plan.id)).state is PlanState.DONE
    (note,) = raised.value.__notes__
    assert note.startswith(f"plan {plan.id} is done")


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_interrupted_plan_that_cannot_be_paused_says_so(store: Store, ops: Operations, blocking: bool) -> None:
    """Its table is renamed at the interruption, so the pause fails; workers would continue it."""
    await dead_letters(store, 150)
    plan = await ops.plan_replay(Filter())
    schema = "" if isinstance(store, PostgresStore) else "{hf}"

    def interrupt(_: object) -> None:
        sql(store, f"alter table {{hf}}plan rename to {schema}plan_renamed")
        raise KeyboardInterrupt

    async def execute() -> Report:
        if blocking:
            return plan.sync.execute(actor="ada", progress=interrupt)
        return await plan.execute(actor="ada", progress=interrupt)

    with pytest.raises(KeyboardInterrupt) as interrupted:
        await execute()
    sql(store, f"alter table {{hf}}plan_renamed rename to {schema}plan")
    (note,) = interrupted.value.__notes__
    assert note.startswith(f"plan {plan.id} could not be paused, so workers may continue it; `holdfast plans pause")
    assert (await ops.plan(plan.id)).state is PlanState.RUNNING


async def test_a_delivery_that_is_pruned_while_a_plan_is_made_is_in_it_once(postgres_store: PostgresStore) -> None:
    """On SQLite nothing is written by others during a transaction."""
    ids = await dead_letters(postgres_store, 3)

    def prune(query: Query) -> None:
        if query.name == "add_missing_plan_items":
            sql(postgres_store, f"delete from {{hf}}delivery where id = '{ids[0]}'")

    request = PlanRequest(action=Action.REPLAY, filter=Filter(ids=(*ids, absent := fresh_id())))
    plan = await postgres_store.run(before_each_query(create_plan(request, None, None), prune))
    items = await postgres_store.run(plan_items(plan.id))
    assert sorted(one.id for one in items) == sorted([*ids, absent])
    assert (plan.total, plan.items) == (4, 3)


async def test_a_plan_that_was_never_started_can_be_deleted(store: Store, ops: Operations) -> None:
    await dead_letters(store, 3)
    started, plan = await ops.plan_replay(Filter()), await ops.plan_replay(Filter())
    await ops.start_plan(started.id, actor="ada")
    assert await ops.delete_plan(plan.id)
    assert not await ops.delete_plan(plan.id)
    assert not await ops.delete_plan(started.id)
    assert [one.id for one in await ops.plans()] == [started.id]
    assert sql(store, "select distinct plan_id from {hf}plan_item where plan_id is not null") in (
        [(started.id,)],
        [(str(started.id),)],
    )


async def test_a_cancelled_execution_leaves_no_running_plan(store: Store, ops: Operations) -> None:
    await dead_letters(store, 20)
    for n in range(20):
        plan = await ops.plan_replay(Filter(), limit=1)
        task = asyncio.create_task(plan.execute(actor="ada"))
        await asyncio.sleep(n / 2000)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or not task.exception(), n
        assert (await ops.plan(plan.id)).state is not PlanState.RUNNING, n


async def test_an_execution_that_another_user_pauses_reports_the_rest(store: Store, ops: Operations) -> None:
    await dead_letters(store, 250)
    plan = await ops.plan_replay(Filter(), limit=1000)

    def pause(seen: StoredPlan) -> None:
        if seen.state is PlanState.RUNNING:
            ops.sync.pause_plan(plan.id, actor="bob")

    report = await plan.execute(actor="ada", progress=pause)
    assert (len(report.done), report.left) == (100, 150)


async def test_a_plan_of_another_version_is_read(store: Store, ops: Operations) -> None:
    await dead_letters(store, 1)
    plan = await ops.plan_replay(Filter())
    text = orjson.dumps({"consumers": {"c": 1}, "more": 0, "limit": 10}).decode()
    sql(store, f"update {{hf}}plan set preview = '{text}'")
    assert [one.id for one in await ops.plans()] == [plan.id]
    assert (await plan.execute(actor="ada")).left == 0


async def test_a_delivery_that_failed_again_since_the_preview_is_left_alone(store: Store, ops: Operations) -> None:
    (id,) = await dead_letters(store, 1)
    plan = await ops.plan_replay(Filter())
    await ops.replay([id], actor="bob")
    await fail_pending(store, text="another failure")
    report = await plan.execute(actor="ada")
    assert [(one.why, one.by) for one in report.skipped] == [(SkipReason.CHANGED, "bob")]
    assert await replays(store) == {id: 1}


async def test_a_job_whose_unique_key_is_held_is_left_alone(store: Store, ops: Operations) -> None:
    await put(store, job("mail", unique="daily"))
    await fail_pending(store)
    await put(store, job("mail", unique="daily"))
    plan = await ops.plan_replay(Filter())
    report = await plan.execute(actor="ada")
    assert (report.done, [one.why for one in report.skipped]) == ((), [SkipReason.KEY_HELD])


async def test_a_message_is_replayed_for_the_consumers_that_were_chosen(store: Store, ops: Operations) -> None:
    await register_consumers(store, {name: ["order.placed"] for name in ("billing", "mail", "totals")})
    (published,) = await put(store, message())
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    plan = await ops.plan_replay(Filter(message_id=published.id, consumers=("billing", "mail")))
    assert len((await plan.execute(actor="ada")).done) == 2
    states = {d.consumer: d.status for d in await all_deliveries(store)}
    assert states == {"billing": Status.PENDING, "mail": Status.PENDING, "totals": Status.FAILED}


async def test_discarding_sets_aside_what_was_previewed(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 2)
    plan = await ops.plan_discard(Filter(consumers=("mail",)))
    await ops.replay([ids[0]], actor="bob")
    report = await plan.execute(actor="ada", reason="duplicates")
    assert report.done == (ids[1],)
    assert [(one.id, one.why) for one in report.skipped] == [(ids[0], SkipReason.PENDING)]
    row = await delivery(store, ids[1])
    assert (row.status, row.discarded_at is not None) == (Status.FAILED, True)
    entries = [entry for entry in await store.run(audit()) if entry.action == "discard"]
    assert {(entry.actor, entry.reason) for entry in entries} == {("ada", "duplicates")}


async def test_cancelling_stops_what_waits_and_what_runs(store: Store, ops: Operations) -> None:
    await put(store, job("mail"), job("mail"))
    (running,) = await claim_all(store, limit=1)
    plan = await ops.plan_cancel(Filter(consumers=("mail",)))
    assert plan.items == 2
    (since,) = await claim_all(store, limit=1)
    report = await plan.execute(actor="ada", reason="stop")
    assert set(report.done) == {running.id, since.id}, "one that was claimed since is cancelled, too"
    holds = await store.run(claim_states([Claim(running.id, "w1", running.fence)]))
    assert holds[running.id] is ClaimState.LOST
    assert not await finish(store, since, Deliver())
    assert all(d.discarded_at is not None for d in await all_deliveries(store))


async def test_a_replay_takes_the_highest_living_generation(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 1)
    await start(store, "old", ["mail"], generation=7)
    await start(store, "new", ["mail"], generation=9)
    report: Report = await ops.replay(ids, actor="ada")
    assert report.done == tuple(ids)
    assert (await delivery(store, ids[0])).generation == 9


async def test_a_plan_acts_in_the_generation_it_showed_although_a_deploy_came_since(
    store: Store, ops: Operations
) -> None:
    ids = await dead_letters(store, 1)
    await start(store, "old", ["mail"], generation=7)
    plan = await ops.plan_replay(Filter())
    await start(store, "new", ["mail"], generation=9)
    await plan.execute(actor="ada")
    assert (await delivery(store, ids[0])).generation == 7


async def test_nothing_happens_without_an_actor_or_within_wrong_bounds(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 1)
    plan = await ops.plan_replay(Filter())
    for wrong in (plan.execute(actor=" "), plan.execute(actor="ada", generation=-1)):
        with pytest.raises(ConfigurationError):
            await wrong
    for limit in (0, -1, 1_000_000):
        with pytest.raises(ConfigurationError, match="limit"):
            await ops.plan_replay(Filter(), limit=limit)
    with pytest.raises(ValueError, match="pattern"):
        await ops.plan_replay(Filter(type="a..b"))
    assert (await delivery(store, ids[0])).status is Status.FAILED
    assert await store.run(audit()) == [], "an unnamed preview changes nothing"


async def test_a_plan_survives_json_and_a_changed_one_is_refused(store: Store, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    await put(store, message(addressed=[Address(consumer="mail")]))
    wanted = Filter(ids=tuple(ids.values()), statuses=tuple(Status), consumers=("mail",), since=await ops.now())
    for plan in (await ops.plan_replay(wanted), await ops.plan_discard(Filter(ids=tuple(ids.values())))):
        assert await ops.load_plan(await exported(plan)) == plan
    good = await exported(plan)
    fewer = {**good, "items": good["items"][1:]}
    other = {**good, "items": [{**good["items"][0], "id": str(ids["delivered"])}]}
    broken: Any
    for broken in (
        None,
        [],
        {},
        {**good, "version": 1},
        {**good, "action": "destroy"},
        {**good, "id": "x"},
        fewer,
        other,
    ):
        with pytest.raises(ConfigurationError, match="plan"):
            await ops.load_plan(broken)


def test_the_blocking_side_has_the_same_names(place: Callable[[], Store]) -> None:
    store = place()
    ops = Operations(store).sync
    ops.publish("order.placed", {"n": 1}, actor="ada")
    plan = ops.plan_replay(Filter())
    report = plan.sync.execute(actor="ada")
    assert (report.done, report.skipped) == ((), ())
    assert ops.stats().pending == 0
    store.close_sync()


async def test_a_batch_waits_for_a_locked_delivery_and_reads_it_again(
    postgres18: PostgresServer, database: Callable[[PostgresServer], str]
) -> None:
    """Another operator's replay has not committed yet, and by then the delivery has failed again."""
    dsn = database(postgres18)
    store = PostgresStore(dsn)
    (id,) = await dead_letters(store, 1)
    plan = await Operations(store).plan_replay(Filter())
    with psycopg.connect(dsn) as other:
        other.execute("update holdfast.delivery set fence = fence + 1")
        executing = asyncio.create_task(plan.execute(actor="ada"))
        await asyncio.to_thread(until_one_waits, store)
        other.commit()
    report = await executing
    assert [(one.id, one.why) for one in report.skipped] == [(id, SkipReason.CHANGED)]
    assert (await delivery(store, id)).status is Status.FAILED
    await store.close()
    empty(dsn)
