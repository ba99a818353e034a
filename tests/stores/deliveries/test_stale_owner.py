"""A stale owner's settle changes nothing, for every way to lose a claim.

`settle` leaves it out of what it returns, and `complete` raises `LeaseLost`.
"""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.errors import LeaseLost
from holdfast.stores.admin.actions import cancel, discard, replay
from holdfast.stores.deliveries.claim import Claimed, rescue
from holdfast.stores.deliveries.settle import ClaimState, claim_states, complete, settle
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import runs
from tests.support.builders import (
    LEASE,
    SECOND,
    claim_all,
    claim_of,
    claim_one,
    delivery,
    expire,
    failure,
    finish,
    outcome,
    start,
)

BOOM = failure("stale")


async def assert_lost(store: Store, stale: Claimed, worker: str = "w1") -> None:
    """Every way to settle is refused, alone and in a batch, and leaves neither a changed row nor a run."""
    before = await delivery(store, stale.id)
    recorded = await store.run(runs(stale.id))
    ways = [
        outcome(stale, Deliver()),
        outcome(stale, Deliver(), keep_run=True),
        outcome(stale, Retry(SECOND), error=BOOM),
        outcome(stale, DeadLetter(), error=BOOM),
    ]
    for way in ways:
        assert await store.run(settle(worker, [way])) == frozenset()
        assert await delivery(store, stale.id) == before
    with pytest.raises(LeaseLost, match=str(stale.id)):
        await store.run(complete(claim_of(stale, worker), LEASE))
    assert await delivery(store, stale.id) == before
    assert await store.run(runs(stale.id)) == recorded
    assert await store.run(claim_states([claim_of(stale, worker)])) == {stale.id: ClaimState.LOST}


async def dead_letter(store: Store) -> Claimed:
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    return claimed


async def test_after_its_lease_ran_out_and_was_taken_over(store: Store) -> None:
    await start(store, "w1", ["mail"])
    stale = await claim_one(store)
    expire(store)
    ((taken, _),) = await store.run(rescue("reaper", LEASE, 10))
    await assert_lost(store, stale)
    assert await finish(store, taken, Retry(timedelta(0)), "reaper", error=failure("worker lease expired"))
    await assert_lost(store, stale)


async def test_after_another_worker_claimed_it_again(store: Store) -> None:
    stale = await claim_one(store)
    await finish(store, stale, Retry(timedelta(0)), error=failure())
    (owned,) = await claim_all(store, "w2")
    await assert_lost(store, stale)
    assert await finish(store, owned, Deliver(), "w2")


async def test_after_the_same_worker_claimed_it_again(store: Store) -> None:
    stale = await claim_one(store)
    await finish(store, stale, Retry(timedelta(0)), error=failure())
    (owned,) = await claim_all(store, "w1")
    assert owned.fence > stale.fence
    await assert_lost(store, stale)
    assert await finish(store, owned, Deliver())


async def test_after_a_replay(store: Store) -> None:
    stale = await dead_letter(store)
    assert len(await store.run(replay([stale.id], "ada", None))) == 1
    await assert_lost(store, stale)


async def test_after_a_replay_and_a_claim_by_the_same_worker(store: Store) -> None:
    stale = await dead_letter(store)
    await store.run(replay([stale.id], "ada", None))
    (owned,) = await claim_all(store, "w1")
    await assert_lost(store, stale)
    assert await finish(store, owned, Deliver())


async def test_after_a_cancellation(store: Store) -> None:
    stale = await claim_one(store)
    assert await store.run(cancel([stale.id], "ada", None)) == {stale.id}
    await assert_lost(store, stale)


async def test_after_a_discard(store: Store) -> None:
    stale = await dead_letter(store)
    assert await store.run(discard([stale.id], "ada", None)) == {stale.id}
    await assert_lost(store, stale)


async def test_a_second_settle_of_the_same_claim_changes_nothing(store: Store) -> None:
    """The fence is still the claim's, but no worker owns it: only one settle counts."""
    for end in (Retry(timedelta(0)), DeadLetter()):
        claimed = await claim_one(store)
        assert await finish(store, claimed, end, error=failure())
        before = await delivery(store, claimed.id)
        assert not await finish(store, claimed, Deliver())
        assert not await finish(store, claimed, Deliver(), keep_run=True)
        assert not await finish(store, claimed, DeadLetter())
        assert await delivery(store, claimed.id) == before
        await store.run(cancel([claimed.id], "ada", None))


async def test_a_worker_cannot_settle_what_another_holds(store: Store) -> None:
    claimed = await claim_one(store, "w1")
    await assert_lost(store, claimed, "w2")
    assert await finish(store, claimed, Deliver(), "w1")


async def test_a_fence_from_the_future_is_no_claim(store: Store) -> None:
    claimed = await claim_one(store)
    await assert_lost(store, claimed._replace(fence=claimed.fence + 1))


async def test_the_fence_only_rises(store: Store) -> None:
    fences: list[int] = []
    claimed = await claim_one(store)

    async def note() -> None:
        fences.append((await delivery(store, claimed.id)).fence)

    await note()
    await finish(store, claimed, Retry(timedelta(0)), error=failure())
    await note()
    (claimed,) = await claim_all(store)
    await note()
    expire(store)
    ((claimed, _),) = await store.run(rescue("reaper", LEASE, 10))
    await note()
    await finish(store, claimed, DeadLetter(), "reaper", error=failure())
    await store.run(replay([claimed.id], "ada", None))
    await note()
    await store.run(cancel([claimed.id], "ada", None))
    await note()
    assert fences == [1, 1, 2, 3, 4, 5]
