"""Workers' rows and taking over: a delivery is taken only when its lease and its worker's lease are both past."""

from datetime import timedelta

import pytest

from holdfast.core.delivery import Status
from holdfast.core.errors import Refused
from holdfast.core.retry import RetryPolicy
from holdfast.stores.deliveries.claim import next_expiry, rescue
from holdfast.stores.deliveries.worker import forget_workers, renew_worker, start_worker, stop_worker, workers
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import (
    LEASE,
    SECOND,
    age,
    claim_all,
    claim_one,
    delivery,
    expire,
    job,
    message,
    put,
    register_consumers,
    start,
)


async def test_a_worker_is_known_as_it_announced_itself(store: Store) -> None:
    await store.run(start_worker("w1", 3, ["default", "slow"], ["mail", "audit"], LEASE))
    await claim_one(store, "w1")
    (found,) = await store.run(workers())
    assert (found.id, found.generation, found.alive, found.in_flight) == ("w1", 3, True, 1)
    assert (found.queues, found.consumers) == (("default", "slow"), ("mail", "audit"))
    assert found.alive_until == found.started_at + LEASE


async def test_an_instance_id_is_used_once(store: Store) -> None:
    await start(store, "w1", ["mail"])
    with pytest.raises(Refused, match="new instance id"):
        await start(store, "w1", ["mail"])
    age(store, LEASE + SECOND, "worker")
    with pytest.raises(Refused):
        await start(store, "w1", ["mail"])


async def test_a_renewal_reaches_from_now(store: Store) -> None:
    await start(store, "w1", ["mail"])
    before = await store.run(clock())
    assert await store.run(renew_worker("w1", 2 * LEASE))
    (found,) = await store.run(workers())
    assert before + 2 * LEASE <= found.alive_until <= await store.run(clock()) + 2 * LEASE


async def test_a_lease_that_expired_or_is_gone_cannot_be_renewed(store: Store) -> None:
    """Other workers may have taken over what it covered, so this one has to stop its handlers."""
    await start(store, "w1", ["mail"])
    await start(store, "w2", ["mail"])
    age(store, LEASE - SECOND, "worker")
    assert await store.run(renew_worker("w1", LEASE))
    age(store, 2 * SECOND, "worker")
    assert not await store.run(renew_worker("w2", LEASE))
    assert await store.run(renew_worker("w1", LEASE))
    assert [(w.id, w.alive) for w in await store.run(workers())] == [("w1", True), ("w2", False)]
    await store.run(stop_worker("w1"))
    assert not await store.run(renew_worker("w1", LEASE))


async def test_only_workers_that_ended_long_ago_and_hold_nothing_are_forgotten(store: Store) -> None:
    await start(store, "holding", ["mail"])
    await claim_one(store, "holding")
    await start(store, "idle", ["mail"])
    age(store, LEASE + timedelta(hours=1), "worker")
    await start(store, "alive", ["mail"])
    await store.run(forget_workers(timedelta(hours=2)))
    assert {w.id for w in await store.run(workers())} == {"holding", "idle", "alive"}
    await store.run(forget_workers(timedelta(minutes=59)))
    assert {w.id for w in await store.run(workers())} == {"holding", "alive"}


async def test_nothing_is_taken_over_while_the_delivery_lease_lasts(store: Store) -> None:
    await start(store, "w1", ["mail"])
    await claim_one(store)
    age(store, LEASE + SECOND, "worker")
    age(store, LEASE - SECOND, "delivery")
    assert await store.run(rescue("reaper", LEASE, 10)) == []


async def test_nothing_is_taken_over_while_its_worker_lives(store: Store) -> None:
    await start(store, "w1", ["mail"])
    claimed = await claim_one(store)
    age(store, LEASE + SECOND, "delivery")
    assert await store.run(renew_worker("w1", LEASE))
    assert await store.run(rescue("reaper", LEASE, 10)) == []
    assert (await delivery(store, claimed.id)).locked_by == "w1"


async def test_what_is_not_in_flight_is_never_taken_over(store: Store) -> None:
    await put(store, job())
    expire(store)
    assert await store.run(rescue("reaper", LEASE, 10)) == []


async def test_taking_over_counts_no_attempt_and_voids_the_old_fence(store: Store) -> None:
    await start(store, "w1", ["mail"])
    claimed = await claim_one(store)
    expire(store)
    before = await store.run(clock())
    ((taken, policy),) = await store.run(rescue("reaper", LEASE, 10))
    assert (taken.id, taken.attempts, taken.fence) == (claimed.id, 1, claimed.fence + 1)
    assert taken.payload == "", "a takeover reads no payload: it may be large, and nothing runs here"
    assert policy == RetryPolicy.exponential(), "this consumer is not registered: the default decides"
    row = await delivery(store, claimed.id)
    assert (row.status, row.locked_by, row.attempts) == (Status.IN_FLIGHT, "reaper", 1)
    assert row.lease_until is not None
    assert before + LEASE <= row.lease_until <= await store.run(clock()) + LEASE


async def test_a_worker_that_stopped_or_was_never_announced_protects_nothing_past_the_lease(store: Store) -> None:
    await claim_one(store, "ghost")
    assert await store.run(rescue("reaper", LEASE, 10)) == []
    age(store, LEASE + SECOND, "delivery")
    assert len(await store.run(rescue("reaper", LEASE, 10))) == 1


async def test_what_was_taken_over_can_be_taken_over_again(store: Store) -> None:
    """A reaper may die as well."""
    await claim_one(store)
    expire(store)
    assert len(await store.run(rescue("reaper", LEASE, 10))) == 1
    assert await store.run(rescue("other", LEASE, 10)) == []
    expire(store)
    ((taken, _),) = await store.run(rescue("other", LEASE, 10))
    assert taken.fence == 3


async def test_the_policy_that_decides_comes_along(store: Store) -> None:
    own, declared = RetryPolicy.fixed(7, attempts=2), RetryPolicy.schedule([1, 2])
    await register_consumers(store, {"billing": ["*"], "mail": []}, retry=declared)
    await put(store, message(), job("mail", retry=own))
    assert len(await claim_all(store)) == 2
    expire(store)
    taken = {claimed.consumer: policy for claimed, policy in await store.run(rescue("reaper", LEASE, 10))}
    assert taken == {"billing": declared, "mail": own}


async def test_no_more_is_taken_over_than_asked_for(store: Store) -> None:
    await put(store, *[job() for _ in range(5)])
    await claim_all(store)
    expire(store)
    assert len(await store.run(rescue("reaper", LEASE, 3))) == 3
    assert len(await store.run(rescue("reaper", LEASE, 3))) == 2


async def test_the_next_expiry_is_that_of_the_first_other_worker_that_lives(store: Store) -> None:
    assert await store.run(next_expiry("w1")) is None
    await start(store, "w1", ["mail"])
    assert await store.run(next_expiry("w1")) is None, "its own lease is nothing to wait for"
    await start(store, "dead and idle", ["mail"])
    age(store, 2 * LEASE, "worker")
    await start(store, "w2", ["mail"])
    await start(store, "w3", ["mail"])
    await store.run(renew_worker("w2", 2 * LEASE))
    assert await store.run(next_expiry("w1")) == pytest.approx(LEASE.total_seconds(), abs=5)


async def test_the_next_expiry_is_that_of_a_delivery_whose_worker_is_dead_or_gone(store: Store) -> None:
    await start(store, "w2", ["mail"])
    await claim_one(store, "w2")
    age(store, LEASE + SECOND, "worker")
    await start(store, "w3", ["mail"])
    await store.run(renew_worker("w3", 10 * LEASE))
    assert await store.run(next_expiry("w1")) == pytest.approx(LEASE.total_seconds(), abs=5)
    age(store, LEASE + SECOND, "delivery")
    assert -5 < (await store.run(next_expiry("w1")) or 0) < 0
    await store.run(rescue("w3", LEASE, 10))
    await claim_one(store, "never announced")
    assert await store.run(next_expiry("w1")) == pytest.approx(LEASE.total_seconds(), abs=5)
    age(store, LEASE + SECOND, "delivery")
    assert len(await store.run(rescue("w1", LEASE, 10))) == 1


async def test_what_a_living_worker_holds_does_not_expire_with_its_claim(store: Store) -> None:
    await start(store, "w2", ["mail"])
    await claim_one(store, "w2")
    age(store, LEASE + SECOND, "delivery")
    assert await store.run(next_expiry("w1")) == pytest.approx(LEASE.total_seconds(), abs=5)
    await store.run(renew_worker("w2", 10 * LEASE))
    assert await store.run(next_expiry("w1")) == pytest.approx(10 * LEASE.total_seconds(), abs=5)
