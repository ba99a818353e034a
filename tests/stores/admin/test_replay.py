"""Replay updates the row: the failed cycle moves into the history, the attempts start at zero, the identity stays."""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.delivery import FailureCycle, Status
from holdfast.core.errors import ConfigurationError
from holdfast.stores.admin.actions import audit, cancel, discard, live_generation, replay
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock, messages
from tests.support.builders import (
    LEASE,
    age,
    all_deliveries,
    claim_all,
    claim_one,
    delivery,
    failure,
    finish,
    job,
    put,
    sql,
    start,
)

HOUR = timedelta(hours=1)


async def dead_letter(store: Store, **address: object) -> Claimed:
    claimed = await claim_one(store, **address)  # type: ignore[arg-type]
    assert await finish(store, claimed, DeadLetter(), error=failure("boom"))
    return claimed


async def test_a_replay_starts_a_new_cycle_in_place(store: Store) -> None:
    dead = await dead_letter(store, key="order:1", max_attempts=4)
    before = await delivery(store, dead.id)
    sql(store, "update {hf}delivery set holds = 3, expiries = 2, suspect = (1 = 1)")
    start = await store.run(clock())
    (replayed,) = await store.run(replay([dead.id], "ada", "fixed in 42"))
    after = await delivery(store, dead.id)
    assert replayed == (dead.id, "mail", before.generation, before.fence + 1)
    assert (after.id, after.message_id, after.max_attempts) == (before.id, before.message_id, 4)
    assert (after.status, after.attempts, after.fence) == (Status.PENDING, 0, before.fence + 1)
    assert start <= after.run_at <= await store.run(clock())
    assert (after.last_error, after.error_type, after.fingerprint, after.first_failed_at) == (None, None, None, None)
    assert (after.completed_at, after.claimed_at, after.discarded_at) == (None, None, None)
    assert (after.suspect, after.holds, after.expiries) == (False, 0, 0)
    (message,) = await store.run(messages(id=dead.message_id))
    assert message.key == "order:1"
    (again,) = await claim_all(store)
    assert (again.id, again.attempts, again.fence) == (dead.id, 1, before.fence + 2)


async def test_the_failed_cycle_is_kept_typed(store: Store) -> None:
    dead = await dead_letter(store)
    before = await delivery(store, dead.id)
    start = await store.run(clock())
    await store.run(replay([dead.id], "ada", "fixed in 42", 7))
    (cycle,) = (await delivery(store, dead.id)).failure_history
    assert cycle.replayed_at is not None
    assert start <= cycle.replayed_at <= await store.run(clock())
    assert cycle == FailureCycle(
        attempts=1,
        last_error="boom",
        error_type="RuntimeError",
        fingerprint=before.fingerprint,
        first_failed_at=before.first_failed_at,
        failed_at=before.completed_at,
        generation=0,
        replayed_at=cycle.replayed_at,
        replayed_by="ada",
        reason="fixed in 42",
    )


async def test_the_newest_twenty_cycles_stay_and_each_one_is_in_the_audit(store: Store) -> None:
    dead = await dead_letter(store)
    for n in range(23):
        assert len(await store.run(replay([dead.id], "ada", f"try {n}"))) == 1
        (claimed,) = await claim_all(store)
        await finish(store, claimed, DeadLetter(), error=failure(f"boom {n}"))
    row = await delivery(store, dead.id)
    assert [cycle.reason for cycle in row.failure_history] == [f"try {n}" for n in range(3, 23)]
    assert row.failure_history[-1].last_error == "boom 21"
    entries = await store.run(audit(limit=50, target=("delivery", str(dead.id))))
    assert [entry.reason for entry in reversed(entries)] == [f"try {n}" for n in range(23)]
    oldest = entries[-1].detail
    assert isinstance(oldest, dict)
    assert FailureCycle.from_json(oldest).last_error == "boom"


async def test_a_replay_says_who_when_and_why_in_the_audit(store: Store) -> None:
    dead = await dead_letter(store)
    await store.run(replay([dead.id], "ada", "fixed in 42"))
    (entry,) = await store.run(audit())
    assert (entry.actor, entry.action, entry.kind, entry.target) == ("ada", "replay", "delivery", str(dead.id))
    assert entry.reason == "fixed in 42"
    assert isinstance(entry.detail, dict)
    assert entry.detail["replayed_by"] == "ada"


async def test_the_generation_given_is_the_one_set(store: Store) -> None:
    await start(store, "w9", ["mail"], generation=9)
    dead = await dead_letter(store)
    (replayed,) = await store.run(replay([dead.id], "ada", None, 5))
    assert (replayed.generation, (await delivery(store, dead.id)).generation) == (5, 5)


async def test_by_default_it_is_the_highest_one_alive_for_the_consumer(store: Store) -> None:
    await start(store, "w4", ["mail"], generation=4)
    await start(store, "w6", ["mail", "audit"], generation=6)
    await start(store, "w8", ["audit"], generation=8)
    await start(store, "w9", ["mail"], generation=9)
    sql(store, "update {hf}worker set alive_until = started_at where id = 'w9'")
    dead = await dead_letter(store)
    assert await store.run(live_generation("mail", "default")) == 6
    (replayed,) = await store.run(replay([dead.id], "ada", None))
    assert replayed.generation == 6


async def test_by_default_a_worker_of_another_queue_does_not_count(store: Store) -> None:
    await start(store, "w4", ["mail"], generation=4, queues=["default"])
    await start(store, "w9", ["mail"], generation=9, queues=["bulk"])
    dead = await dead_letter(store)
    assert await store.run(live_generation("mail", "default")) == 4
    assert await store.run(live_generation("mail", "bulk")) == 9
    (replayed,) = await store.run(replay([dead.id], "ada", None))
    assert replayed.generation == 4, "the worker of generation 9 never claims this queue"


async def test_without_live_workers_the_generation_stays(store: Store) -> None:
    await put(store, job(generation=3))
    (claimed,) = await claim_all(store, generation=3)
    await finish(store, claimed, DeadLetter())
    assert await store.run(live_generation("mail", "default")) is None
    (replayed,) = await store.run(replay([claimed.id], "ada", None))
    assert replayed.generation == 3


async def test_replaying_twice_replays_once(store: Store) -> None:
    dead = await dead_letter(store)
    assert len(await store.run(replay([dead.id, dead.id], "ada", None))) == 1
    assert await store.run(replay([dead.id], "bob", None)) == []
    assert [entry.actor for entry in await store.run(audit())] == ["ada"]
    assert (await delivery(store, dead.id)).fence == dead.fence + 1


async def test_what_waits_or_runs_is_not_replayed(store: Store) -> None:
    await put(store, job("waiting", delay=HOUR), job("running"), job("retrying"))
    claims = {c.consumer: c for c in await claim_all(store)}
    await finish(store, claims["retrying"], Retry(HOUR), error=failure())
    before = await all_deliveries(store)
    assert await store.run(replay([d.id for d in before], "ada", None, rerun=True)) == []
    assert await all_deliveries(store) == before
    assert await store.run(audit()) == []


async def test_done_work_is_skipped_unless_a_rerun_is_asked_for(store: Store) -> None:
    done = await claim_one(store)
    await finish(store, done, Deliver())
    assert await store.run(replay([done.id], "ada", None)) == []
    assert (await delivery(store, done.id)).status is Status.DELIVERED
    assert len(await store.run(replay([done.id], "ada", None, rerun=True))) == 1
    assert (await delivery(store, done.id)).status is Status.PENDING


@pytest.mark.parametrize("rerun", [False, True])
async def test_what_was_discarded_or_cancelled_is_skipped(store: Store, rerun: bool) -> None:
    dead = await dead_letter(store)
    await store.run(discard([dead.id], "ada", None))
    (waiting,) = await put(store, job())
    ids = [d.id for d in await all_deliveries(store)]
    await store.run(cancel(ids, "ada", None))
    before = await all_deliveries(store)
    assert await store.run(replay(ids, "bob", None, rerun=rerun)) == []
    assert await all_deliveries(store) == before
    assert waiting.created


async def test_a_job_whose_unique_key_is_taken_again_is_skipped(store: Store) -> None:
    dead = await dead_letter(store, unique="report")
    (newer,) = await put(store, job(unique="report"))
    assert await store.run(replay([dead.id], "ada", None)) == []
    (claimed,) = await claim_all(store)
    assert claimed.message_id == newer.id
    assert await store.run(replay([dead.id], "ada", None)) == []
    await finish(store, claimed, Deliver())
    assert [r.id for r in await store.run(replay([dead.id], "ada", None))] == [dead.id]


async def test_the_unique_key_of_another_consumer_does_not_stand_in_the_way(store: Store) -> None:
    dead = await dead_letter(store, unique="report")
    await put(store, job("audit", unique="report"))
    assert [r.id for r in await store.run(replay([dead.id], "ada", None))] == [dead.id]


async def test_of_several_dead_jobs_with_one_unique_key_one_is_replayed(store: Store) -> None:
    first = await dead_letter(store, unique="report")
    second = await dead_letter(store, unique="report")
    other = await dead_letter(store, consumer="audit", unique="report")
    replayed = await store.run(replay([first.id, second.id, other.id], "ada", None))
    assert sorted(r.id for r in replayed) == sorted([min(first.id, second.id), other.id])
    assert await store.run(replay([first.id, second.id], "ada", None)) == []


async def test_only_the_chosen_ones_are_replayed(store: Store) -> None:
    dead = [await dead_letter(store) for _ in range(3)]
    replayed = await store.run(replay([dead[2].id, dead[0].id], "ada", None))
    assert [r.id for r in replayed] == sorted([dead[0].id, dead[2].id])
    assert (await delivery(store, dead[1].id)).dead
    assert await store.run(replay([], "ada", None)) == []


async def test_a_replay_without_an_actor_is_refused(store: Store) -> None:
    dead = await dead_letter(store)
    for blank in ("", "  "):
        with pytest.raises(ConfigurationError, match="the actor is missing"):
            await store.run(replay([dead.id], blank, None))
    assert (await delivery(store, dead.id)).dead


async def test_the_words_of_an_operator_may_be_anything(store: Store) -> None:
    dead = await dead_letter(store)
    await store.run(replay([dead.id], "a'd\"a$$\x00", "be\x00cause \ud800" + "x" * 5000))
    (entry,) = await store.run(audit())
    assert entry.actor == "a'd\"a$$\ufffd"
    assert entry.reason is not None
    assert len(entry.reason) <= 2000
    (cycle,) = (await delivery(store, dead.id)).failure_history
    assert (cycle.replayed_by, cycle.reason) == (entry.actor, entry.reason)


async def test_a_replayed_delivery_keeps_what_its_message_says(store: Store) -> None:
    dead = await dead_letter(store, payload={"a": [1, 2]})
    await store.run(replay([dead.id], "ada", None))
    (again,) = await claim_all(store)
    assert (again.payload, again.type, again.source) == (dead.payload, dead.type, dead.source)


async def test_a_lease_of_a_dead_worker_does_not_count_as_alive(store: Store) -> None:
    await start(store, "w4", ["mail"], generation=4)
    age(store, LEASE, "worker")
    assert await store.run(live_generation("mail", "default")) is None
