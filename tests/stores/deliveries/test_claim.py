"""Lanes and claims: who may take what, in which order, and what taking it writes."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import orjson
import pytest

from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import (
    block_consumer,
    pause_consumer,
    pause_queue,
    resume_consumer,
    resume_queue,
    unblock_consumer,
)
from holdfast.stores.deliveries.claim import (
    Lane,
    claim,
    claim_trial,
    discover_and_claim,
    lanes,
    list_lanes,
    load_payload,
    rescue,
)
from holdfast.stores.deliveries.worker import renew_worker, start_worker, stop_worker
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import (
    LEASE,
    SECOND,
    age,
    all_deliveries,
    claim_all,
    claim_lanes,
    job,
    put,
    register_consumers,
    sql,
    start,
)


async def test_a_claim_counts_the_attempt_raises_the_fence_and_sets_the_lease(store: Store) -> None:
    await put(store, job("mail", {"to": "ada"}, key="k", max_attempts=3))
    before = await store.run(clock())
    (claimed,) = await claim_all(store, "w1")
    after = await store.run(clock())
    (row,) = await all_deliveries(store)
    assert (claimed.id, claimed.message_id, claimed.consumer) == (row.id, row.message_id, "mail")
    assert (claimed.type, claimed.source, claimed.key, claimed.max_attempts) == ("job.mail", "shop", "k", 3)
    assert claimed.payload.replace(" ", "") == '{"to":"ada"}'
    assert (row.status, row.locked_by) == (Status.IN_FLIGHT, "w1")
    assert (row.attempts, row.fence) == (claimed.attempts, claimed.fence) == (1, 1)
    assert row.claimed_at is not None
    assert before <= row.claimed_at <= after
    assert row.lease_until == row.claimed_at + LEASE


async def test_a_delivery_is_claimed_once(store: Store) -> None:
    await put(store, job(), job())
    assert len(await claim_all(store, "w1")) == 2
    assert await claim_all(store, "w2") == []
    # Also by a worker whose list of lanes is older than the first claim.
    assert await claim_lanes(store, [Lane("default", "mail", 0, 1)], "w2") == []
    assert {(d.fence, d.attempts, d.locked_by) for d in await all_deliveries(store)} == {(1, 1, "w1")}


async def test_the_limit_is_honoured_over_all_lanes(store: Store) -> None:
    await put(store, *[job(consumer) for consumer in ("a", "b", "c") for _ in range(4)])
    claimed = await claim_all(store, limit=6)
    assert len(claimed) == 6
    assert [c.consumer for c in claimed].count("c") == 0
    assert len(await claim_all(store, limit=100)) == 6


async def test_lanes_come_and_are_claimed_in_order_of_priority(store: Store) -> None:
    await put(store, *[job("mail", priority=priority) for priority in (3, 1, 0, 2)])
    found = await store.run(lanes(["mail"], 0))
    assert [lane.priority for lane in found] == [0, 1, 2, 3]
    assert sorted(c.priority for c in await claim_lanes(store, found, limit=2)) == [0, 1]
    assert sorted(c.priority for c in await claim_lanes(store, found, limit=2)) == [2, 3]


async def test_within_a_lane_what_was_due_first_is_claimed_first(store: Store) -> None:
    late, early = await put(store, job(), job())
    sql(store, f"update {{hf}}delivery set run_at = created_at where message_id = '{early.id}'")
    age(store, SECOND, "delivery")
    sql(store, f"update {{hf}}delivery set run_at = created_at where message_id = '{late.id}'")
    age_one = "run_at - interval '1 s'" if isinstance(store, PostgresStore) else "run_at - 1000"
    sql(store, f"update {{hf}}delivery set run_at = {age_one} where message_id = '{early.id}'")
    (first,) = await claim_all(store, limit=1)
    assert first.message_id == early.id


async def test_only_what_is_due_is_claimed(store: Store) -> None:
    (due, _) = await put(store, job(), job(delay=timedelta(minutes=1)))
    assert [c.message_id for c in await claim_all(store)] == [due.id]
    age(store, timedelta(minutes=1), "delivery")
    assert len(await claim_all(store)) == 1


async def test_only_the_given_lanes_are_claimed(store: Store) -> None:
    given = Lane("fast", "mail", 2, 1)
    (wanted, *_) = await put(
        store,
        job("mail", queue="fast", generation=2),
        job("mail", queue="slow", generation=2),
        job("other", queue="fast", generation=2),
        job("mail", queue="fast", generation=1),
        job("mail", queue="fast", generation=2, priority=2),
    )
    assert [c.message_id for c in await claim_lanes(store, [given])] == [wanted.id]


async def test_without_lanes_nothing_is_claimed(store: Store) -> None:
    await put(store, job())
    assert await claim_lanes(store, []) == []


async def test_lanes_hold_only_the_consumers_and_queues_asked_for(store: Store) -> None:
    await put(store, job("mail"), job("mail", queue="slow"), job("audit"))
    assert [lane.queue for lane in await store.run(lanes(["mail"], 0))] == ["default", "slow"]
    assert [lane[:2] for lane in await store.run(lanes(["mail", "audit"], 0, queues=["slow"]))] == [("slow", "mail")]
    assert await store.run(lanes([], 0)) == []
    assert await store.run(lanes(["mail"], 0, queues=[])) == []


async def test_a_paused_queue_is_left_out_until_it_is_resumed(store: Store) -> None:
    await put(store, job("mail", queue="slow"), job("mail"))
    await store.run(pause_queue("slow", "ada", None))
    assert [c.queue for c in await claim_all(store)] == ["default"]
    await store.run(resume_queue("slow", "ada", None))
    assert [c.queue for c in await claim_all(store)] == ["slow"]


async def test_a_paused_consumer_is_left_out_until_it_is_resumed(store: Store) -> None:
    await register_consumers(store, {"mail": [], "audit": []})
    await put(store, job("mail"), job("audit"))
    await store.run(pause_consumer("mail", "ada", None))
    assert [c.consumer for c in await claim_all(store)] == ["audit"]
    await store.run(resume_consumer("mail", "ada", None))
    assert [c.consumer for c in await claim_all(store)] == ["mail"]


async def test_a_blocked_consumer_is_left_out_until_its_time_or_its_release(store: Store) -> None:
    await register_consumers(store, {"mail": [], "audit": []})
    await put(store, job("mail"), job("audit"))
    await store.run(block_consumer("mail", "smtp", LEASE, "w1"))
    await store.run(block_consumer("audit", "db", LEASE, "w1"))
    assert await claim_all(store) == []
    await store.run(unblock_consumer("audit", "ada"))
    assert [c.consumer for c in await claim_all(store)] == ["audit"]
    assert await store.run(lanes(["mail", "audit"], 0)) == []
    age(store, LEASE, "consumer")
    (lane,) = await store.run(lanes(["mail", "audit"], 0))
    assert (lane.consumer, lane.blocked) == ("mail", True)


async def test_a_consumer_whose_block_is_over_is_tried_with_one_delivery_by_one_worker(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await put(store, job("mail"), job("mail"))
    await store.run(block_consumer("mail", "smtp", SECOND, "w1"))
    lane = [Lane("default", "mail", 0, 1)]
    assert await store.run(claim_trial(lane, "w1", LEASE, LEASE)) == []
    age(store, SECOND, "consumer")
    assert await store.run(discover_and_claim(["mail"], 0, "w1", LEASE, 9)) == []
    (claimed,) = await store.run(claim_trial(lane, "w1", LEASE, LEASE))
    assert (claimed.attempts, claimed.fence, claimed.holds) == (1, 1, 0)
    assert await store.run(claim_trial(lane, "w2", LEASE, LEASE)) == []
    assert await store.run(lanes(["mail"], 0)) == []
    # The worker of the trial died: another tries when the time of the trial is over.
    age(store, LEASE, "consumer")
    assert len(await store.run(claim_trial(lane, "w2", LEASE, LEASE))) == 1


async def test_a_trial_begins_only_when_a_delivery_is_due(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await put(store, job("mail", delay=timedelta(hours=1)))
    await store.run(block_consumer("mail", "smtp", SECOND, "w1"))
    age(store, SECOND, "consumer")
    assert await store.run(claim_trial([Lane("default", "mail", 0, 1)], "w1", LEASE, LEASE)) == []
    (due,) = await put(store, job("mail"))
    (claimed,) = await store.run(claim_trial([Lane("default", "mail", 0, 1)], "w2", LEASE, LEASE))
    assert claimed.message_id == due.id


async def test_a_newer_generation_is_never_claimed(store: Store) -> None:
    await put(store, job(generation=3))
    assert await claim_all(store, generation=2) == []
    assert len(await claim_all(store, generation=3)) == 1


async def test_an_older_generation_is_left_to_its_living_workers(store: Store) -> None:
    await put(store, job(generation=1))
    await start(store, "old", ["mail"], generation=1)
    assert await claim_all(store, "new", generation=2) == []
    assert len(await claim_all(store, "old", generation=1)) == 1


async def test_an_older_generation_is_taken_when_none_of_its_workers_lives(store: Store) -> None:
    await put(store, job(generation=1))
    await start(store, "old", ["mail"], generation=1)
    age(store, LEASE, "worker")
    assert len(await claim_all(store, "new", generation=2)) == 1


async def test_an_older_generation_is_taken_when_its_workers_do_not_serve_the_queue(store: Store) -> None:
    """FAULTS 68: a worker of that generation lives and has the consumer, but serves other queues only."""
    await put(store, job("mail", queue="slow", generation=1))
    await store.run(start_worker("old", 1, ["fast", "default"], ["mail"], LEASE))
    assert len(await claim_all(store, "new", generation=2)) == 1


async def test_an_older_generation_is_left_to_a_living_worker_of_every_queue(store: Store) -> None:
    await put(store, job("mail", queue="slow", generation=1))
    await store.run(start_worker("old", 1, [], ["mail"], LEASE))
    assert await claim_all(store, "new", generation=2) == []


async def test_an_older_generation_is_taken_when_its_workers_do_not_serve_the_consumer(store: Store) -> None:
    await put(store, job("mail", generation=1))
    await start(store, "old", ["audit"], generation=1)
    await start(store, "older", ["mail"], generation=0)
    assert len(await claim_all(store, "new", generation=2)) == 1


async def test_an_older_generation_is_taken_once_its_worker_has_stopped(store: Store) -> None:
    await put(store, job(generation=1))
    await start(store, "old", ["mail"], generation=1)
    await store.run(stop_worker("old"))
    assert len(await claim_all(store, "new", generation=2)) == 1


async def test_a_renewed_worker_keeps_its_generation(store: Store) -> None:
    await put(store, job(generation=1))
    await start(store, "old", ["mail"], generation=1)
    age(store, LEASE - SECOND, "worker")
    assert await store.run(renew_worker("old", LEASE))
    age(store, 2 * SECOND, "worker")
    assert await claim_all(store, "new", generation=2) == []


async def test_suspects_are_left_out_unless_asked_for(store: Store) -> None:
    innocent, guilty = await put(store, job(), job())
    sql(store, f"update {{hf}}delivery set suspect = (1 = 1) where message_id = '{guilty.id}'")
    assert [c.message_id for c in await claim_all(store)] == [innocent.id]
    # Neither kind of claim takes the other kind, even when it is given the lane.
    lane = [Lane("default", "mail", 0, 1)]
    assert await claim_lanes(store, lane) == []
    (suspect,) = await claim_all(store, suspects=True)
    assert (suspect.message_id, suspect.suspect) == (guilty.id, True)


async def test_an_idle_worker_claims_in_one_question_what_it_would_claim_in_two(store: Store) -> None:
    """What it may not have is left out as from the lanes, lane by lane in their order."""
    await register_consumers(store, {"mail": [], "audit": [], "stuck": []})
    urgent, first, second = await put(store, job("mail", priority=0), job("mail"), job("mail"))
    other = (await put(store, job("audit", queue="slow")))[0]
    await put(
        store,
        job("mail", delay=timedelta(hours=1)),
        job("mail", generation=9),
        job("mail", queue="closed"),
        job("stuck"),
        job("foreign"),
    )
    (guilty,) = await put(store, job("mail"))
    sql(store, f"update {{hf}}delivery set suspect = (1 = 1) where message_id = '{guilty.id}'")
    await store.run(pause_queue("closed", "ada", None))
    await store.run(block_consumer("stuck", "db", timedelta(hours=1), "w1"))

    async def claim_again(limit: int, *, queues: list[str] | None = None, suspects: bool = False) -> list[UUID]:
        mine = discover_and_claim(["audit", "mail", "stuck"], 0, "w1", LEASE, limit, queues=queues, suspects=suspects)
        return sorted(c.message_id for c in await store.run(mine))

    assert await claim_again(1) == [urgent.id]
    assert await claim_again(1, queues=["slow"]) == [other.id]
    assert sorted(await claim_again(1) + await claim_again(9)) == sorted([first.id, second.id])
    assert await claim_again(9) == []
    assert await claim_again(9, suspects=True) == [guilty.id]
    taken = [d for d in await all_deliveries(store) if d.status is Status.IN_FLIGHT]
    assert {(d.fence, d.attempts, d.locked_by) for d in taken} == {(1, 1, "w1")}
    assert len(taken) == 5


def named(found: Sequence[Lane]) -> list[tuple[str, str, int]]:
    return [(lane.queue, lane.consumer, lane.priority) for lane in found]


async def test_lanes_are_listed_alike_from_the_floors_of_the_known_ones(store: Store) -> None:
    """Unknown lanes are found before, between and after the known ones, which may be those of other workers."""
    consumers = ["audit", "mail", "stuck"]
    await register_consumers(store, {name: [] for name in consumers})
    await put(store, job("mail", queue="b"), job("mail", queue="d", priority=0), job("foreign", queue="c"))
    await store.run(pause_queue("b", "ada", None))
    first = await store.run(list_lanes(consumers, 0, known=()))
    assert named(first.lanes) == named(await store.run(lanes(consumers, 0))) == [("d", "mail", 0)]
    floors = sorted(named(first.floors or ()))
    assert floors == [("b", "mail", 1), ("c", "foreign", 1), ("d", "mail", 0)]

    await store.run(resume_queue("b", "ada", None))
    for queue, name, priority in (("a", "mail", 1), ("b", "audit", 1), ("b", "mail", 3), ("d", "stuck", 2)):
        await put(store, job(name, queue=queue, priority=priority), job(name, queue=queue, priority=priority))
    for known in ([], first.floors, (first.floors or [])[:1], (first.floors or [])[1:]):
        again = await store.run(list_lanes(consumers, 0, known=known))
        assert again.lanes == await store.run(lanes(consumers, 0))
        assert len(again.lanes) == 6
        assert len(again.floors or ()) == 7
        few = await store.run(list_lanes(consumers, 0, queues=["d"], known=known))
        assert named(few.lanes) == [("d", "mail", 0), ("d", "stuck", 2)]
    assert (await store.run(list_lanes(consumers, 0, suspects=True, known=first.floors))).lanes == []

    # A lane of which nothing is left is not taken for another one.
    listed = await store.run(list_lanes(consumers, 0, known=()))
    assert len(await claim_lanes(store, [Lane("a", "mail", 0, 1), Lane("b", "mail", 0, 3)])) == 4
    known = [Lane(*lane[:4]) for lane in listed.floors or ()]
    drained = await store.run(list_lanes(consumers, 0, known=known))
    assert drained.lanes == await store.run(lanes(consumers, 0))
    assert len(drained.lanes) == 4


async def test_every_unknown_lane_is_found_between_known_ones(store: Store) -> None:
    chosen = random.Random(7)
    every = [(q, c, g, p) for q in ("a", "b", "c") for c in ("audit", "mail") for g in (0, 1, 2) for p in (0, 1, 3)]
    await put(store, *(job(c, queue=q, generation=g, priority=p) for q, c, g, p in every))
    expected = await store.run(lanes(["audit", "mail"], 2))
    assert len(expected) == len(every)
    for size in (1, 2, 3, 5, 8, 13, 21, 34, 50):
        known = [Lane(*name) for name in chosen.sample(every, size)]
        assert (await store.run(list_lanes(["audit", "mail"], 2, known=known))).lanes == expected


async def test_a_lane_is_read_from_its_floor_and_the_next_floor_is_its_oldest_delivery(
    postgres_store: PostgresStore,
) -> None:
    first, second = await put(postgres_store, job(), job())
    await put(postgres_store, job("later", delay=timedelta(hours=1)))
    sql(postgres_store, f"update {{hf}}delivery set run_at = run_at - interval '1 min' where message_id = '{first.id}'")
    rows = {d.message_id: d for d in await all_deliveries(postgres_store)}
    now = await postgres_store.run(clock())
    whole = await postgres_store.run(list_lanes(["mail", "later"], 0, known=()))
    floors = {lane.consumer: lane for lane in whole.floors or ()}
    assert floors["mail"].floor_at == rows[first.id].run_at
    assert now <= floors["later"].floor_at <= await postgres_store.run(clock()), "what comes next is due before it"

    above = floors["mail"]._replace(floor_at=rows[second.id].run_at)
    found = await postgres_store.run(list_lanes(["mail"], 0, known=[above]))
    assert {lane.consumer: lane.floor_at for lane in found.floors or ()}["mail"] == rows[second.id].run_at
    mine = discover_and_claim(["mail"], 0, "w1", LEASE, 9, known=[above])
    assert [c.message_id for c in await postgres_store.run(mine)] == [second.id]
    drained = await postgres_store.run(list_lanes(["mail"], 0, known=[above]))
    assert drained.lanes == []
    (floor,) = [lane for lane in drained.floors or () if lane.consumer == "mail"]
    assert floor.floor_at > above.floor_at, "rows that were claimed in between are not read again"
    # Without known lanes it is found, for any floors.
    assert named((await postgres_store.run(list_lanes(["mail"], 0, known=()))).lanes) == [("default", "mail", 1)]
    assert [c.message_id for c in await claim_all(postgres_store)] == [first.id]


async def test_an_idle_worker_claims_above_the_floors_of_known_lanes_and_from_unknown_ones(store: Store) -> None:
    await register_consumers(store, {"mail": [], "audit": []})
    (one,) = await put(store, job("mail"))
    known = (await store.run(list_lanes(["audit", "mail"], 0, known=()))).floors or []
    (two,) = await put(store, job("audit", priority=2))
    (suspect,) = await put(store, job("audit"))
    sql(store, f"update {{hf}}delivery set suspect = (1 = 1) where message_id = '{suspect.id}'")
    await put(store, job("mail", delay=timedelta(hours=1)), job("audit", generation=3), job("foreign"))
    mine = discover_and_claim(["audit", "mail"], 0, "w1", LEASE, 9, known=known)
    assert sorted(c.message_id for c in await store.run(mine)) == sorted([one.id, two.id])


async def test_innocents_are_left_out_when_suspects_are_asked_for(store: Store) -> None:
    await put(store, job())
    assert await claim_lanes(store, [Lane("default", "mail", 0, 1)], suspects=True) == []
    assert await store.run(lanes(["mail"], 0, suspects=True)) == []


async def test_what_lies_before_the_floor_is_passed_over(postgres_store: PostgresStore) -> None:
    first, second, third = await put(postgres_store, job(), job(), job())
    rows = {d.message_id: d for d in await all_deliveries(postgres_store)}
    floor = rows[second.id]
    lane = Lane("default", "mail", 0, 1, floor.run_at, floor.id)
    assert {c.message_id for c in await claim_lanes(postgres_store, [lane])} == {
        m for m, d in rows.items() if (d.run_at, d.id) >= (floor.run_at, floor.id)
    }
    assert {first.id, second.id, third.id} == set(rows)
    assert await claim_lanes(postgres_store, [lane]) == []
    assert len(await claim_all(postgres_store)) == sum(d.id < floor.id for d in rows.values())


async def test_a_floor_ahead_of_everything_claims_nothing_or_is_ignored(store: Store) -> None:
    """It is a hint: SQLite, with one engine and no old snapshots, does without."""
    await put(store, job())
    far = Lane("default", "mail", 0, 1, datetime(2100, 1, 1, tzinfo=UTC), UUID(int=0))
    expected = 0 if isinstance(store, PostgresStore) else 1
    assert len(await claim_lanes(store, [far])) == expected


@pytest.mark.parametrize("limit", [1, 499, 500])
async def test_claims_of_any_size(store: Store, limit: int) -> None:
    await put(store, *[job() for _ in range(501)])
    claimed = await store.run(claim([Lane("default", "mail", 0, 1)], "w1", LEASE, limit))
    assert len({c.id for c in claimed}) == limit
    (row,) = sql(store, "select count(*) from {hf}delivery where status = 'in_flight'")
    assert row == (limit,)


LARGE = {
    "compressible": "x" * 1_000_000,
    "incompressible": "".join(chr(48 + (n * n * 7919 + n // 3) % 75) for n in range(200_000)),
    "barely larger": "x" * 65_536,
}


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
async def test_a_large_payload_does_not_come_with_the_claim(store: Store, text: str) -> None:
    """FAULTS 69: one claim of many large payloads would exceed the worker's memory."""
    await put(store, *[job("mail", {"text": text}) for _ in range(2)], job("mail", {"text": "small"}))
    small, *large = sorted(await claim_all(store, "w1"), key=lambda claimed: claimed.has_payload, reverse=True)
    assert (small.has_payload, [claimed.payload for claimed in large]) == (True, ["", ""])
    for claimed in large:
        assert orjson.loads(await store.run(load_payload(claimed.message_id))) == {"text": text}


async def test_an_idle_workers_claim_leaves_a_large_payload_out(store: Store) -> None:
    await put(store, job("mail", {"text": LARGE["compressible"]}))
    (claimed,) = await store.run(discover_and_claim(["mail"], 0, "w1", LEASE, 10))
    assert not claimed.has_payload


async def test_a_takeover_reads_no_payload(store: Store) -> None:
    await put(store, job("mail", {"text": "small"}))
    await claim_all(store, "w1")
    age(store, 2 * LEASE)
    ((taken, _),) = await store.run(rescue("reaper", LEASE, 10))
    assert not taken.has_payload
