"""The decision about a job that waits for others, from the state of their deliveries."""

from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.core.change import DeadLetter, Deliver, DeliverResult
from holdfast.core.delivery import Claim
from holdfast.core.errors import LeaseLost
from holdfast.core.group import OnFailure, StageInput
from holdfast.core.identity import first_id
from holdfast.stores.admin.actions import cancel, replay
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.result import forget_results
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.groups.fan_in import (
    StageBlocked,
    StageOpened,
    StageWaiting,
    open_stage,
    stage_results,
    wake_stages,
)
from holdfast.stores.groups.group import NewGroup, NewMember, cancel_group, prune_groups, start_group
from holdfast.stores.groups.query import group_progress
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import age, claim_all, job, outcome, sql

HOUR = timedelta(hours=1)


async def start(
    store: Store, size: int = 2, on_failure: OnFailure = OnFailure.DEAD
) -> tuple[UUID, list[Claimed], Claimed]:
    """A group whose jobs are claimed, and the job after them, claimed too."""
    messages = [job() for _ in range(size + 1)]
    members = [NewMember(message, 0, n) for n, message in enumerate(messages[:-1])]
    last = NewMember(messages[-1], 1, 0, StageInput.RESULTS, on_failure)
    group = messages[-1].id
    await store.run(start_group(NewGroup(group, "jobs", None, [*members, last]), Fanout(), own=True))
    claims = {claimed.message_id: claimed for claimed in await claim_all(store, "w1")}
    return group, [claims[message.id] for message in messages[:-1]], claims[messages[-1].id]


async def decide(store: Store, claimed: Claimed) -> object:
    return await store.run(open_stage(Claim(claimed.id, "w1", claimed.fence)))


async def test_it_waits_for_every_job_and_runs_once_they_ended(store: Store) -> None:
    group, (first, second), after = await start(store)
    assert isinstance(await decide(store, after), StageWaiting)
    await store.run(settle("w1", [outcome(second, DeliverResult("2", HOUR))]))
    assert isinstance(await decide(store, after), StageWaiting)
    await store.run(settle("w1", [outcome(first, DeliverResult("1", HOUR))]))
    found = await decide(store, after)
    assert isinstance(found, StageOpened)
    assert (found.summary.total, found.summary.done) == (2, 2)
    assert await store.run(stage_results(group, 0, 0)) == ["1", "2"]
    assert await store.run(stage_results(group, 0, 1)) == ["2"]
    # Decided: a job that runs again does not hold it back.
    await store.run(replay([first.id], "ada", "again", rerun=True))
    assert isinstance(await decide(store, after), StageOpened)
    assert await store.run(stage_results(group, 0, 0)) == [None, "2"]
    assert await decide(store, first) is None


async def test_only_the_owner_of_the_claim_decides(store: Store) -> None:
    _, jobs, after = await start(store)
    await store.run(settle("w1", [outcome(one, Deliver()) for one in jobs]))
    for stale in (Claim(after.id, "w1", after.fence - 1), Claim(after.id, "w2", after.fence)):
        with pytest.raises(LeaseLost):
            await store.run(open_stage(stale))
    assert sql(store, "select count(*) from {hf}job_group_member where decided_at is not null") == [(0,)]


@pytest.mark.parametrize("ends", ["dead", "cancelled"])
async def test_a_job_that_failed_blocks_it_unless_it_runs_anyway(store: Store, ends: str) -> None:
    for policy in OnFailure:
        _, (first, second), after = await start(store, on_failure=policy)
        await store.run(settle("w1", [outcome(first, Deliver())]))
        if ends == "dead":
            await store.run(settle("w1", [outcome(second, DeadLetter())]))
        else:
            await store.run(cancel([second.id], "ada", "stop"))
        found = await decide(store, after)
        if policy is OnFailure.RUN:
            assert isinstance(found, StageOpened)
        else:
            assert isinstance(found, StageBlocked)
            assert (found.on_failure, found.summary.failed, found.summary.cancelled) == (
                policy,
                int(ends == "dead"),
                int(ends == "cancelled"),
            )


async def test_only_a_waiting_job_whose_stage_has_ended_is_woken(store: Store) -> None:
    group, (first, second), after = await start(store)
    other, _, _ = await start(store)
    sql(store, f"update {{hf}}delivery set status = 'pending', locked_by = null where id = '{after.id}'")
    age(store, -HOUR, "delivery")
    assert await store.run(wake_stages([group, other])) is False
    await store.run(settle("w1", [outcome(first, Deliver())]))
    assert await store.run(wake_stages([group])) is False
    await store.run(settle("w1", [outcome(second, Deliver())]))
    assert await store.run(wake_stages([other])) is False
    assert await store.run(wake_stages([group])) is True
    assert await store.run(wake_stages([group])) is False


async def test_jobs_and_results_stay_until_the_next_job_has_ended(store: Store) -> None:
    _, jobs, after = await start(store)
    await store.run(settle("w1", [outcome(one, DeliverResult("1", HOUR)) for one in jobs]))
    age(store, 2 * HOUR, "delivery", "result", "job_group")
    ceiling = first_id(await store.run(clock()), HOUR)
    prune = prune_deliveries(FROM_THE_START, ceiling, HOUR)
    assert (await store.run(prune))[0] == 0
    await store.run(forget_results())
    assert sql(store, "select count(*) from {hf}result") == [(2,)]
    await store.run(settle("w1", [outcome(after, Deliver())]))
    await store.run(forget_results())
    assert sql(store, "select count(*) from {hf}result") == [(0,)]
    assert await store.run(prune_groups(FROM_THE_START, HOUR)) is None
    assert sql(store, "select count(*) from {hf}job_group") == [(1,)]
    age(store, 2 * HOUR, "delivery")
    assert (await store.run(prune_deliveries(FROM_THE_START, ceiling, HOUR)))[0] == 3
    await store.run(prune_groups(FROM_THE_START, HOUR))
    assert sql(store, "select count(*) from {hf}job_group") == [(0,)]
    assert sql(store, "select count(*) from {hf}job_group_member") == [(0,)]


async def test_a_cancelled_group_ends_what_has_not_ended(store: Store) -> None:
    group, (first, second), after = await start(store)
    await store.run(settle("w1", [outcome(first, Deliver())]))
    assert await store.run(cancel_group(group, "ada", "stop")) == 2
    assert await store.run(settle("w1", [outcome(second, Deliver()), outcome(after, Deliver())])) == set()
    progress = await store.run(group_progress(group))
    assert (progress.done, progress.cancelled, progress.left) == (1, 2, 0)
