"""Following a replay: how many of its deliveries were delivered, and how many are dead again."""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.ops.service import Operations
from holdfast.stores.admin import plan_results
from holdfast.stores.admin.plan import PlanState, ReplayResult, StoredPlan
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import claim_all, failure, finish, sql
from tests.support.failures import dead_letters


async def replayed(store: Store, ops: Operations, count: int) -> StoredPlan:
    """A replay of so many dead letters, executed to its end."""
    await dead_letters(store, count)
    plan = await ops.plan_replay(Filter(), actor="ada")
    await ops.start_plan(plan.id, actor="ada")
    await ops.advance_plans(runner="r")
    return await ops.plan(plan.id)


async def test_a_plan_counts_what_was_delivered_and_what_died_again(store: Store, ops: Operations) -> None:
    plan = await replayed(store, ops, 12)
    assert (plan.state, plan.done, plan.results, plan.unsettled) == (PlanState.DONE, 12, {}, 12)
    claimed = await claim_all(store, generation=1000)
    for one in claimed[:9]:
        await finish(store, one, Deliver())
    await finish(store, claimed[9], DeadLetter(), error=failure())
    assert await ops.follow_plans() == 10
    assert await ops.follow_plans() == 0, "each is counted once"
    halfway = await ops.plan(plan.id)
    assert (halfway.results, halfway.unsettled) == ({ReplayResult.DELIVERED: 9, ReplayResult.DEAD: 1}, 2)
    assert halfway.settled_at is None
    assert [one.id for one in await ops.plan_items(plan.id, dead=True)] == [claimed[9].id]

    again = await ops.replay([claimed[9].id], actor="bob")
    await finish(store, claimed[10], Deliver())
    await ops.cancel([claimed[11].id], actor="bob")
    await ops.follow_plans()
    after = await ops.plan(plan.id)
    assert after.results == {ReplayResult.DELIVERED: 10, ReplayResult.DEAD: 1, ReplayResult.DISCARDED: 1}, (
        "what another plan does is its own"
    )
    assert (after.unsettled, after.settled_at is not None) == (0, True)
    assert await store.run(plan_results.unsettled_plans()) == [], "of the replay of one delivery nothing has ended"
    (waiting,) = await claim_all(store, generation=1000)
    await finish(store, waiting, Deliver())
    assert await store.run(plan_results.unsettled_plans()) == [again.plan]
    await ops.follow_plans()
    assert (await ops.plan(again.plan)).results == {ReplayResult.DELIVERED: 1}
    assert await store.run(plan_results.unsettled_plans()) == []


async def test_what_was_pruned_before_anybody_looked_is_counted(store: Store, ops: Operations) -> None:
    plan = await replayed(store, ops, 2)
    for one in await claim_all(store, generation=1000):
        await finish(store, one, Deliver())
    sql(store, "delete from {hf}delivery")
    await ops.follow_plans()
    assert (await ops.plan(plan.id)).results == {ReplayResult.PRUNED: 2}


async def test_a_backlog_is_looked_at_in_turns_and_all_of_it_in_the_end(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batches hold nothing that ended: a pass stops there, and the next one continues behind them."""
    monkeypatch.setattr(plan_results, "_BATCH", 2)
    plan = await replayed(store, ops, 20)
    claimed = sorted(await claim_all(store, generation=1000), key=lambda one: one.id)
    for one in claimed[15:]:
        await finish(store, one, Deliver())
    passes = 0
    while (await ops.plan(plan.id)).results != {ReplayResult.DELIVERED: 5}:
        await ops.follow_plans()
        passes += 1
        assert passes < 10
    assert passes > 1, "one pass does not read the whole backlog"


async def test_a_plan_that_still_runs_is_not_settled(store: Store, ops: Operations) -> None:
    await dead_letters(store, 150)
    plan = await ops.plan_replay(Filter(), actor="ada")
    await ops.start_plan(plan.id, actor="ada")
    await ops.advance_plan(plan.id, runner="r", lease=timedelta(0))
    for one in await claim_all(store, generation=1000):
        await finish(store, one, Deliver())
    await ops.follow_plans()
    running = await ops.plan(plan.id)
    assert (running.results, running.settled_at) == ({ReplayResult.DELIVERED: 100}, None)
    await ops.advance_plans(runner="r")
    for one in await claim_all(store, generation=1000):
        await finish(store, one, Deliver())
    await ops.follow_plans()
    done = await ops.plan(plan.id)
    assert (done.results, done.settled_at is not None) == ({ReplayResult.DELIVERED: 150}, True)
