"""Two sides at once on PostgreSQL, some hundred rounds each: joins, signals, cancellations, memos, starts."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
import pytest

from holdfast.core.delivery import Claim
from holdfast.core.errors import TransactionConflict
from holdfast.stores.connections.connection import AsyncPsycopg, run_on_async
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.time_travel import abandon
from holdfast.stores.workflows.advance import advance
from holdfast.stores.workflows.failure import cancel_run
from holdfast.stores.workflows.run import RunStatus, run_states, start_runs
from holdfast.stores.workflows.wait import Suspension, memo, send_signal, suspend
from tests.stores.workflows.run_steps import (
    claim_steps,
    declare,
    end,
    events,
    finish_steps,
    new_run,
    started,
    steps_of,
)
from tests.support.builders import all_deliveries, fresh_id, sql

pytestmark = pytest.mark.long

ROUNDS = 150
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True, params=[0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 8))])
def repetition(request: pytest.FixtureRequest) -> int:
    """Seven more times as soak: over 1,000 rounds of each race."""
    return int(request.param)


@pytest.fixture
async def others(postgres_place: Callable[[], PostgresStore]) -> AsyncIterator[list[PostgresStore]]:
    """Three stores on one database, as three processes have them."""
    async with AsyncExitStack() as stack:
        made = [postgres_place() for _ in range(3)]
        for one in made:
            stack.push_async_callback(one.close)
        yield made


async def test_two_sides_of_a_join_start_it_once(others: list[PostgresStore]) -> None:
    store, left, right = others
    runs = await started(store, ROUNDS)
    await finish_steps(store, await claim_steps(store))
    by_run: dict[object, list[object]] = {}
    for claimed in await claim_steps(store, steps=["flow/b", "flow/c"]):
        by_run.setdefault(claimed.message_id, []).append(claimed)
    for b, c in by_run.values():
        done = await asyncio.gather(finish_steps(left, [b]), finish_steps(right, [c]))  # type: ignore[list-item]
        skipped = [claim for claim, one in zip((b, c), done, strict=True) if not one.settled]
        if skipped:
            await finish_steps(store, skipped)  # type: ignore[arg-type]
    steps = [d for d in await all_deliveries(store) if d.consumer == "flow/d"]
    assert len(steps) == len({d.message_id for d in steps}) == len(runs)


async def test_a_signal_is_never_missed_by_a_step_that_suspends(others: list[PostgresStore]) -> None:
    store, left, right = others
    runs = await started(store, ROUNDS)
    for claimed in await claim_steps(store):
        wait = Suspension(claimed.message_id, "a/wait:go", 0, claimed.id, claimed.fence, 0, "go", HOUR)

        async def suspended(wait: Suspension = wait) -> None:
            while not await left.run(suspend("w1", [wait])):
                pass

        await asyncio.gather(suspended(), right.run(send_signal(fresh_id(), claimed.message_id, "go", "1")))
    assert len(await claim_steps(store)) == len(runs)


async def test_a_cancelled_run_has_no_step_that_can_run(others: list[PostgresStore]) -> None:
    store, left, right = others
    runs = await started(store, ROUNDS)
    for claimed in await claim_steps(store):
        await asyncio.gather(finish_steps(left, [claimed]), right.run(cancel_run(claimed.message_id, "no", events())))
    states = await store.run(run_states(runs))
    assert set(states.values()) == {RunStatus.CANCELLED}
    left_over = [d for d in await all_deliveries(store) if d.status.value == "pending"]
    assert left_over == []


async def test_batches_and_cancellations_do_not_deadlock(others: list[PostgresStore]) -> None:
    store, left, right = others
    runs = await started(store, 300)
    claims = await claim_steps(store)
    before = deadlocks(store)

    async def settle_batches(other: PostgresStore, seed: int) -> None:
        mine = claims[seed::2]
        random.Random(seed).shuffle(mine)
        for start in range(0, len(mine), 50):
            await finish_steps(other, mine[start : start + 50])

    async def cancel_some() -> None:
        for run in random.Random(3).sample(runs, 100):
            await store.run(cancel_run(run, "no", events()))

    await asyncio.gather(settle_batches(left, 0), settle_batches(right, 1), cancel_some())
    assert deadlocks(store) == before


def deadlocks(store: PostgresStore) -> object:
    return sql(store, "select deadlocks from pg_stat_database where datname = current_database()")[0][0]


async def test_one_locked_run_does_not_delay_the_batch(others: list[PostgresStore]) -> None:
    store = others[0]
    runs = await started(store, 100)
    claims = await claim_steps(store)
    with psycopg.connect(store.conninfo) as other:
        other.execute(f"select 1 from holdfast.workflow_run where id = '{runs[7]}' for update".encode())
        began = time.monotonic()
        advanced = await finish_steps(store, claims)
        assert time.monotonic() - began < 10
        assert len(advanced.settled) == 99
        (skipped,) = [claimed for claimed in claims if claimed.id not in advanced.settled]
        waiting = asyncio.create_task(store.run(advance("w1", [end(skipped)], events(), wait=True)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    assert (await waiting).settled == {skipped.id}


async def test_a_stale_owner_remembers_nothing_while_its_claim_is_taken(others: list[PostgresStore]) -> None:
    store, left, right = others
    await started(store, ROUNDS)
    for claimed in await claim_steps(store):
        claim = Claim(claimed.id, "w1", claimed.fence)
        stored, _ = await asyncio.gather(
            left.run(memo(claim, claimed.message_id, "a/m", 0, "1")), right.run(abandon(claimed.id))
        )
        # In either order: a memo of a claim that was lost before it committed does not exist.
        rows = sql(store, f"select 1 from {{hf}}workflow_step where run_id = '{claimed.message_id}'")
        assert bool(rows) is stored
        assert not await left.run(memo(claim, claimed.message_id, "a/m", 1, "1"))


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
async def test_concurrent_starts_of_one_key_make_one_run_or_say_that_the_transaction_must_run_again(
    others: list[PostgresStore], level: str
) -> None:
    store = others[0]
    await declare(store)
    for n in range(20):
        found = await asyncio.gather(*(start_in(store, f"{level} {n}", level) for _ in range(10)))
        ids = {one for one in found if one is not None}
        assert len(ids) == 1
        assert level == "repeatable read" or None not in found
    assert len(sql(store, "select id from {hf}workflow_run")) == 20


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
async def test_a_hundred_starts_of_one_key_at_once_make_one_run(others: list[PostgresStore], level: str) -> None:
    store = others[0]
    await declare(store)
    found = await asyncio.gather(*(start_in(store, level, level) for _ in range(100)))
    assert len({one for one in found if one is not None}) == 1
    # A caller whose snapshot is older than the run must run its transaction again; then it finds the run.
    again = await asyncio.gather(*(start_in(store, level, level) for one in found if one is None))
    assert set(again) <= {one for one in found if one is not None}
    assert len(sql(store, "select id from {hf}workflow_run")) == 1


async def start_in(store: PostgresStore, key: str, level: str) -> object:
    """Starts in a caller's transaction of this level; None if it must run again."""
    async with await psycopg.AsyncConnection.connect(store.conninfo) as conn:
        await conn.execute(f"set transaction isolation level {level}".encode())
        await conn.execute("select 1")
        try:
            (published,) = await run_on_async(start_runs([new_run(key)]), store.dialect, AsyncPsycopg(conn))
        except TransactionConflict:
            await conn.rollback()
            return None
        return published.id


async def test_steps_of_all_runs_end_with_three_workers(others: list[PostgresStore]) -> None:
    runs = await started(others[0], 100)

    async def work(store: PostgresStore, name: str) -> None:
        for _ in range(40):
            claims = await claim_steps(store, name)
            random.shuffle(claims)
            while claims:
                done = await finish_steps(store, claims, name)
                claims = [claimed for claimed in claims if claimed.id not in done.settled]
            await asyncio.sleep(0.01)

    await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(others)))
    assert set((await others[0].run(run_states(runs))).values()) == {RunStatus.DONE}
    assert set((await steps_of(others[0], runs[0])).values()) == {"delivered"}
