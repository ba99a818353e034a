"""Flow control with two transactions at once on PostgreSQL: what a claim must wait for, and what it must see."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast.stores.connections.connection as connections
from holdfast import Limit, Rate
from holdfast.stores.connections.connection import Psycopg, run_on
from holdfast.stores.connections.locked_call import locked_scripts
from holdfast.stores.deliveries.claim import Lane, LaneFlow, claim_trial
from holdfast.stores.deliveries.flow import Floors, FlowScan, claim_flow
from holdfast.stores.deliveries.trial import flow_trial
from holdfast.stores.dialect import LockedCall
from holdfast.stores.operation import Operation, Query, Steps
from holdfast.stores.postgres.store import PostgresStore
from tests.stores.flow_cases import declare, lane_of, numbers, send, settings, take
from tests.support.builders import LEASE, sql, until_one_waits


def unlocked(text: str, call: LockedCall, prepared: set[str] | None) -> Iterator[str]:
    """The claim without its locks."""
    yield from locked_scripts(text, LockedCall(call.name, call.types, call.arguments, ()), prepared)


def locked_in_the_statement(text: str, call: LockedCall, prepared: set[str] | None) -> Iterator[str]:
    """The claim that takes its lock itself, with the snapshot from before the lock."""
    (script,) = locked_scripts(text, LockedCall(call.name, call.types, call.arguments, ()), None)
    now = "clock_timestamp() as now"
    assert now in script
    yield script.replace(now, f"{now}, pg_advisory_xact_lock({call.locks[0]})", 1)


async def wait_and_see(store: PostgresStore) -> None:
    """A claim of one lane starts while a claim of another lane has not committed; together they keep the limit."""
    # With a rate, every variant of the statement waits for the first one, at the latest to count its start.
    flow = settings(limit=Limit(1, by="k"), rate=Rate("100/10m", by="k"))
    await declare(store, flow)
    await send(store, flow, "a", priority=0)
    await send(store, flow, "a", priority=1)
    low, high = await lane_of(store, priority=1), await lane_of(store, priority=0)
    with psycopg.connect(store.conninfo, autocommit=True) as first:
        first.execute("begin")
        held = run_on(claim_flow(low, "w1", LEASE, FlowScan(1), Floors()), store.dialect, Psycopg(first))
        second = asyncio.create_task(store.run(claim_flow(high, "w2", LEASE, FlowScan(1), Floors())))
        await asyncio.to_thread(until_one_waits, store)
        first.execute("commit")
        late = await asyncio.wait_for(second, 10)
    assert (len(held.claims), len(late.claims)) == (1, 0)


async def test_a_claim_waits_for_the_one_before_it_and_sees_it(postgres_store: PostgresStore) -> None:
    await wait_and_see(postgres_store)


@pytest.mark.parametrize("variant", [unlocked, locked_in_the_statement])
async def test_the_limit_breaks_without_the_lock_or_with_the_snapshot_from_before_it(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch, variant: Any
) -> None:
    monkeypatch.setattr(connections, "locked_scripts", variant)
    with pytest.raises(AssertionError):
        await wait_and_see(postgres_store)


@pytest.mark.parametrize("cursor", [None, ""], ids=["window", "walk"])
async def test_a_locked_head_is_not_overtaken(postgres_store: PostgresStore, cursor: str | None) -> None:
    store, flow = postgres_store, settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"aab")
    lane = await lane_of(store)
    with psycopg.connect(store.conninfo) as other:
        other.execute("select 1 from holdfast.delivery order by flow_seq limit 1 for update")
        got = await take(store, cursor=cursor)
        assert numbers(got.claims) == [2]
    assert lane.flow is not None


async def test_behind_a_pooler_the_claim_is_one_message_too(postgres_store: PostgresStore) -> None:
    store, flow = postgres_store, settings(limit=Limit(2, by="k"), rate=Rate("90/10s", by="k"))
    await declare(store, flow)
    await send(store, flow, "it's", 'say "no" \\ $1', "a", "a", "a")
    lane = await lane_of(store)
    with psycopg.connect(store.conninfo, autocommit=True) as pooled:
        pooled.prepare_threshold = None
        claim = claim_flow(lane, "w1", LEASE, FlowScan(10), Floors())
        got = run_on(claim, store.dialect, Psycopg(pooled))
        assert numbers(got.claims) == [0, 1, 2, 3]
        assert pooled.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (0,)
    assert (await take(store)).claims == []


async def test_a_trial_of_two_queues_does_not_deadlock_with_a_claim_of_one(postgres_store: PostgresStore) -> None:
    store, flow = postgres_store, settings(limit=Limit(5))
    own, queue = settings(limit=Limit(1, by="k")), LaneFlow(flow, flow)
    await declare(store, own)
    sql(store, "update {hf}consumer set blocked_until = now()")
    lanes = [Lane(name, "mail", 0, 1, flow=queue) for name in ("q1", "q2")]
    with psycopg.connect(store.conninfo, autocommit=True) as claim:
        claim.execute("begin")
        lock = Query("lock_flow", locks=("flow queue q2",))
        run_on(Operation(lambda: locked(lock)), store.dialect, Psycopg(claim))
        trial = claim_trial(lanes, "w1", LEASE, LEASE, flow=flow_trial("w1", LEASE))
        running = asyncio.create_task(store.run(trial))
        await asyncio.to_thread(until_one_waits, store)
        claim.execute("set lock_timeout = '500 ms'")
        run_on(Operation(lambda: locked(lock._replace(locks=("flow consumer mail",)))), store.dialect, Psycopg(claim))
        claim.execute("commit")
        assert await asyncio.wait_for(running, 10) == []


def locked(query: Query) -> Steps[None]:
    yield query
