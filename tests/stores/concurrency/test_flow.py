"""Flow control with two transactions at once on PostgreSQL: what a claim must wait for, and what it must see.

Each attack that a design before this one did not survive is here next to its test: the test fails with the old design.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast.stores.connections.connection as connections
from holdfast import Limit, Rate
from holdfast.core.flow import FlowSettings
from holdfast.stores.connections.connection import Psycopg, run_on
from holdfast.stores.connections.locked_call import locked_scripts
from holdfast.stores.deliveries import trial
from holdfast.stores.deliveries.claim import Lane, LaneFlow, claim_trial
from holdfast.stores.deliveries.flow import Floors, FlowClaim, FlowScan, claim_flow
from holdfast.stores.deliveries.trial import flow_trial
from holdfast.stores.dialect import LockedCall
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.operation import Operation, Query, Steps
from holdfast.stores.postgres.store import PostgresStore
from tests.stores.concurrency.query_hook import before_each_query
from tests.stores.flow_cases import declare, lane_of, numbers, send, settings, take
from tests.stores.mutation import applied, postgres
from tests.support.builders import LEASE, job, sql, until_one_waits


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


SKIPPED_HEADS = {
    "window": postgres("flow_window", "order by d.run_at, d.id limit {window})", "order by d.run_at, d.id limit {window} for update skip locked)"),
    "walk": postgres("flow_walk_heads", "order by d.flow_seq limit 1) d", "order by d.flow_seq limit 1 for update skip locked) d"),
}  # fmt: skip
SKIPPED_FIRST = postgres(
    "room_head", "order by h.flow_seq limit 1)", "order by h.flow_seq limit 1 for update skip locked)"
)


@pytest.mark.long
@pytest.mark.parametrize(("scan", "cursor"), [("window", None), ("walk", "")])
async def test_a_head_that_is_skipped_while_it_is_locked_is_overtaken(
    postgres_store: PostgresStore, scan: str, cursor: str | None
) -> None:
    store = postgres_store
    with applied(store, SKIPPED_HEADS[scan]), applied(store, SKIPPED_FIRST), pytest.raises(AssertionError):
        await test_a_locked_head_is_not_overtaken(store, cursor)


def claim_next_to_a_client_that_sleeps(store: PostgresStore, lane: Lane, *, in_transaction: bool) -> int:
    """A client stops after its claim, before it reads the payloads; returns how many another one claims in that time."""
    found: list[FlowClaim] = []

    def sleep(query: Query) -> None:
        if query.name == "flow_messages":
            with psycopg.connect(store.conninfo, autocommit=True) as other:
                other.execute("set lock_timeout = '200ms'")
                found.append(
                    run_on(claim_flow(lane, "w2", LEASE, FlowScan(1), Floors()), store.dialect, Psycopg(other))
                )

    with psycopg.connect(store.conninfo, autocommit=not in_transaction) as slow:
        claim = before_each_query(claim_flow(lane, "w1", LEASE, FlowScan(1), Floors()), sleep)
        assert len(run_on(claim, store.dialect, Psycopg(slow)).claims) == 1
    return len(found[0].claims)


async def test_no_lock_is_held_while_payloads_are_read(postgres_store: PostgresStore) -> None:
    store, flow = postgres_store, settings(limit=Limit(2))
    await declare(store, flow)
    await send(store, flow, *"abc")
    lane = await lane_of(store)
    assert claim_next_to_a_client_that_sleeps(store, lane, in_transaction=False) == 1


async def test_a_lock_that_is_held_while_payloads_are_read_stops_all_claims(postgres_store: PostgresStore) -> None:
    store, flow = postgres_store, settings(limit=Limit(2))
    await declare(store, flow)
    await send(store, flow, *"abc")
    lane = await lane_of(store)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        claim_next_to_a_client_that_sleeps(store, lane, in_transaction=True)


KEY_TABLE = """
create table flow_seen (flow_key text primary key, n bigint);
create function see_key() returns trigger language plpgsql as $$
begin
  insert into flow_seen values (new.flow_key, 1) on conflict (flow_key) do update set n = flow_seen.n + 1;
  return null;
end $$;
create trigger see_key after insert on holdfast.delivery for each row execute function see_key();
"""


def publish_next_to_an_open_publish(store: PostgresStore, flow: FlowSettings) -> None:
    """Two callers publish the same key; the first one has not committed."""
    fanout = Fanout(flows={"mail": flow})
    with psycopg.connect(store.conninfo) as first, psycopg.connect(store.conninfo) as second:
        second.execute("set lock_timeout = '200ms'")
        for caller in (first, second):
            run_on(publish([job("mail", {"k": "a", "n": 1})], fanout), store.dialect, Psycopg(caller))


@pytest.mark.parametrize("options", [{"limit": Limit(1, by="k")}, {"order_by": "k"}])
async def test_a_publish_does_not_wait_for_another_one_of_its_key(
    postgres_store: PostgresStore, options: dict[str, Any]
) -> None:
    flow = settings(**options)
    await declare(postgres_store, flow)
    publish_next_to_an_open_publish(postgres_store, flow)


async def test_with_a_table_of_keys_a_publish_waits_for_another_one(postgres_store: PostgresStore) -> None:
    flow = settings(order_by="k")
    await declare(postgres_store, flow)
    sql(postgres_store, KEY_TABLE)
    try:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            publish_next_to_an_open_publish(postgres_store, flow)
    finally:
        sql(postgres_store, "drop trigger see_key on holdfast.delivery")
        sql(postgres_store, "drop function see_key")
        sql(postgres_store, "drop table flow_seen")


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
        attempt = claim_trial(lanes, "w1", LEASE, LEASE, flow=flow_trial("w1", LEASE))
        running = asyncio.create_task(store.run(attempt))
        await asyncio.to_thread(until_one_waits, store)
        claim.execute("set lock_timeout = '500 ms'")
        run_on(Operation(lambda: locked(lock._replace(locks=("flow consumer mail",)))), store.dialect, Psycopg(claim))
        claim.execute("commit")
        assert await asyncio.wait_for(running, 10) == []


@pytest.mark.long
async def test_without_the_locks_of_all_lanes_a_trial_deadlocks_with_a_claim(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_locks", lambda lanes: ())
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await test_a_trial_of_two_queues_does_not_deadlock_with_a_claim_of_one(postgres_store)


def locked(query: Query) -> Steps[None]:
    yield query
