"""Child runs and deadlines in the stores: which child a step meets, which are cancelled, and whose deadline counts."""

from datetime import timedelta
from uuid import UUID

from holdfast.core.change import DeadLetter
from holdfast.core.delivery import Claim
from holdfast.stores.protocol import Store
from holdfast.stores.queries.time_travel import abandon, travel
from holdfast.stores.workflows.advance import advance
from holdfast.stores.workflows.failure import cancel_run, fail_step
from holdfast.stores.workflows.run import Parent, child_of, run_outcome, start_runs
from holdfast.stores.workflows.wait import Suspension, begin_deadline, suspend
from tests.stores.workflows.run_steps import claim_steps, end, events, finish_steps, new_run, run_row, started
from tests.support.builders import failure, outcome, sql

HOUR = timedelta(hours=1)


async def start_child(store: Store, parent: Parent) -> UUID:
    (child,) = await store.run(start_runs([new_run()._replace(parent=parent)]))
    return child.id


def cancelled(store: Store) -> list[str]:
    """The runs that stored commands cancel."""
    rows = sql(store, "select payload from {hf}message where type = 'workflow.cancel' order by id")
    return [str(row[0]) for row in rows]


async def test_a_step_meets_the_newest_child_of_its_wait_unless_that_failed(store: Store) -> None:
    (run, other) = await started(store, 2)
    wait = Parent(run, "a/child:flow", 0)
    assert await store.run(child_of(wait)) is None
    for stranger in (Parent(other, "a/child:flow", 0), Parent(run, "b/child:flow", 0), Parent(run, "a/child:flow", 1)):
        await start_child(store, stranger)
    assert await store.run(child_of(wait)) is None
    first, second = [await start_child(store, wait) for _ in range(2)]
    assert await store.run(child_of(wait)) == max(first, second)
    await store.run(cancel_run(max(first, second), None, events()))
    assert await store.run(child_of(wait)) == min(first, second)


async def test_the_end_of_a_run_cancels_its_children_that_are_active(store: Store) -> None:
    (run, other) = await started(store, 2)
    active, ended = [await start_child(store, Parent(run, "a/child:flow", n)) for n in range(2)]
    await start_child(store, Parent(other, "a/child:flow", 0))
    await store.run(cancel_run(ended, None, events()))
    (claimed,) = [one for one in await claim_steps(store) if one.message_id == run]
    dead = outcome(claimed, DeadLetter(), error=failure())
    await store.run(fail_step("w1", dead, run, claimed.consumer, events()))
    assert run_row(store, run) == "failed"
    commands = cancelled(store)
    assert len(commands) == 1
    assert str(active) in commands[0]
    assert f"parent run {run} failed" in commands[0]


async def test_a_deadline_starts_once_and_ends_a_wait(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    claim = Claim(claimed.id, "w1", claimed.fence)
    begun = await store.run(begin_deadline(claim, run, "a", HOUR))
    assert begun is not None
    assert begun.left == HOUR
    long = Suspension(run, "a/wait:go", 0, claimed.id, claimed.fence, 0, "go", 5 * HOUR, True, begun.at)
    await store.run(suspend("w1", [long]))
    await store.run(travel(HOUR / 2))
    assert await claim_steps(store) == []
    await store.run(travel(HOUR / 2))
    due = await claim_steps(store)
    assert len(due) == 1
    (claimed,) = due
    again = await store.run(begin_deadline(Claim(claimed.id, "w1", claimed.fence), run, "a", HOUR))
    assert again is not None
    assert again.left <= timedelta(0)
    dead = outcome(claimed, DeadLetter(), error=failure())
    await store.run(fail_step("w1", dead, run, claimed.consumer, events()))
    assert sql(store, "select name from {hf}workflow_step where name = 'a/deadline:step'") == []


async def test_a_stale_owner_starts_no_deadline(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    assert await store.run(begin_deadline(Claim(claimed.id, "w2", claimed.fence), run, "a", HOUR)) is None
    await store.run(abandon(claimed.id))
    (again,) = await claim_steps(store)
    assert await store.run(begin_deadline(Claim(claimed.id, "w1", claimed.fence), run, "a", HOUR)) is None
    assert await store.run(begin_deadline(Claim(again.id, "w1", again.fence), run, "a", HOUR)) is not None


async def test_the_form_of_a_result_is_stored_with_it_and_forgotten_with_it(store: Store) -> None:
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    stale = end(claimed)._replace(fence=99, version=7)
    assert (await store.run(advance("w1", [stale], events()))).settled == frozenset()
    assert sql(store, "select version from {hf}workflow_step") == []
    await store.run(advance("w1", [end(claimed)._replace(version=2)], events()))
    assert (await store.run(run_outcome(run))).results["a"] == ("1", 2)
    # As if the step ran again by code whose results have the form of the run.
    sql(store, "update {hf}delivery set status = 'pending', fence = fence + 1 where consumer = 'flow/a'")
    again = [one for one in await claim_steps(store) if one.id == claimed.id]
    await finish_steps(store, again)
    assert (await store.run(run_outcome(run))).results["a"] == ("1", None)
