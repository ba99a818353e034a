"""Stored plans: saved once, started once, executed by any process; each delivery is acted on once."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.app.holdfast import Holdfast
from holdfast.core.change import DeadLetter
from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound, Refused, TerminalError
from holdfast.core.message import Address
from holdfast.core.retry import RetryPolicy
from holdfast.engine.worker.options import WorkerOptions
from holdfast.ops.plans import PlanRunner
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import audit
from holdfast.stores.admin.plan import PlanState, SkipReason, StoredPlan, forget_plan
from holdfast.stores.integrations.breaker import trip_breaker
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.builders import (
    all_deliveries,
    claim_all,
    failure,
    finish,
    fresh_id,
    message,
    put,
    register_consumers,
    sql,
    start,
)
from tests.support.failures import dead_letters, one_in_each_state

RUNNER = "tests.ops.programs.runner"


async def saved(ops: Operations, limit: int = 1000) -> StoredPlan:
    return await ops.plan_replay(Filter(), limit=limit, actor="ada", reason="looked at it")


async def run_to_end(ops: Operations, id: UUID, runner: str) -> list[StoredPlan]:
    steps = []
    while (await ops.plan(id)).state is PlanState.RUNNING:
        if (plan := await ops.advance_plan(id, runner=runner)) is None:
            await asyncio.sleep(0.02)
        else:
            steps.append(plan)
    return steps


async def audited(store: Store, kind: str, target: str | None = None) -> list[tuple[str, str]]:
    found, before = [], None
    while page := await store.run(audit(1000, before)):
        found += [(one.actor, one.action) for one in page if one.kind == kind and target in (None, one.target)]
        before = page[-1].id
    return found[::-1]


def address_of(store: Store) -> str:
    if isinstance(store, PostgresStore):
        return store.conninfo
    assert isinstance(store, SqliteStore)
    return str(store.path)


async def test_a_plan_is_created_started_and_executed_with_an_exact_report(store: Store, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    more = await dead_letters(store, 120, consumer="export")
    named = Filter(ids=(*ids.values(), *more, absent := fresh_id()))
    first = await ops.plan_replay(named, limit=1000, actor="ada", reason="look")
    assert await ops.plan(first.id) == first
    assert (first.state, first.total, first.done, first.left) == (PlanState.READY, 126, 0, 121)
    assert await ops.advance_plan(first.id, runner="r") is None, "it is not started"

    running = await ops.start_plan(first.id, actor="bob", reason="fixed in 42", generation=42)
    assert (running.state, running.started_by, running.generation) == (PlanState.RUNNING, "bob", 42)
    await ops.discard([more[0]], actor="eve")
    steps = await run_to_end(ops, first.id, "r")
    assert [step.done for step in steps] == [99, 120]
    done = await ops.plan(first.id)
    expected = {
        SkipReason.DELIVERED: 1,
        SkipReason.DISCARDED: 2,
        SkipReason.IN_FLIGHT: 1,
        SkipReason.PENDING: 1,
        SkipReason.NOT_FOUND: 1,
    }
    assert (done.state, done.done, done.skipped, done.left) == (PlanState.DONE, 120, expected, 0)
    assert done.ended_at is not None
    skipped = {one.id: one.why for one in await ops.plan_items(first.id, skipped=True)}
    assert skipped == {
        ids["delivered"]: SkipReason.DELIVERED,
        ids["discarded"]: SkipReason.DISCARDED,
        ids["in_flight"]: SkipReason.IN_FLIGHT,
        ids["retrying"]: SkipReason.PENDING,
        absent: SkipReason.NOT_FOUND,
        more[0]: SkipReason.DISCARDED,
    }
    page = await ops.plan_items(first.id, limit=100)
    rest = await ops.plan_items(first.id, limit=100, after=page[-1].n)
    assert {one.id for one in [*page, *rest] if one.done} == {ids["failed"], *more[1:]}
    replayed = await all_deliveries(store, Filter(ids=tuple(more[1:])))
    assert {(one.status, one.generation) for one in replayed} == {(Status.PENDING, 42)}
    assert await audited(store, "plan", str(first.id)) == [
        ("ada", "save"),
        ("bob", "start"),
        ("bob", "replay"),
        ("bob", "replay"),
        ("bob", "finish"),
    ]
    assert set(await audited(store, "delivery", str(more[1]))) == {("bob", "replay")}


async def test_of_two_concurrent_starts_one_is_refused_with_the_name_of_the_first(
    store: Store, ops: Operations
) -> None:
    await dead_letters(store, 3)
    plan = await saved(ops)
    outcomes = await asyncio.gather(
        *(ops.start_plan(plan.id, actor=name) for name in ("ada", "bob")), return_exceptions=True
    )
    refused = [one for one in outcomes if isinstance(one, Refused)]
    started = [one for one in outcomes if isinstance(one, StoredPlan)]
    assert len(refused) == len(started) == 1
    assert f"started by {started[0].started_by}" in str(refused[0])
    with pytest.raises(NotFound, match="no plan"):
        await ops.start_plan(fresh_id(), actor="ada")


async def test_two_plans_of_two_operators_and_many_runners_rerun_each_delivery_once(
    place: Callable[[], Store], store: Store, ops: Operations
) -> None:
    ids = await dead_letters(store, 350)
    plans = [await saved(ops), await saved(ops)]
    for plan, name in zip(plans, ("ada", "bob"), strict=True):
        await ops.start_plan(plan.id, actor=name)
    runners = [Operations(place()) for _ in range(3)]
    await asyncio.gather(*(run_to_end(one, plan.id, f"r{n}") for n, one in enumerate(runners) for plan in plans))
    ended = [await ops.plan(plan.id) for plan in plans]
    assert sum(plan.done for plan in ended) == 350
    assert [plan.done + plan.skipped.get(SkipReason.PENDING, 0) for plan in ended] == [350, 350]
    for plan, other in zip(ended, ("bob", "ada"), strict=True):
        skipped = await ops.plan_items(plan.id, skipped=True, limit=1000)
        assert {one.by for one in skipped} <= {other}, "it says who was first"
    entries = Counter(one.target for one in await _replays(store))
    assert entries == Counter(map(str, ids)), "one rerun each, each audited"
    for one in runners:
        await one.store.close()


@pytest.mark.long
async def test_a_plan_whose_runner_is_killed_is_continued_and_nothing_is_done_twice(
    store: Store, ops: Operations
) -> None:
    ids = [id for name in ("mail", "export", "billing") for id in await dead_letters(store, 500, consumer=name)]
    plan = await ops.plan_replay(Filter(), limit=2000, actor="ada")
    await ops.start_plan(plan.id, actor="ada", reason="fixed")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        RUNNER,
        store.dialect.name,
        address_of(store),
        str(plan.id),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await process.stdout.readline()
    process.kill()
    await process.communicate()
    cut = await ops.plan(plan.id)
    assert cut.state is PlanState.RUNNING
    assert 200 <= cut.done < 1500
    await asyncio.gather(*(run_to_end(ops, plan.id, name) for name in ("heir", "rival")))
    ended = await ops.plan(plan.id)
    assert (ended.state, ended.done, ended.skipped) == (PlanState.DONE, 1500, {})
    assert Counter(one.target for one in await _replays(store)) == Counter(map(str, ids))


async def test_another_waits_while_a_runner_has_the_lease(store: Store, ops: Operations) -> None:
    await dead_letters(store, 250)
    plan = await saved(ops)
    await ops.start_plan(plan.id, actor="ada")
    assert await ops.advance_plan(plan.id, runner="first") is not None
    assert await ops.advance_plan(plan.id, runner="second") is None
    assert await ops.advance_plans(runner="second") == 0
    sql(
        store,
        "update {hf}plan set lease_until = " + ("0" if isinstance(store, SqliteStore) else "now() - interval '1s'"),
    )
    taken = await ops.advance_plan(plan.id, runner="second")
    assert taken is not None
    assert (taken.runner, taken.done) == ("second", 200)


async def test_a_paused_plan_does_nothing_until_it_is_resumed_and_an_abandoned_one_never(
    store: Store, ops: Operations
) -> None:
    await dead_letters(store, 250)
    plan = await saved(ops)
    with pytest.raises(Refused, match="ready"):
        await ops.pause_plan(plan.id, actor="ada")
    await ops.start_plan(plan.id, actor="ada")
    await ops.advance_plan(plan.id, runner="r")
    assert (await ops.pause_plan(plan.id, actor="bob", reason="wait")).state is PlanState.PAUSED
    assert await ops.advance_plan(plan.id, runner="r") is None
    await ops.resume_plan(plan.id, actor="bob")
    assert (await ops.advance_plan(plan.id, runner="other")) is not None, "a pause takes the lease back"
    ended = await ops.abandon_plan(plan.id, actor="eve")
    assert (ended.state, ended.done, ended.left) == (PlanState.ABANDONED, 200, 50)
    with pytest.raises(Refused, match="abandoned"):
        await ops.resume_plan(plan.id, actor="bob")
    assert await audited(store, "plan", str(plan.id)) == [
        ("ada", "save"),
        ("ada", "start"),
        ("ada", "replay"),
        ("bob", "pause"),
        ("bob", "resume"),
        ("ada", "replay"),
        ("eve", "abandon"),
    ]


async def test_what_is_in_flight_is_cancelled_alone_and_last(store: Store, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    stored = await ops.plan_cancel(Filter(), limit=10, actor="ada")
    await ops.start_plan(stored.id, actor="ada")
    steps = await run_to_end(ops, stored.id, "r")
    assert [step.done for step in steps] == [1, 2]
    assert [one.id for one in await ops.plan_items(stored.id)] == [ids["retrying"], ids["in_flight"]]


async def test_the_plan_runner_executes_every_running_plan(store: Store, ops: Operations) -> None:
    await dead_letters(store, 5)
    empty = await ops.plan_discard(Filter(consumers=("nobody",)), actor="ada")
    full = await saved(ops)
    for plan in (empty, full):
        await ops.start_plan(plan.id, actor="ada")
    await PlanRunner(store).perform("w1")
    assert [(one.id, one.state, one.done) for one in await ops.plans()] == [
        (full.id, PlanState.DONE, 5),
        (empty.id, PlanState.DONE, 0),
    ]
    assert await ops.plans(state=PlanState.RUNNING) == []
    assert [one.id for one in await ops.plans(before=full.id)] == [empty.id]


async def test_a_worker_executes_a_started_plan(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")
    broken, billed, all_billed = True, set[int](), asyncio.Event()

    @hf.job()
    async def bill(n: int) -> None:
        if broken:
            raise TerminalError("no")
        billed.add(n)
        if len(billed) == 3:
            all_billed.set()

    for n in range(3):
        await bill.enqueue(n)
    await hf.work(WorkerOptions(until_idle=True))
    broken = False
    stored = await hf.ops.plan_replay(Filter(), actor="ada")
    await hf.ops.start_plan(stored.id, actor="ada")
    stop = asyncio.Event()
    working = asyncio.create_task(hf.work(stop=stop))
    async with asyncio.timeout(60):
        await all_billed.wait()
    stop.set()
    await working
    done = await hf.ops.plan(stored.id)
    assert (done.state, done.done) == (PlanState.DONE, 3)
    await hf.close()


async def test_a_preview_lists_the_obstacles(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": [], "export": []})
    await start(store, "w-7", ["mail"], generation=7)
    to = [Address(consumer="mail", retry=RetryPolicy.none()), Address(consumer="export")]
    await put(store, message(key="k1", addressed=to), message(type="order.paid", key="k2", addressed=to))
    for claimed in await claim_all(store, consumers=["mail", "export"], generation=7):
        assert await finish(store, claimed, DeadLetter(), error=failure())
    sql(
        store,
        "insert into {hf}handled (consumer, source, key, delivery_id) select 'mail', 'shop', 'k1', d.id "
        "from {hf}delivery d where d.consumer = 'mail' limit 1",
    )
    await store.run(trip_breaker("payments", timedelta(minutes=5), "ada", None))
    plan = await ops.plan_replay(Filter())
    preview = plan.preview
    assert preview.consumers == {"export": 2, "mail": 2}
    assert preview.types == {"order.paid": 2, "order.placed": 2}
    assert list(preview.groups.values()) == [4]
    assert preview.generations == {"0": 2, "7": 2}
    assert preview.unserved == ["export"]
    assert preview.handled == 1
    assert [(one.name, one.consumer) for one in preview.circuits] == [("payments", None)]
    assert preview.circuits[0].until is not None
    assert (await ops.plan(plan.id)).preview == preview


async def test_old_plans_are_removed_and_running_ones_are_not(store: Store, ops: Operations) -> None:
    await dead_letters(store, 2)
    kept = await saved(ops)
    await ops.start_plan(kept.id, actor="ada")
    await saved(ops)
    assert not await store.run(forget_plan(timedelta(hours=1)))
    await asyncio.sleep(0.01)
    assert await store.run(forget_plan(timedelta(0)))
    assert not await store.run(forget_plan(timedelta(0)))
    assert [one.id for one in await ops.plans()] == [kept.id]
    assert len(await ops.plan_items(kept.id)) == 2


async def _replays(store: Store) -> list:
    found, before = [], None
    while page := await store.run(audit(1000, before)):
        found += [one for one in page if (one.kind, one.action) == ("delivery", "replay")]
        before = page[-1].id
    return found
