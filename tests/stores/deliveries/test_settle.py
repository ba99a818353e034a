"""Settling: each change writes exactly its columns, under the fence of its claim, with its run record."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.change import Block, Change, DeadLetter, Deliver, Discard, Park, Postpone, Release, Replay, Retry
from holdfast.core.delivery import Delivery, Status
from holdfast.stores.deliveries.settle import ClaimState, Settlement, claim_states, settle
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.intake import take_in_settled
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock, runs
from tests.support.builders import (
    LEASE,
    SECOND,
    age,
    all_deliveries,
    claim_all,
    claim_of,
    claim_one,
    delivery,
    failure,
    finish,
    job,
    outcome,
    put,
    sql,
    start,
)

MINUTE = timedelta(minutes=1)
RELEASED = {"lease_until": None, "locked_by": None}
BOOM = failure("boom")
FAILED = {"last_error": "boom", "error_type": "RuntimeError", "fingerprint": BOOM.fingerprint}
THEN = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)


def differences(before: Delivery, after: Delivery) -> dict[str, object]:
    """What changed, by column; times the database chose are shown as their distance from its clock."""
    named = {field.name: getattr(after, field.name) for field in fields(after)}
    return {name: value for name, value in named.items() if getattr(before, name) != value}


@pytest.mark.parametrize("keep_run", [False, True])
async def test_delivered(store: Store, keep_run: bool) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    start = await store.run(clock())
    assert await finish(store, claimed, Deliver(), keep_run=keep_run)
    changed = differences(before, await delivery(store, claimed.id))
    completed = changed.pop("completed_at")
    assert isinstance(completed, datetime)
    assert start <= completed <= await store.run(clock())
    assert changed == {"status": Status.DELIVERED, **RELEASED}


@pytest.mark.parametrize(
    ("change", "delay", "more"),
    [
        (Postpone(MINUTE), MINUTE, {"attempts": 0}),
        (Release(MINUTE, held=False), MINUTE, {"attempts": 0}),
        (Release(MINUTE, held=True), MINUTE, {"attempts": 0, "holds": 1}),
        (Park("api", MINUTE, None), MINUTE, {"attempts": 0}),
        (Block("db", MINUTE, held=False), MINUTE, {"attempts": 0}),
        (Block("db", MINUTE, held=True), MINUTE, {"attempts": 0, "holds": 1}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
async def test_what_comes_back_later_gives_its_attempt_back(
    store: Store, change: Change, delay: timedelta, more: dict[str, object]
) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    start = await store.run(clock())
    assert await finish(store, claimed, change)
    changed = differences(before, await delivery(store, claimed.id))
    run_at = changed.pop("run_at")
    assert isinstance(run_at, datetime)
    assert start + delay <= run_at <= await store.run(clock()) + delay
    assert changed == {"status": Status.PENDING, **RELEASED, **more}


async def test_a_release_without_delay_keeps_its_place(store: Store) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    assert await finish(store, claimed, Release(timedelta(0), held=False))
    changed = differences(before, await delivery(store, claimed.id))
    assert changed == {"status": Status.PENDING, "attempts": 0, **RELEASED}


async def test_parked_until_a_time_comes_back_at_that_time(store: Store) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    assert await finish(store, claimed, Park("api", None, THEN))
    changed = differences(before, await delivery(store, claimed.id))
    assert changed == {"status": Status.PENDING, "attempts": 0, "run_at": THEN, **RELEASED}


async def test_a_retry_spends_its_attempt_and_keeps_the_error(store: Store) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    start = await store.run(clock())
    assert await finish(store, claimed, Retry(MINUTE), error=BOOM)
    after = await delivery(store, claimed.id)
    changed = differences(before, after)
    assert start + MINUTE <= after.run_at <= await store.run(clock()) + MINUTE
    assert after.first_failed_at is not None
    assert start <= after.first_failed_at <= await store.run(clock())
    del changed["run_at"], changed["first_failed_at"]
    assert changed == {"status": Status.PENDING, **FAILED, **RELEASED}


async def test_a_retry_without_delay_is_due_at_once(store: Store) -> None:
    claimed = await claim_one(store)
    assert await finish(store, claimed, Retry(timedelta(0)), error=BOOM)
    (again,) = await claim_all(store)
    assert (again.id, again.attempts, again.fence) == (claimed.id, 2, 2)


async def test_a_dead_letter_stays_with_its_error(store: Store) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    assert await finish(store, claimed, DeadLetter(), error=BOOM)
    after = await delivery(store, claimed.id)
    changed = differences(before, after)
    assert changed.pop("completed_at") == changed.pop("first_failed_at") is not None
    assert changed == {"status": Status.FAILED, **FAILED, **RELEASED}
    assert after.dead
    assert await claim_all(store) == []


async def test_a_discard_is_set_aside_with_its_reason(store: Store) -> None:
    claimed = await claim_one(store)
    before = await delivery(store, claimed.id)
    assert await finish(store, claimed, Discard("no longer wanted"))
    after = await delivery(store, claimed.id)
    changed = differences(before, after)
    assert changed.pop("completed_at") == changed.pop("discarded_at") is not None
    assert changed == {"status": Status.FAILED, "last_error": "no longer wanted", **RELEASED}
    assert not after.dead


async def test_the_first_failure_of_a_cycle_keeps_its_time(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(timedelta(0)), error=BOOM)
    age(store, MINUTE, "delivery")
    first = (await delivery(store, claimed.id)).first_failed_at
    (again,) = await claim_all(store)
    await finish(store, again, DeadLetter(), error=failure("later", KeyError))
    after = await delivery(store, claimed.id)
    assert after.first_failed_at == first
    assert (after.last_error, after.error_type) == ("'later'", "KeyError")
    assert after.completed_at is not None
    assert after.completed_at - MINUTE < first + SECOND if first else False


async def test_a_block_or_a_park_is_no_failure_but_its_error_is_kept(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Block("db", MINUTE, held=False), error=BOOM)
    after = await delivery(store, claimed.id)
    assert after.first_failed_at is None
    assert after.last_error == "boom"


async def test_success_after_failure_keeps_the_last_error_for_those_who_look(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(timedelta(0)), error=BOOM)
    (again,) = await claim_all(store)
    await finish(store, again, Deliver())
    after = await delivery(store, claimed.id)
    assert (after.status, after.last_error, after.attempts) == (Status.DELIVERED, "boom", 2)


async def test_expiries_are_counted_in_a_row_and_mark_a_suspect(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(timedelta(0)), error=BOOM, expired=True)
    (second,) = await claim_all(store)
    assert (second.expiries, second.suspect) == (1, False)
    await finish(store, second, Retry(timedelta(0)), error=BOOM, expired=True, suspect=True)
    assert await claim_all(store) == []
    (third,) = await claim_all(store, suspects=True)
    assert (third.expiries, third.suspect) == (2, True)
    await finish(store, third, Retry(timedelta(0)), error=BOOM)
    (fourth,) = await claim_all(store, suspects=True)
    assert (fourth.expiries, fourth.suspect) == (0, True), "another failure ends the row, success alone the suspicion"


@pytest.mark.parametrize("keep_run", [False, True])
async def test_success_clears_suspicion(store: Store, keep_run: bool) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(timedelta(0)), error=BOOM, expired=True, suspect=True)
    (again,) = await claim_all(store, suspects=True)
    await finish(store, again, Deliver(), keep_run=keep_run)
    after = await delivery(store, claimed.id)
    assert (after.suspect, after.expiries) == (False, 0)


async def test_a_failure_is_always_recorded_as_a_run(store: Store) -> None:
    claimed = await claim_one(store)
    before = await store.run(clock())
    await finish(store, claimed, Retry(MINUTE), error=BOOM, elapsed=timedelta(seconds=2.5))
    (run,) = await store.run(runs(claimed.id))
    assert (run.attempt, run.fence, run.outcome, run.worker) == (1, 1, "failed", "w1")
    assert (run.error_type, run.error, run.trace) == ("RuntimeError", "boom", BOOM.trace)
    assert "Traceback" in BOOM.trace
    assert before <= run.completed_at <= await store.run(clock())
    assert run.started_at == run.completed_at - timedelta(seconds=2.5)


async def test_a_run_and_its_delivery_have_the_same_clock(store: Store) -> None:
    """SQLite writes them in two statements; a trigger makes the time between them long."""
    if store.dialect.name == "sqlite":
        sql(
            store,
            "create trigger slow after update on {hf}delivery begin select length(hex(randomblob(10000000))); end",
        )
    await put(store, job(), job())
    failed, done = await claim_all(store)
    await finish(store, failed, DeadLetter(), error=BOOM, elapsed=timedelta(0))
    await finish(store, done, Deliver(), outcome="succeeded", keep_run=True, elapsed=timedelta(0))
    for one in (failed, done):
        (run,) = await store.run(runs(one.id))
        found = await delivery(store, one.id)
        assert found.completed_at == run.completed_at == run.started_at
    settlement = Settlement(failed.id, 0, DeadLetter(), "failed", BOOM, timedelta(0))
    stored = await store.run(take_in_settled(job(), settlement, "w1", Fanout()))
    (direct,) = [one for one in await all_deliveries(store) if one.message_id == stored]
    (run,) = await store.run(runs(direct.id))
    assert direct.claimed_at == direct.completed_at == run.completed_at == run.started_at


async def test_a_run_names_the_generation_of_the_worker_that_made_it(store: Store) -> None:
    await start(store, "w1", ["mail"], generation=42)
    await put(store, job(generation=41), job(generation=41))
    failed, done = await claim_all(store, generation=42)
    await finish(store, failed, DeadLetter(), error=BOOM)
    await finish(store, done, Deliver(), outcome="succeeded", keep_run=True)
    assert [run.generation for one in (failed, done) for run in await store.run(runs(one.id))] == [42, 42]


async def test_a_run_that_ended_with_its_lease_names_no_generation(store: Store) -> None:
    """The worker that settles it is not the one that ran it."""
    await start(store, "w1", ["mail"], generation=42)
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(MINUTE), error=BOOM, expired=True)
    (run,) = await store.run(runs(claimed.id))
    assert run.generation is None


async def test_a_run_without_a_known_beginning_has_none(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Retry(MINUTE), error=BOOM)
    (run,) = await store.run(runs(claimed.id))
    assert run.started_at is None


async def test_a_success_is_recorded_on_request_only(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Deliver())
    assert await store.run(runs(claimed.id)) == []
    other = await claim_one(store)
    await finish(store, other, Deliver(), outcome="succeeded", keep_run=True, elapsed=SECOND)
    (run,) = await store.run(runs(other.id))
    assert (run.outcome, run.error, run.attempt) == ("succeeded", None, 1)
    assert run.started_at == run.completed_at - SECOND


async def test_a_returned_attempt_is_recorded_under_the_number_it_had(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Block("db", timedelta(0), held=False), error=BOOM)
    (again,) = await claim_all(store)
    await finish(store, again, DeadLetter(), error=BOOM)
    assert [(r.attempt, r.fence) for r in await store.run(runs(claimed.id))] == [(1, 1), (1, 2)]


@pytest.mark.parametrize("change", [Postpone(MINUTE), Release(MINUTE, held=False), Park("api", MINUTE, None)])
async def test_what_was_no_failure_leaves_no_run(store: Store, change: Change) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, change)
    assert await store.run(runs(claimed.id)) == []


async def test_a_discard_is_recorded_as_a_run(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Discard("no longer wanted"), outcome="cancelled")
    (run,) = await store.run(runs(claimed.id))
    assert (run.outcome, run.error) == ("cancelled", "no longer wanted")


async def test_a_batch_of_mixed_outcomes_settles_each_as_its_own(store: Store) -> None:
    await put(store, *[job(f"c{n}") for n in range(7)])
    claims = {c.consumer: c for c in await claim_all(store)}
    changes: list[Change] = [
        Deliver(),
        Deliver(),
        Retry(MINUTE),
        DeadLetter(),
        Discard("x"),
        Postpone(MINUTE),
        Release(MINUTE, held=True),
    ]
    batch = [
        outcome(claims[f"c{n}"], change, error=BOOM if n in (2, 3) else None, keep_run=n == 1)
        for n, change in enumerate(changes)
    ]
    assert await store.run(settle("w1", batch)) == {c.id for c in claims.values()}
    rows = [await delivery(store, claims[f"c{n}"].id) for n in range(7)]
    assert [r.status.value for r in rows] == [
        "delivered",
        "delivered",
        "pending",
        "failed",
        "failed",
        "pending",
        "pending",
    ]
    assert [r.attempts for r in rows] == [1, 1, 1, 1, 1, 0, 0]
    assert [r.holds for r in rows] == [0, 0, 0, 0, 0, 0, 1]
    assert [len(await store.run(runs(r.id))) for r in rows] == [0, 1, 1, 1, 1, 0, 0]
    assert sql(store, "select count(*) from {hf}delivery where locked_by is not null") == [(0,)]


@pytest.mark.parametrize("keep_run", [False, True])
async def test_settling_one_claim_leaves_the_others_as_they_are(store: Store, keep_run: bool) -> None:
    await put(store, job(), job())
    mine, other = await claim_all(store)
    before = await delivery(store, other.id)
    assert await store.run(settle("w1", [outcome(mine, Deliver(), keep_run=keep_run)])) == {mine.id}
    assert await delivery(store, other.id) == before


async def test_settling_nothing_is_no_error(store: Store) -> None:
    assert await store.run(settle("w1", [])) == frozenset()


async def test_five_hundred_successes_settle_in_one_call(store: Store) -> None:
    await put(store, *[job() for _ in range(500)])
    claims = await claim_all(store, consumers=["mail"])
    settled = await store.run(settle("w1", [outcome(c, Deliver()) for c in claims]))
    assert len(settled) == 500
    assert sql(store, "select count(*) from {hf}delivery where status = 'delivered'") == [(500,)]


async def test_a_lost_claim_in_a_batch_leaves_the_others_settled(store: Store) -> None:
    await put(store, job(), job())
    mine, lost = await claim_all(store)
    sql(store, f"update {{hf}}delivery set fence = fence + 1 where id = '{lost.id}'")
    assert await store.run(settle("w1", [outcome(mine, Deliver()), outcome(lost, Deliver())])) == {mine.id}


async def test_a_replay_is_no_outcome_to_settle(store: Store) -> None:
    claimed = await claim_one(store)
    with pytest.raises(TypeError, match="only operators replay"):
        await finish(store, claimed, Replay(1))


async def test_after_an_ambiguous_commit_the_fence_decides_whose_it_is(store: Store) -> None:
    await put(store, *[job(f"c{n}") for n in range(5)])
    mine, settled, retried, moved, gone = sorted(await claim_all(store), key=lambda c: c.consumer)
    await finish(store, settled, Deliver())
    await finish(store, retried, Retry(MINUTE), error=BOOM)
    await finish(store, moved, Retry(timedelta(0)), error=BOOM)
    (again,) = await claim_all(store, "w2", consumers=["c3"])
    assert again.id == moved.id
    sql(store, f"delete from {{hf}}delivery where id = '{gone.id}'")
    found = await store.run(claim_states([claim_of(c) for c in (mine, settled, retried, moved, gone)]))
    assert found == {
        mine.id: ClaimState.HELD,
        settled.id: ClaimState.SETTLED,
        retried.id: ClaimState.SETTLED,
        moved.id: ClaimState.LOST,
        gone.id: ClaimState.LOST,
    }
    assert await store.run(claim_states([])) == {}
    assert await store.run(claim_states([claim_of(mine, "another")])) == {mine.id: ClaimState.LOST}


async def test_the_lease_of_a_claim_is_the_one_that_was_asked_for(store: Store) -> None:
    claimed = await claim_one(store)
    row = await delivery(store, claimed.id)
    assert row.lease_until is not None
    assert row.claimed_at is not None
    assert row.lease_until - row.claimed_at == LEASE
