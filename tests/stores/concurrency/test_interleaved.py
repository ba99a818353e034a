"""Two transactions on PostgreSQL, step by step: what one has done and not committed, the other must not undo or repeat."""

import threading
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.stores.admin.actions import audit, replay
from holdfast.stores.connections.connection import AsyncPsycopg, Psycopg, run_on, run_on_async
from holdfast.stores.deliveries.claim import Lane, claim, rescue
from holdfast.stores.dialect import Answer, Parameters
from holdfast.stores.event_log.projection import ProjectorBusy, assert_idle, hold
from holdfast.stores.event_log.projection import started as begin_in_place
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.messages.registry import catch_up
from holdfast.stores.operation import Operation, Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.workflows.advance import advance, items_join
from holdfast.stores.workflows.items import start_items
from holdfast.stores.workflows.wait import Suspension, memo, suspend
from tests.stores.concurrency.query_hook import before_each_query
from tests.stores.event_log import test_projection
from tests.stores.messages.test_prune import prune
from tests.stores.workflows.run_steps import claim_steps, end, events, started
from tests.support.builders import (
    LEASE,
    all_deliveries,
    catch_up_fully,
    claim_all,
    claim_of,
    claim_one,
    delivery,
    expire,
    failure,
    finish,
    job,
    message,
    put,
    register_consumers,
    start,
    until_one_waits,
)

LANE = [Lane("default", "mail", 0, 1)]


def open_session(store: PostgresStore) -> psycopg.Connection:
    """A session that gives up at once where it would have to wait."""
    session = psycopg.connect(store.conninfo)
    session.execute("set lock_timeout = '250ms'")
    session.commit()
    return session


async def test_a_claim_passes_over_what_another_is_claiming(postgres_store: PostgresStore) -> None:
    store = postgres_store
    await put(store, job(), job(), job())
    with open_session(store) as first, open_session(store) as second:
        mine = run_on(claim(LANE, "w1", LEASE, 1), store.dialect, Psycopg(first))
        try:
            theirs = run_on(claim(LANE, "w2", LEASE, 10), store.dialect, Psycopg(second))
        except psycopg.errors.LockNotAvailable as error:
            raise AssertionError("a claim waited for another") from error
        assert len(mine) == 1
        assert len(theirs) == 2
    assert {(d.locked_by, d.fence) for d in await all_deliveries(store)} == {("w1", 1), ("w2", 1)}


async def test_taking_over_passes_over_what_another_is_taking(postgres_store: PostgresStore) -> None:
    store = postgres_store
    await claim_one(store)
    expire(store)
    with open_session(store) as first, open_session(store) as second:
        assert len(run_on(rescue("r1", LEASE, 10), store.dialect, Psycopg(first))) == 1
        try:
            assert run_on(rescue("r2", LEASE, 10), store.dialect, Psycopg(second)) == []
        except psycopg.errors.LockNotAvailable as error:
            raise AssertionError("one reaper waited for another") from error
    (row,) = await all_deliveries(store)
    assert (row.locked_by, row.fence) == ("r1", 2)


async def test_a_replay_that_waited_for_another_looks_again(postgres_store: PostgresStore) -> None:
    store = postgres_store
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    second: list[int] = []

    def wait_and_replay() -> None:
        second.append(len(store.run_sync(replay([claimed.id], "bob", None))))

    with psycopg.connect(store.conninfo) as first:
        assert len(run_on(replay([claimed.id], "ada", None), store.dialect, Psycopg(first))) == 1
        thread = threading.Thread(target=wait_and_replay)
        thread.start()
        until_one_waits(store)
    thread.join(30)
    assert second == [0]
    assert (await delivery(store, claimed.id)).fence == claimed.fence + 1
    assert [entry.actor for entry in await store.run(audit())] == ["ada"]


async def test_a_rebuild_waits_for_a_claim_that_began_before_its_hold(postgres_store: PostgresStore) -> None:
    store = postgres_store
    held = await test_projection.projecting(store)
    await put(store, message())
    await start(store, "w1", ["totals"])
    found: list[BaseException | None] = []

    def look() -> None:
        try:
            store.run_sync(Operation(lambda: assert_idle(held)))
        except ProjectorBusy as error:
            found.append(error)
        else:
            found.append(None)

    with psycopg.connect(store.conninfo) as worker:
        assert len(run_on(claim([test_projection.LANE], "w1", LEASE, 1), store.dialect, Psycopg(worker))) == 1
        await store.run(hold(held, LEASE))
        thread = threading.Thread(target=look)
        thread.start()
        until_one_waits(store)
    thread.join(30)
    assert isinstance(found[0], ProjectorBusy)


async def test_a_subscription_that_joins_during_a_catch_up_misses_nothing(postgres_store: PostgresStore) -> None:
    """Its mark equals that of the group that is being caught up, but its messages were not looked at."""
    store = postgres_store
    (published,) = await put(store, message())
    await register_consumers(store, {"first": ["*"]})
    async with await psycopg.AsyncConnection.connect(store.conninfo) as connection:
        running = ""

        def record(query: Query) -> None:
            nonlocal running
            running = query.name

        class Joined(AsyncPsycopg):
            async def run(self, text: str, values: Parameters) -> Answer:
                if running == "catch_up_advance":
                    await register_consumers(store, {"second": ["*"]})
                return await super().run(text, values)

        observed = before_each_query(catch_up(), record)
        assert await run_on_async(observed, store.dialect, Joined(connection)) == (1, False)
    assert await catch_up_fully(store) == 1
    assert await consumers_of(store, published.id) == {"first", "second"}


async def test_a_message_of_a_transaction_still_open_is_not_passed_over(postgres_store: PostgresStore) -> None:
    """It has the lower position and commits last: the mark must not move beyond it."""
    store = postgres_store
    late = message()
    with psycopg.connect(store.conninfo) as publisher:
        run_on(publish([late], Fanout()), store.dialect, Psycopg(publisher))
        (early,) = await put(store, message())
        await register_consumers(store, {"billing": ["*"]})
        await catch_up_fully(store)
    await catch_up_fully(store)
    assert await consumers_of(store, early.id) == {"billing"}
    assert await consumers_of(store, late.id) == {"billing"}


async def test_from_now_still_gets_what_was_in_flight_at_that_moment(postgres_store: PostgresStore) -> None:
    store = postgres_store
    (before,) = await put(store, message())
    in_flight = message()
    with psycopg.connect(store.conninfo) as publisher:
        run_on(publish([in_flight], Fanout()), store.dialect, Psycopg(publisher))
        # Its transaction began after the open one, so that only the snapshot shows that it came before.
        (between,) = await put(store, message())
        await register_consumers(store, {"billing": ["*"]}, from_start=False)
    await catch_up_fully(store)
    assert await consumers_of(store, before.id) == set()
    assert await consumers_of(store, between.id) == set()
    assert await consumers_of(store, in_flight.id) == {"billing"}
    assert await claim_all(store, consumers=["billing"])


async def consumers_of(store: PostgresStore, message_id: UUID) -> set[str]:
    return {d.consumer for d in await all_deliveries(store) if d.message_id == message_id}


async def test_pruning_what_came_later_hides_no_message_of_a_publisher_that_was_still_open(
    postgres_store: PostgresStore,
) -> None:
    store = postgres_store
    early = message()
    with psycopg.connect(store.conninfo) as publisher:
        run_on(publish([early], Fanout()), store.dialect, Psycopg(publisher))
        await register_consumers(store, {"mail": ["*"]})
        await put(store, message())
        (claimed,) = await claim_all(store)
        await finish(store, claimed, Deliver())
        assert await prune(store, timedelta(0)) == 1
    await catch_up_fully(store)
    assert [d.message_id for d in await all_deliveries(store)] == [early.id]


async def test_the_last_item_wakes_a_step_whose_suspension_it_waited_for(postgres_store: PostgresStore) -> None:
    """When the advance began, the step was in flight; when it has the run's lock, the step is pending."""
    store = postgres_store
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    owner = claim_of(claimed)
    await store.run(start_items(owner, run, 0, "a/map:b#0", "b@a#0", "flow/b", ["1"]))
    (item,) = await claim_steps(store)
    last = end(item)._replace(step="b@a#0", next=items_join(run, "b@a#0"))
    parked = Suspension(run, "a/map:b#0", 0, claimed.id, claimed.fence, 0, None, None, False)
    with psycopg.connect(store.conninfo) as suspending:
        assert run_on(suspend("w1", [parked]), store.dialect, Psycopg(suspending)) == {claimed.id}
        thread = threading.Thread(target=lambda: store.run_sync(advance("w1", [last], events(), wait=True)))
        thread.start()
        until_one_waits(store)
    thread.join(30)
    assert [one.id for one in await claim_steps(store)] == [claimed.id]


async def test_steps_of_a_run_that_another_transaction_changes_are_left_for_later(
    postgres_store: PostgresStore,
) -> None:
    """A cancellation or a signal holds the run: neither the outcome nor the wait of its step may be decided before it."""
    store = postgres_store
    await started(store, 3)
    held, *free = await claim_steps(store)
    waits = [Suspension(one.message_id, "a/wait:go", 0, one.id, one.fence, 0, "go", None) for one in (held, free[0])]
    with open_session(store) as changing, open_session(store) as other:
        changing.execute("update holdfast.workflow_run set signals = 1 where id = %s", [held.message_id])
        try:
            suspended = run_on(suspend("w1", waits), store.dialect, Psycopg(other))
            advanced = run_on(advance("w1", [end(held), end(free[1])], events()), store.dialect, Psycopg(other))
        except psycopg.errors.LockNotAvailable as error:
            raise AssertionError("the other runs of the batch waited") from error
        assert suspended == {free[0].id}
        assert advanced.settled == {free[1].id}


async def test_a_value_is_not_remembered_while_another_transaction_takes_the_claim(
    postgres_store: PostgresStore,
) -> None:
    store = postgres_store
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    with open_session(store) as taking, open_session(store) as stale:
        taking.execute("update holdfast.delivery set fence = fence + 1 where id = %s", [claimed.id])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run_on(memo(claim_of(claimed), run, "a/m", 0, "1"), store.dialect, Psycopg(stale))


async def test_a_rebuild_does_not_fence_a_run_that_is_taken_over_while_it_waits(postgres_store: PostgresStore) -> None:
    """It read both runs as expired. While it waits for their locks, a live worker takes over one of them."""
    store = postgres_store
    held = await test_projection.projecting(store)
    await put(store, message(), message())
    begin = Operation(lambda: begin_in_place(held, online=False, resume=False, total=0, actor="ada", reason=None))
    claims = {one.id: one.fence for one in await store.run(claim([Lane("default", "totals", 0, 1)], "w1", LEASE, 10))}
    expire(store)
    with psycopg.connect(store.conninfo) as other:
        other.execute("select from holdfast.delivery where id = any(%s) for update", [list(claims)])
        thread = threading.Thread(target=lambda: store.run_sync(begin))
        thread.start()
        until_one_waits(store)
        (taken,) = run_on(rescue("w2", LEASE, 1), store.dialect, Psycopg(other))
    thread.join(30)
    fences = {one.id: one.fence for one in await all_deliveries(store) if one.id in claims}
    assert len(claims) == 2
    assert fences == {id: fence + 1 for id, fence in claims.items()} | {taken.claimed.id: taken.claimed.fence}
