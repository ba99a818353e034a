"""Runs in the stores: what advances them, what does not, and who may."""

from datetime import timedelta
from uuid import UUID

import orjson

from holdfast.core.change import DeadLetter
from holdfast.core.delivery import Claim
from holdfast.core.identity import first_id
from holdfast.engine.workflows.sweeper import RunSweeper
from holdfast.stores.admin.actions import replay
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.settle import ClaimState, claim_states, complete
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from holdfast.stores.queries.time_travel import abandon, travel
from holdfast.stores.workflows.advance import advance, advance_completed, complete_step, items_join
from holdfast.stores.workflows.failure import cancel_run, fail_step
from holdfast.stores.workflows.items import start_items
from holdfast.stores.workflows.run import start_runs
from holdfast.stores.workflows.wait import Suspension, memo, resolve_wait, send_signal, suspend
from tests.stores.workflows.run_steps import (
    claim_steps,
    declare,
    end,
    events,
    finish_all,
    finish_steps,
    new_run,
    run_row,
    started,
    steps_of,
)
from tests.support.builders import all_deliveries, claim_of, failure, fresh_id, outcome, sql

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def waiting(claimed: Claimed, seen: int = 0, delay: timedelta | None = HOUR) -> Suspension:
    return Suspension(claimed.message_id, "a/wait:go", 0, claimed.id, claimed.fence, seen, "go", delay)


async def test_completed_steps_make_the_next_ones_due_and_end_the_run(store: Store) -> None:
    (run,) = await started(store)
    assert await steps_of(store, run) == {"a": "pending"}
    advanced = await finish_steps(store, await claim_steps(store))
    assert len(advanced.settled) == 1
    assert await steps_of(store, run) == {"a": "delivered", "b": "pending", "c": "pending"}
    b, c = await claim_steps(store)
    await finish_steps(store, [b])
    assert "d" not in await steps_of(store, run)
    await finish_steps(store, [c])
    assert await steps_of(store, run) == {"a": "delivered", "b": "delivered", "c": "delivered", "d": "pending"}
    (ended,) = (await finish_steps(store, await claim_steps(store))).ended
    assert (ended.run_id, str(ended.status)) == (run, "done")


async def test_each_run_that_ends_in_a_batch_has_an_event_with_its_source_and_generation(store: Store) -> None:
    runs = await started(store, 25)
    await finish_all(store, 2)
    last = [end(claimed) for claimed in await claim_steps(store)]
    last = [one if n % 5 else one._replace(source="desk", generation=3) for n, one in enumerate(last)]
    await store.run(advance("w1", last, events()))
    rows = sql(store, "select payload, source, generation from {hf}message where type = 'workflow.done'")
    found = {}
    for payload, source, generation in rows:
        event = payload if isinstance(payload, dict) else orjson.loads(str(payload))
        assert (event["workflow"], event["reason"]) == ("flow", None)
        found[UUID(event["run"])] = source, generation
    assert found == {one.run_id: (one.source, one.generation) for one in last}
    assert found.keys() == set(runs)


async def test_both_sides_of_a_join_in_one_batch_start_it_once(store: Store) -> None:
    runs = await started(store, 20)
    await finish_all(store)
    assert [run_row(store, run) for run in runs] == ["done"] * 20
    assert len(await all_deliveries(store)) == 80


async def test_one_batch_takes_steps_from_every_part_of_a_run(store: Store) -> None:
    ending, joining = await started(store, 2)
    await finish_steps(store, await claim_steps(store))
    sides = await claim_steps(store)
    last = next(one for one in sides if one.message_id == joining)
    await finish_steps(store, [one for one in sides if one is not last])
    (beginning,) = await started(store)
    claims = await claim_steps(store)
    assert {one.message_id for one in claims} == {ending, beginning}
    advanced = await finish_steps(store, [*claims, last])
    assert len(advanced.settled) == 3
    assert [run.run_id for run in advanced.ended] == [ending]
    assert (await steps_of(store, joining))["d"] == "pending"
    assert await steps_of(store, beginning) == {"a": "delivered", "b": "pending", "c": "pending"}


async def test_a_stale_owner_advances_nothing(store: Store) -> None:
    (run,) = await started(store)
    (stale,) = await claim_steps(store)
    await store.run(abandon(stale.id))
    await claim_steps(store)
    assert (await finish_steps(store, [stale])).settled == frozenset()
    assert await steps_of(store, run) == {"a": "in_flight"}


async def test_another_worker_advances_nothing(store: Store) -> None:
    (run,) = await started(store)
    claims = await claim_steps(store)
    assert (await finish_steps(store, claims, "w2")).settled == frozenset()
    assert await steps_of(store, run) == {"a": "in_flight"}


async def test_a_second_completion_of_a_step_does_not_count(store: Store) -> None:
    (run,) = await started(store)
    await finish_steps(store, await claim_steps(store))
    b, _ = await claim_steps(store)
    await finish_steps(store, [b])
    await store.run(replay([b.id], "ada", None, rerun=True))
    await finish_steps(store, await claim_steps(store, steps=[b.consumer]))
    assert "d" not in await steps_of(store, run)


async def test_a_run_that_was_cancelled_is_not_advanced(store: Store) -> None:
    (run,) = await started(store)
    claims = await claim_steps(store)
    sql(store, f"update {{hf}}workflow_run set status = 'cancelled' where id = '{run}'")
    assert (await finish_steps(store, claims)).settled == frozenset()
    assert set(await steps_of(store, run)) == {"a"}


async def test_cancelling_fences_what_runs_and_discards_what_waits(store: Store) -> None:
    (run,) = await started(store)
    await finish_steps(store, await claim_steps(store))
    (b,) = await claim_steps(store, steps=["flow/b"])
    assert await store.run(cancel_run(run, "no", events()))
    assert await store.run(cancel_run(run, "no", events())) is False
    states = await store.run(claim_states([Claim(b.id, "w1", b.fence)]))
    assert states == {b.id: ClaimState.LOST}
    sql(store, f"update {{hf}}workflow_run set status = 'running' where id = '{run}'")
    assert (await finish_steps(store, [b])).settled == frozenset()
    assert await steps_of(store, run) == {"a": "delivered", "b": "failed", "c": "failed"}


async def test_a_suspended_step_is_due_at_its_time_and_has_its_attempt_back(store: Store) -> None:
    await started(store)
    (claimed,) = await claim_steps(store)
    assert await store.run(suspend("w1", [waiting(claimed)])) == {claimed.id}
    (row,) = await all_deliveries(store)
    assert (row.status.value, row.attempts) == ("pending", 0)
    assert await claim_steps(store) == []
    await store.run(travel(HOUR + SECOND))
    assert len(await claim_steps(store)) == 1


async def test_a_signal_between_the_start_of_a_step_and_its_suspension_makes_it_due(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    assert await store.run(send_signal(fresh_id(), run, "go", "1"))
    await store.run(suspend("w1", [waiting(claimed, seen=0)]))
    assert len(await claim_steps(store)) == 1


async def test_a_signal_wakes_the_step_that_waits_for_it_and_no_other(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    await store.run(suspend("w1", [waiting(claimed)]))
    await store.run(send_signal(fresh_id(), run, "other", "1"))
    assert await claim_steps(store) == []
    await store.run(send_signal(fresh_id(), run, "go", "1"))
    assert len(await claim_steps(store)) == 1


async def test_a_stale_owner_suspends_remembers_and_resolves_nothing(store: Store) -> None:
    (run,) = await started(store)
    (stale,) = await claim_steps(store)
    claim = Claim(stale.id, "w1", stale.fence)
    await store.run(send_signal(fresh_id(), run, "go", "1"))
    await store.run(abandon(stale.id))
    await claim_steps(store)
    assert await store.run(suspend("w1", [waiting(stale, seen=1)])) == frozenset()
    assert not await store.run(memo(claim, run, "a/memo", 0, "1"))
    assert not (await store.run(resolve_wait(claim, run, "a/wait:go", 0, "go"))).held
    assert sql(store, "select name from {hf}workflow_step") == []


async def test_another_worker_suspends_remembers_and_resolves_nothing(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    claim = Claim(claimed.id, "w2", claimed.fence)
    await store.run(send_signal(fresh_id(), run, "go", "1"))
    assert await store.run(suspend("w2", [waiting(claimed, seen=1)])) == frozenset()
    assert not await store.run(memo(claim, run, "a/memo", 0, "1"))
    assert not (await store.run(resolve_wait(claim, run, "a/wait:go", 0, "go"))).held
    assert sql(store, "select name from {hf}workflow_step") == []


async def test_a_wait_has_one_outcome_and_takes_one_signal(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    claim = Claim(claimed.id, "w1", claimed.fence)
    # Ids of the same millisecond are in random order.
    for id, n in zip(sorted([fresh_id(), fresh_id()]), "12", strict=True):
        await store.run(send_signal(id, run, "go", n))
    for _ in range(2):
        found = await store.run(resolve_wait(claim, run, "a/wait:go", 0, "go"))
        assert (found.outcome, found.result) == ("signal", "1")
    assert (await store.run(resolve_wait(claim, run, "a/wait:go", 1, "go"))).result == "2"
    assert (await store.run(resolve_wait(claim, run, "a/wait:go", 2, "go"))).outcome is None


async def test_a_completed_step_is_advanced_once(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    step = end(claimed)
    await store.run(complete_step(complete(Claim(claimed.id, "w1", claimed.fence), HOUR), step))
    for _ in range(2):
        await store.run(advance_completed(*step[:3], step.next, "shop", 0, events()))
    b, _ = await claim_steps(store)
    step = end(b)
    await store.run(complete_step(complete(Claim(b.id, "w1", b.fence), HOUR), step))
    for _ in range(2):
        await store.run(advance_completed(*step[:3], step.next, "shop", 0, events()))
    assert "d" not in await steps_of(store, run)


async def test_a_run_that_cannot_continue_does_not_keep_others_waiting(store: Store) -> None:
    first, second = await started(store, 2)
    for claimed in await claim_steps(store):
        await store.run(complete_step(complete(claim_of(claimed), HOUR), end(claimed)))
    sql(store, f"update {{hf}}workflow_step set next = 'no steps' where run_id = '{first}'")
    await store.run(travel(timedelta(minutes=1)))
    await RunSweeper(store).perform("w1")
    assert await steps_of(store, first) == {"a": "delivered"}
    assert await steps_of(store, second) == {"a": "delivered", "b": "pending", "c": "pending"}


async def test_a_dead_step_is_blocked_or_fails_the_run_by_its_declaration(store: Store) -> None:
    (run,) = await started(store)
    await finish_steps(store, await claim_steps(store))
    b, c = await claim_steps(store)
    dead = outcome(c, DeadLetter(), error=failure())
    assert (await store.run(fail_step("w1", dead, run, c.consumer, events()))).settled
    assert run_row(store, run) == "running"
    stale = outcome(b, DeadLetter(), error=failure())._replace(fence=99)
    assert not (await store.run(fail_step("w1", stale, run, b.consumer, events()))).settled
    assert run_row(store, run) == "running"
    dead = outcome(b, DeadLetter(), error=failure())
    await store.run(fail_step("w1", dead, run, b.consumer, events()))
    assert run_row(store, run) == "failed"


async def test_items_join_once_and_wake_their_step(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    claim = Claim(claimed.id, "w1", claimed.fence)
    await store.run(start_items(claim, run, 0, "a/map:b#0", "b@a#0", "flow/b", ["1", "2", "3"]))
    parked = Suspension(run, "a/map:b#0", 0, claimed.id, claimed.fence, 0, None, None, False)
    await store.run(suspend("w1", [parked]))
    items = await claim_steps(store)
    rows = sql(store, "select delivery_id, occurrence from {hf}workflow_step where item is not null")
    found = {str(id): int(str(n)) for id, n in rows}
    join = items_join(run, "b@a#0")
    ends = [end(item)._replace(step="b@a#0", occurrence=found[str(item.id)], next=join) for item in items]

    await store.run(advance("w1", ends[:2], events()))
    assert await claim_steps(store) == []
    await store.run(replay([items[0].id], "ada", None, rerun=True))
    again = [c for c in await claim_steps(store) if c.id == items[0].id]
    await store.run(advance("w1", [ends[0]._replace(fence=again[0].fence)], events()))
    assert await claim_steps(store) == []
    await store.run(advance("w1", ends[2:], events()))
    assert [c.id for c in await claim_steps(store)] == [claimed.id]


async def test_a_key_makes_one_run(store: Store) -> None:
    await declare(store)
    first, second = [(await store.run(start_runs([new_run("k")])))[0] for _ in range(2)]
    assert (first.id, first.created, second.created) == (second.id, True, False)
    assert len(await all_deliveries(store)) == 1


async def test_pruning_leaves_the_steps_of_an_active_run(store: Store) -> None:
    (run,) = await started(store)
    await finish_steps(store, await claim_steps(store))
    await store.run(travel(2 * HOUR))
    top = first_id(await store.run(clock()) + HOUR)
    assert (await store.run(prune_deliveries(FROM_THE_START, top, HOUR)))[0] == 0
    await finish_all(store, 2)
    assert run_row(store, run) == "done"
