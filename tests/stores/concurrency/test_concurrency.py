"""What many callers at once must not do: claim twice, publish twice, replay twice, deadlock, settle what was taken."""

import asyncio
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from uuid import UUID

import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.delivery import Status
from holdfast.core.errors import KeyConflict
from holdfast.core.message import NewMessage
from holdfast.stores.admin.actions import cancel, replay
from holdfast.stores.connections.connection import Sqlite3, run_on, run_on_async
from holdfast.stores.deliveries.claim import Claimed, claim, lanes, rescue
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.deliveries.worker import renew_worker, start_worker
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, register
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, deliveries, messages
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.concurrency.crowd import Caller, Gated, behind, callers, opened, together, until_waiting
from tests.support.builders import LEASE, SECOND, age, expire, failure, job, message, outcome, sql

pytestmark = pytest.mark.long

ROWS = 20_000


async def test_two_hundred_claimers_claim_each_row_exactly_once(postgres_store: PostgresStore) -> None:
    jobs = [job(f"mail-{n % 3}", priority=n % 2) for n in range(ROWS)]
    await postgres_store.run(publish(jobs, Fanout()))
    found = await postgres_store.run(lanes(["mail-0", "mail-1", "mail-2"], 0))
    assert len(found) == 6

    async def claim_until_none_is_left(caller: Caller, number: int) -> list[Claimed]:
        order = random.Random(number).sample(found, len(found))
        mine: list[Claimed] = []
        while some := await caller.run(claim(order, f"w{number}", LEASE, 25)):
            mine += some
        return mine

    async with callers(postgres_store, 200) as crowd:
        claimed = await asyncio.gather(*(claim_until_none_is_left(c, n) for n, c in enumerate(crowd)))
    _check_each_was_claimed_once(postgres_store, claimed)
    assert sum(bool(mine) for mine in claimed) > 100, "hardly anybody competed"


def test_twenty_claimers_on_one_sqlite_file_claim_each_row_exactly_once(sqlite_store: SqliteStore) -> None:
    sqlite_store.run_sync(publish([job("mail", priority=n % 2) for n in range(ROWS)], Fanout()))
    found = sqlite_store.run_sync(lanes(["mail"], 0))

    def claim_until_none_is_left(store: SqliteStore, number: int) -> list[Claimed]:
        mine: list[Claimed] = []
        while some := store.run_sync(claim(found, f"w{number}", LEASE, 100)):
            mine += some
        return mine

    with opened(lambda: SqliteStore(sqlite_store.path), 20) as stores:
        claimed = together([partial(claim_until_none_is_left, s, n) for n, s in enumerate(stores)])
    _check_each_was_claimed_once(sqlite_store, claimed)


@pytest.mark.parametrize("fate", ["commits", "rolls back"])
async def test_a_hundred_publishers_of_one_key_publish_one_message(postgres_store: PostgresStore, fate: str) -> None:
    """Ninety-nine wait for the first; whether it commits or not, one message is left and every caller got its id."""
    await _register(postgres_store, "billing")
    async with callers(postgres_store, 100) as (first, *others):
        await first.connection.execute("begin")
        (mine,) = await first.run(publish([_order()], Fanout()))
        assert mine.created
        waiting = [asyncio.create_task(other.commit(publish([_order()], Fanout()))) for other in others]
        await until_waiting(postgres_store, len(others))
        await first.connection.execute("commit" if fate == "commits" else "rollback")
        published = [one for (one,) in await asyncio.gather(*waiting)]
    (stored,) = await postgres_store.run(messages())
    assert {one.id for one in published} == {stored.id}
    assert (stored.id == mine.id) == (fate == "commits")
    assert sum(one.created for one in published) == (0 if fate == "commits" else 1)
    (listed,) = await postgres_store.run(deliveries(Filter()))
    assert listed.delivery.message_id == stored.id


@pytest.mark.parametrize("fate", ["commit", "rollback"])
def test_a_hundred_publishers_of_one_key_on_sqlite_publish_one_message(sqlite_store: SqliteStore, fate: str) -> None:
    sqlite_store.run_sync(register([Declaration("billing")], [EventSubscription("order.*", "billing")], 0))
    asked = threading.Barrier(100)

    def publish_when_all_have_asked(store: SqliteStore) -> Published:
        asked.wait()
        (published,) = store.run_sync(publish([_order()], Fanout()))
        return published

    with (
        closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as first,
        opened(lambda: SqliteStore(sqlite_store.path), 99) as stores,
        ThreadPoolExecutor(99) as threads,
    ):
        first.execute("begin immediate")
        (mine,) = run_on(publish([_order()], Fanout()), sqlite_store.dialect, Sqlite3(first))
        running = [threads.submit(publish_when_all_have_asked, store) for store in stores]
        asked.wait()
        assert not any(call.done() for call in running)
        first.execute(fate)
        published = [call.result() for call in running]
    (stored,) = sqlite_store.run_sync(messages())
    assert {one.id for one in published} == {stored.id}
    assert (stored.id == mine.id) == (fate == "commit")
    assert sum(one.created for one in published) == (0 if fate == "commit" else 1)


async def test_publishers_of_one_key_with_other_content_meet_a_conflict_and_leave_nothing(
    postgres_store: PostgresStore,
) -> None:
    await _register(postgres_store, "billing")
    async with callers(postgres_store, 21) as (first, *others):
        await first.connection.execute("begin")
        (mine,) = await first.run(publish([_order(1)], Fanout()))
        waiting = [
            asyncio.create_task(other.commit(publish([message(), _order(1 + n % 2)], Fanout())))
            for n, other in enumerate(others)
        ]
        await until_waiting(postgres_store, len(others))
        await first.connection.execute("commit")
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert Counter(type(answer) for answer in answers) == {list: 10, KeyConflict: 10}
    assert {answer[1].id for answer in answers if isinstance(answer, list)} == {mine.id}
    assert len(await postgres_store.run(messages())) == 11, "the conflict took its whole transaction with it"


async def test_a_hundred_publishers_of_one_unique_job_publish_one(postgres_store: PostgresStore) -> None:
    async with callers(postgres_store, 100) as (first, *others):
        await first.connection.execute("begin")
        await first.run(publish([job(unique="k")], Fanout()))
        waiting = [asyncio.create_task(other.commit(publish([job(unique="k")], Fanout()))) for other in others]
        await until_waiting(postgres_store, len(others))
        await first.connection.execute("rollback")
        published = [one for (one,) in await asyncio.gather(*waiting)]
    (stored,) = await postgres_store.run(messages())
    assert {one.id for one in published} == {stored.id}
    assert sum(one.created for one in published) == 1


@pytest.mark.parametrize("kind", ["key", "unique"])
async def test_opposite_orders_do_not_deadlock(postgres_store: PostgresStore, kind: str) -> None:
    """The first waits, with half of its work done, until the second waits for it: if the second held anything, then
    the first would soon wait for the second."""
    names = [f"k{n:03}" for n in range(130 if kind == "key" else 10)]
    before = _deadlocks(postgres_store)
    halfway = asyncio.Event()

    async def gate() -> None:
        halfway.set()
        await until_waiting(postgres_store, 1)

    async with callers(postgres_store, 2) as (first, second):
        async with first.connection.transaction():
            gated = Gated(first.connection, gate)
            ahead = asyncio.create_task(run_on_async(publish(_batch(names, kind), Fanout()), first.dialect, gated))
            await halfway.wait()
            after = asyncio.create_task(second.commit(publish(_batch(names[::-1], kind), Fanout())))
            published = await ahead
        again = await after
    assert [one.id for one in published] == [one.id for one in reversed(again)]
    assert all(one.created for one in published)
    assert not any(one.created for one in again)
    assert _deadlocks(postgres_store) == before


@pytest.mark.parametrize("kind", ["key", "unique"])
async def test_many_publishers_of_the_same_names_in_any_order_do_not_deadlock(
    postgres_store: PostgresStore, kind: str
) -> None:
    names = [f"k{n:03}" for n in range(130 if kind == "key" else 12)]
    before = _deadlocks(postgres_store)
    async with callers(postgres_store, 24) as crowd:
        orders = [random.Random(n).sample(names, len(names)) for n in range(24)]
        answers = await asyncio.gather(
            *(
                caller.commit(publish(_batch(order, kind), Fanout()))
                for caller, order in zip(crowd, orders, strict=True)
            )
        )
    # Each caller got the same id for the same name, at any position.
    assert len({frozenset(zip(o, (p.id for p in a), strict=True)) for o, a in zip(orders, answers, strict=True)}) == 1
    assert sum(one.created for answer in answers for one in answer) == len(names)
    assert _deadlocks(postgres_store) == before


def test_many_sources_that_enqueue_the_same_jobs_in_any_order_store_each_once(place: Callable[[], Store]) -> None:
    names = [f"order:{n:03}:cancel" for n in range(40)]
    with opened(place, 8) as stores:
        orders = [random.Random(n).sample(names, len(names)) for n in range(8)]
        answers = together(
            [
                partial(store.run_sync, publish([job("cancel", key=key, source=f"app-{n}") for key in order], Fanout()))
                for n, (store, order) in enumerate(zip(stores, orders, strict=True))
            ]
        )
        assert sum(one.created for answer in answers for one in answer) == len(names)
        by_name = [{key: one.id for key, one in zip(o, a, strict=True)} for o, a in zip(orders, answers, strict=True)]
        assert all(ids == by_name[0] for ids in by_name)
        assert sql(stores[0], "select count(*) from {hf}delivery") == [(40,)]


def test_several_operators_replay_each_dead_letter_once(place: Callable[[], Store]) -> None:
    with opened(place, 8) as stores:
        ids = _dead_letters(stores[0], 150)
        replayed = together(
            [
                partial(store.run_sync, replay(_shuffled(ids, n), f"operator-{n}", None))
                for n, store in enumerate(stores)
            ]
        )
        assert sorted(one.id for some in replayed for one in some) == sorted(ids)
        listed = [found.delivery for found in stores[0].run_sync(deliveries(Filter(), limit=1000))]
        assert {d.status for d in listed} == {Status.PENDING}
        assert {(d.fence, d.attempts, len(d.failure_history)) for d in listed} == {(2, 0, 1)}
        assert sql(stores[0], "select count(*) from {hf}audit where action = 'replay'") == [(150,)]


def test_several_operators_cancel_each_delivery_once(place: Callable[[], Store]) -> None:
    with opened(place, 8) as stores:
        stores[0].run_sync(publish([job() for _ in range(150)], Fanout()))
        ids = [found.delivery.id for found in stores[0].run_sync(deliveries(Filter(), limit=1000))]
        cancelled = together(
            [
                partial(store.run_sync, cancel(_shuffled(ids, n), f"operator-{n}", None))
                for n, store in enumerate(stores)
            ]
        )
        assert sorted(id for some in cancelled for id in some) == sorted(ids)
        assert sql(stores[0], "select count(*) from {hf}audit where action = 'cancel'") == [(150,)]


def test_a_replay_that_meets_a_new_job_with_its_unique_key_leaves_one_of_them_waiting(
    place: Callable[[], Store],
) -> None:
    with opened(place, 8) as stores:
        for round in range(10):
            stores[0].run_sync(publish([job("mail", unique=f"k{round}")], Fanout()))
        ids = _dead_letters(stores[0], 0)

        def replay_all(store: Store, seed: int) -> None:
            store.run_sync(replay(_shuffled(ids, seed), "ada", None))

        def publish_all(store: Store, seed: int) -> None:
            for n in _shuffled(range(10), seed):
                store.run_sync(publish([job("mail", unique=f"k{n}")], Fanout()))

        together([partial(publish_all if n % 2 else replay_all, store, n) for n, store in enumerate(stores)])
        pending = stores[0].run_sync(deliveries(Filter(statuses=(Status.PENDING,)), limit=1000))
        assert len(pending) == 10


async def test_a_replay_looks_again_when_its_unique_key_was_taken_concurrently(postgres_store: PostgresStore) -> None:
    await postgres_store.run(publish([job("mail", unique="k")], Fanout()))
    (dead,) = _dead_letters(postgres_store, 0)
    async with callers(postgres_store, 1) as (producer,):
        await producer.connection.execute("begin")
        (new,) = await producer.run(publish([job("mail", unique="k")], Fanout()))
        assert new.created
        replaying = asyncio.create_task(postgres_store.run(replay([dead], "ada", None)))
        await until_waiting(postgres_store, 1)
        await producer.connection.execute("commit")
        assert await replaying == []
    listed = {found.delivery.id: found.delivery for found in await postgres_store.run(deliveries(Filter()))}
    assert listed.pop(dead).status is Status.FAILED
    assert [d.status for d in listed.values()] == [Status.PENDING]
    assert sql(postgres_store, "select count(*) from {hf}audit where action = 'replay'") == [(0,)]


def test_several_processes_that_catch_up_make_each_delivery_once(place: Callable[[], Store]) -> None:
    with opened(place, 6) as stores:
        stores[0].run_sync(publish([message() for _ in range(2500)], Fanout()))
        names = [f"c{n}" for n in range(3)]
        for name in names:
            stores[0].run_sync(
                register([Declaration(name)], [EventSubscription("*", name), EventSubscription("order.*", name)], 0)
            )

        def catch_up_until_the_end(store: Store) -> int:
            added = 0
            while behind(store):
                some, _ = store.run_sync(catch_up())
                added += some
            return added

        added = together([partial(catch_up_until_the_end, store) for store in stores])
        assert sum(added) == 3 * 2500
        assert sql(stores[0], "select consumer, count(*) from {hf}delivery group by consumer order by consumer") == [
            (name, 2500) for name in names
        ]


def test_a_take_over_and_a_settle_never_both_succeed(place: Callable[[], Store]) -> None:
    with opened(place, 4) as stores:
        store = stores[0]
        for round in range(5):
            store.run_sync(publish([job() for _ in range(60)], Fanout()))
            found = store.run_sync(lanes(["mail"], 0))
            claimed = store.run_sync(claim(found, f"w{round}", LEASE, 60))
            expire(store)
            rest = _shuffled(claimed, round)

            def settle_in_pieces(store: Store, owner: str, rest: list[Claimed]) -> set[UUID]:
                pieces = (rest[n : n + 5] for n in range(0, len(rest), 5))
                return {
                    id
                    for piece in pieces
                    for id in store.run_sync(settle(owner, [outcome(c, Deliver()) for c in piece]))
                }

            def take_in_pieces(store: Store, reaper: str) -> set[UUID]:
                mine: set[UUID] = set()
                while some := store.run_sync(rescue(reaper, LEASE, 7)):
                    mine |= {taken.claimed.id for taken in some}
                return mine

            settled, *taken = together(
                [
                    partial(settle_in_pieces, stores[1], f"w{round}", rest),
                    partial(take_in_pieces, stores[2], f"r{round}"),
                    partial(take_in_pieces, stores[3], f"s{round}"),
                ]
            )
            parts = [settled, *taken]
            assert sum(len(part) for part in parts) == len(claimed), f"round {round}: {[len(p) for p in parts]}"
            assert set.union(*parts) == {c.id for c in claimed}
            # The old owner has no say any more; the new ones have.
            assert not settle_in_pieces(store, f"w{round}", claimed)
            owners = sql(store, "select locked_by, count(*) from {hf}delivery where status = 'in_flight' group by 1")
            reapers = zip((f"r{round}", f"s{round}"), taken, strict=True)
            assert sorted(owners) == [(reaper, len(part)) for reaper, part in reapers if part]
            sql(store, "update {hf}delivery set status = 'delivered', locked_by = null where status = 'in_flight'")


def test_a_take_over_spares_a_worker_that_renewed_and_fences_one_that_renews_too_late(
    place: Callable[[], Store],
) -> None:
    with opened(place, 3) as stores:
        store = stores[0]
        for round in range(12):
            worker = f"w{round}"
            store.run_sync(start_worker(worker, 0, ["default"], ["mail"], LEASE))
            store.run_sync(publish([job() for _ in range(20)], Fanout()))
            claimed = store.run_sync(claim(store.run_sync(lanes(["mail"], 0)), worker, LEASE, 20))
            age(store, LEASE + SECOND, "delivery")
            # The worker's lease ends a moment before or after both begin.
            at = f"clock_timestamp() + interval '{3 * round} ms'"
            if isinstance(store, SqliteStore):
                at = f"{store.dialect.now} + {3 * round}"
            sql(store, f"update {{hf}}worker set alive_until = {at} where id = '{worker}'")

            def renew(store: Store, worker: str) -> int:
                return store.run_sync(renew_worker(worker, LEASE)) and 0

            def take(store: Store, reaper: str) -> int:
                return len(store.run_sync(rescue(reaper, LEASE, 100)))

            _, taken = together([partial(renew, stores[1], worker), partial(take, stores[2], f"r{round}")])
            # Before or after, never between: who renewed in time keeps all of it, who did not can settle none of it.
            assert taken in (0, 20)
            settled = store.run_sync(settle(worker, [outcome(c, Deliver()) for c in claimed]))
            assert len(settled) == 20 - taken
            assert not store.run_sync(rescue("later", LEASE, 100)), "the new owner's lease counts"
            sql(store, "delete from {hf}delivery")


def _batch(names: Iterable[str], kind: str) -> list[NewMessage]:
    return [message(key=name) if kind == "key" else job(unique=name) for name in names]


def _order(number: int = 1) -> NewMessage:
    return message("order.placed", {"number": number}, key="order-1")


async def _register(store: Store, consumer: str) -> None:
    await store.run(register([Declaration(consumer)], [EventSubscription("order.*", consumer)], 0))


def _shuffled(items: Iterable[object], seed: int) -> list:
    items = list(items)
    return random.Random(seed).sample(items, len(items))


def _dead_letters(store: Store, new: int) -> list[UUID]:
    """Publishes so many jobs, and lets everything that waits fail permanently."""
    store.run_sync(publish([job() for _ in range(new)], Fanout()))
    claimed = store.run_sync(claim(store.run_sync(lanes(["mail"], 0)), "w1", LEASE, 500))
    store.run_sync(settle("w1", [outcome(c, DeadLetter(), error=failure()) for c in claimed]))
    return [c.id for c in claimed]


def _check_each_was_claimed_once(store: Store, claimed: Iterable[list[Claimed]]) -> None:
    times = Counter(one.id for mine in claimed for one in mine)
    assert len(times) == ROWS
    assert set(times.values()) == {1}
    assert sql(store, "select count(*), min(fence), max(fence), min(attempts), max(attempts) from {hf}delivery") == [
        (ROWS, 1, 1, 1, 1)
    ]
    owners = sql(store, "select locked_by, count(*) from {hf}delivery group by locked_by")
    assert sorted(owners) == sorted((f"w{n}", len(mine)) for n, mine in enumerate(claimed) if mine)


def _deadlocks(store: PostgresStore) -> int:
    """How many deadlocks the server has seen; a session reports its own at the latest when it ends."""
    return int(str(sql(store, "select deadlocks from pg_stat_database where datname = current_database()")[0][0]))
