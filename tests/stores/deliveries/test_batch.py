"""Batches in the store: when a batch is claimed, what claiming it writes, and how it is completed."""

from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.core.delivery import Claim, Status
from holdfast.core.errors import LeaseLost
from holdfast.core.retry import RetryPolicy
from holdfast.stores.admin.actions import block_consumer, pause_consumer, pause_queue
from holdfast.stores.deliveries.batch import BatchLane, batch_lanes, claim_batch, complete_batch
from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.protocol import Store
from tests.support.builders import (
    LEASE,
    SECOND,
    age,
    all_deliveries,
    expire,
    job,
    put,
    register_consumers,
    sql,
    start,
)

LANE = Lane("default", "mail", 0, 1)


async def take(
    store: Store, size: int, within: timedelta = SECOND, *, lane: Lane = LANE, attempts: int = 5, worker: str = "w1"
) -> list[Claimed]:
    return await store.run(claim_batch(lane, size, within, attempts, worker, LEASE))


async def checked(store: Store, most: int = 10) -> list[BatchLane]:
    return await store.run(batch_lanes(["mail"], 0, most))


async def test_a_complete_batch_is_claimed_and_not_more(store: Store) -> None:
    await put(store, *[job() for _ in range(5)])
    claims = await take(store, 3, timedelta(hours=1))
    assert {(c.attempts, c.fence) for c in claims} == {(1, 1)}
    assert len({c.id for c in claims}) == 3
    rows = await all_deliveries(store)
    assert sorted(d.status for d in rows) == [Status.IN_FLIGHT] * 3 + [Status.PENDING] * 2
    assert {d.locked_by for d in rows if d.status is Status.IN_FLIGHT} == {"w1"}


async def test_an_incomplete_batch_is_not_claimed_before_its_time(store: Store) -> None:
    await put(store, job(), job())
    assert await take(store, 3, timedelta(minutes=1)) == []
    assert {(d.status, d.attempts, d.fence) for d in await all_deliveries(store)} == {(Status.PENDING, 0, 0)}
    age(store, timedelta(seconds=59), "delivery")
    assert await take(store, 3, timedelta(minutes=1)) == []
    age(store, timedelta(seconds=2), "delivery")
    assert len(await take(store, 3, timedelta(minutes=1))) == 2


async def test_the_oldest_decides_and_takes_the_younger_ones_along(store: Store) -> None:
    await put(store, job())
    age(store, timedelta(minutes=1), "delivery")
    await put(store, job())
    assert len(await take(store, 3, timedelta(minutes=1))) == 2


async def test_what_is_not_due_completes_no_batch(store: Store) -> None:
    await put(store, job(), job(), job(delay=timedelta(minutes=1)))
    assert await take(store, 3, timedelta(minutes=1)) == []


async def test_only_the_given_lane_is_claimed(store: Store) -> None:
    (wanted, *_) = await put(
        store,
        job(),
        job("other"),
        job(queue="slow"),
        job(generation=1),
        job(priority=2),
    )
    assert [c.message_id for c in await take(store, 1)] == [wanted.id]
    age(store, timedelta(minutes=1), "delivery")
    assert await take(store, 1) == []


async def test_suspects_are_in_no_batch(store: Store) -> None:
    await put(store, job(), job())
    sql(store, "update {hf}delivery set suspect = true")
    age(store, timedelta(minutes=1), "delivery")
    assert await checked(store) == []
    assert await take(store, 2) == []


async def test_a_delivery_is_in_one_batch(store: Store) -> None:
    await put(store, *[job() for _ in range(4)])
    first, second = await take(store, 2, worker="w1"), await take(store, 2, worker="w2")
    assert not {c.id for c in first} & {c.id for c in second}
    assert await take(store, 1, worker="w3") == []


async def test_a_check_counts_what_is_due_up_to_a_limit_and_its_age(store: Store) -> None:
    await put(store, job(), job())
    age(store, timedelta(minutes=1), "delivery")
    await put(store, *[job() for _ in range(9)], job(delay=timedelta(hours=1)), job("other"))
    (found,) = await checked(store, 20)
    assert (found.lane, found.due) == (LANE, 11)
    assert timedelta(seconds=60) <= found.waited < timedelta(seconds=90)
    assert [lane.due for lane in await checked(store, 5)] == [5]
    assert {d.status for d in await all_deliveries(store)} == {Status.PENDING}


async def test_a_check_leaves_out_what_may_not_run(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await put(store, job(delay=timedelta(hours=1)))
    assert await checked(store) == []
    await put(store, job(), job(generation=1))
    assert [found.lane for found in await checked(store)] == [LANE]
    assert await store.run(batch_lanes(["mail"], 0, 10, queues=["slow"])) == []
    await store.run(pause_queue("default", "ada", None))
    assert await checked(store) == []


@pytest.mark.parametrize("how", ["paused", "blocked", "blocked and over"])
async def test_a_check_leaves_out_paused_and_blocked_consumers(store: Store, how: str) -> None:
    await register_consumers(store, {"mail": []})
    await put(store, job())
    if how == "paused":
        await store.run(pause_consumer("mail", "ada", None))
    else:
        await store.run(block_consumer("mail", "db", SECOND, "w1"))
    if how == "blocked and over":
        age(store, timedelta(minutes=1), "consumer")
    assert await checked(store) == []


async def test_completing_a_batch_delivers_each_item(store: Store) -> None:
    await put(store, job(), job(), job())
    claims = await take(store, 3)
    held = [Claim(c.id, "w1", c.fence) for c in claims]
    await store.run(complete_batch(held, LEASE))
    assert {(d.status, d.locked_by) for d in await all_deliveries(store)} == {(Status.DELIVERED, None)}


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_one_lost_item_refuses_the_whole_batch(store: Store, lost: int) -> None:
    await put(store, job(), job(), job())
    held = [Claim(c.id, "w1", c.fence) for c in await take(store, 3)]
    sql(store, f"update {{hf}}delivery set fence = fence + 1 where id = '{held[lost].delivery_id}'")
    with pytest.raises(LeaseLost, match="one of the 3 deliveries"):
        await store.run(complete_batch(held, LEASE))
    assert {d.status for d in await all_deliveries(store)} == {Status.IN_FLIGHT}


async def test_a_batch_of_another_worker_is_not_completed(store: Store) -> None:
    await put(store, job(), job())
    held = [Claim(c.id, "w2", c.fence) for c in await take(store, 2)]
    with pytest.raises(LeaseLost):
        await store.run(complete_batch(held, LEASE))


@pytest.mark.parametrize(
    ("budget", "attempts", "expiries"),
    [(5, 0, 0), (3, 0, 0), (2, 0, 1), (5, 3, 1), (5, 2, 0)],
)
async def test_an_item_whose_next_run_may_be_its_last_is_isolated_after_one_crash(
    store: Store, budget: int, attempts: int, expiries: int
) -> None:
    await put(store, job(), job())
    sql(store, f"update {{hf}}delivery set attempts = {attempts}")
    assert [c.expiries for c in await take(store, 2, attempts=budget)] == [expiries] * 2


async def test_the_budget_of_the_delivery_or_its_message_comes_first(store: Store) -> None:
    (own, policy, plain) = await put(
        store, job(max_attempts=2), job(retry=RetryPolicy.fixed(0, attempts=2)), job(retry=None)
    )
    found = {c.message_id: c.expiries for c in await take(store, 3, attempts=5)}
    assert (found[own.id], found[policy.id], found[plain.id]) == (1, 1, 0)


async def test_a_batch_of_one_runs_alone_already(store: Store) -> None:
    await put(store, job(max_attempts=2))
    assert [c.expiries for c in await take(store, 1)] == [0]


async def test_a_floor_is_only_a_hint(store: Store) -> None:
    await put(store, job())
    (row,) = await all_deliveries(store)
    assert len(await take(store, 1, lane=LANE._replace(floor_at=row.run_at, floor_id=UUID(int=0)))) == 1


async def test_an_abandoned_batch_is_taken_over_item_by_item(store: Store) -> None:
    from holdfast.stores.deliveries.claim import rescue

    await put(store, job(), job())
    await start(store, "w1", ["mail"])
    old = await take(store, 2)
    expire(store)
    taken = await store.run(rescue("w2", LEASE, 10))
    assert sorted(claimed.fence for claimed, _ in taken) == [2, 2]
    with pytest.raises(LeaseLost):
        await store.run(complete_batch([Claim(c.id, "w1", c.fence) for c in old], LEASE))
