"""What a worker asks about itself and its future: what it holds, what an open transaction holds, what comes next."""

import asyncio
from datetime import timedelta

import psycopg

from holdfast.core.change import Deliver
from holdfast.stores.admin.actions import block_consumer, pause_consumer, pause_queue
from holdfast.stores.connections.connection import Psycopg, run_on
from holdfast.stores.deliveries.claim import held_claims
from holdfast.stores.deliveries.settle import complete, unlocked
from holdfast.stores.deliveries.worker import renew_worker
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import next_due_in
from tests.support.builders import (
    LEASE,
    SECOND,
    age,
    claim_all,
    claim_of,
    claim_one,
    finish,
    fresh_id,
    job,
    put,
    register_consumers,
    start,
)

HOUR = timedelta(hours=1)


def near(found: timedelta | None, expected: timedelta) -> bool:
    return found is not None and expected - 10 * SECOND < found <= expected


async def test_a_worker_holds_what_it_claimed_and_has_not_settled(store: Store) -> None:
    await put(store, job(), job())
    one, two = await claim_all(store, "w1")
    await claim_one(store, "w2")
    await finish(store, one, Deliver(), "w1")
    assert await store.run(held_claims("w1")) == {two.id: two.fence}
    assert await store.run(held_claims("nobody")) == {}


async def test_the_outlook_is_the_time_until_something_may_be_claimed(store: Store) -> None:
    await put(store, job("mail", delay=HOUR), job("mail", delay=2 * HOUR), job("audit"))
    assert near(await store.run(next_due_in(["mail"])), HOUR)
    due = await store.run(next_due_in(["mail", "audit"]))
    assert due is not None
    assert due <= timedelta(0)


async def test_with_nothing_left_there_is_no_outlook(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, Deliver())
    await put(store, job("another"))
    assert await store.run(next_due_in(["mail"])) is None
    assert await store.run(next_due_in([])) is None


async def test_what_is_in_flight_may_be_taken_over_when_its_lease_and_its_worker_are_past(store: Store) -> None:
    await start(store, "w1", ["mail"])
    await claim_one(store)
    assert near(await store.run(next_due_in(["mail"])), LEASE)
    age(store, LEASE, "delivery")
    assert await store.run(renew_worker("w1", HOUR))
    assert near(await store.run(next_due_in(["mail"])), HOUR)


async def test_what_is_paused_has_no_outlook_and_what_is_blocked_a_later_one(store: Store) -> None:
    await register_consumers(store, {"mail": [], "audit": [], "billing": []})
    await put(store, job("mail"), job("audit", queue="slow"), job("billing"))
    await store.run(pause_consumer("mail", "ada", None))
    await store.run(pause_queue("slow", "ada", None))
    await store.run(block_consumer("billing", "db", HOUR, "w1"))
    assert await store.run(next_due_in(["mail", "audit"])) is None
    assert near(await store.run(next_due_in(["mail", "audit", "billing"])), HOUR)


async def test_the_outlook_of_some_queues_leaves_out_the_others(store: Store) -> None:
    await put(store, job("mail", delay=HOUR), job("mail", queue="slow", delay=2 * HOUR))
    assert near(await store.run(next_due_in(["mail"], ["slow"])), 2 * HOUR)
    assert await store.run(next_due_in(["mail"], ["other"])) is None


async def test_a_delivery_that_is_not_being_changed_is_unlocked(store: Store) -> None:
    claimed = await claim_one(store)
    assert await store.run(unlocked([claimed.id, fresh_id()])) == {claimed.id}
    assert await store.run(unlocked([])) == frozenset()


async def test_a_delivery_completed_in_an_open_transaction_is_locked(postgres_store: PostgresStore) -> None:
    store = postgres_store
    claimed = await claim_one(store)
    with psycopg.connect(store.conninfo) as handler:
        run_on(complete(claim_of(claimed), LEASE), store.dialect, Psycopg(handler))
        assert await asyncio.wait_for(store.run(unlocked([claimed.id])), 10) == frozenset()
    assert await store.run(unlocked([claimed.id])) == {claimed.id}
