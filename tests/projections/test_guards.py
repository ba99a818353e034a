"""What keeps a rebuild from being seen half done, from applying twice, and from losing what commits late."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import ConfigurationError, Context, Holdfast, RebuildStopped, RetryPolicy
from holdfast.core.change import Deliver, Retry
from holdfast.core.message import DEFAULT_QUEUE
from holdfast.projections import rebuild
from holdfast.projections.rebuild import RebuildProgress
from holdfast.stores.deliveries.claim import Claimed, Lane, Rescued, claim, rescue
from holdfast.stores.deliveries.settle import Settlement, settle
from holdfast.stores.deliveries.worker import start_worker
from tests.projections import ledger
from tests.projections.ledger import ask, expected, order, result
from tests.support.worker import Log, drain, eventually, logged

LEASE = timedelta(seconds=30)
LANE = Lane(DEFAULT_QUEUE, "totals", 0, 1)


async def claimed(hf: Holdfast) -> list[Claimed]:
    """What a worker gets that has known its lanes for a while."""
    return await hf.store.run(claim([LANE], "w1", LEASE, 10))


async def test_a_rebuild_waits_until_a_run_has_ended_and_applies_what_it_did(hf: Holdfast) -> None:
    await hf._runtime.registration.prepare()
    await hf.publish(*order(1), conn=None)
    await hf.store.run(start_worker("w1", 0, [], ["totals"], LEASE))
    (one,) = await claimed(hf)
    waiting = asyncio.Event()

    def watch(now: RebuildProgress) -> None:
        if now.waiting:
            waiting.set()

    rebuilding = asyncio.create_task(hf.projectors.rebuild("totals", actor="ada", progress=watch))
    await asyncio.wait_for(waiting.wait(), 20)
    await hf.publish(*order(2), conn=None)
    await hf.store.run(settle("w1", [Settlement(one.id, one.fence, Deliver(), "succeeded")]))
    (done,) = await rebuilding
    assert (done.applied, done.done) == (2, 1)
    assert result(hf.dsn, "totals") == expected([order(1), order(2)])["totals"]


async def test_a_run_whose_lease_has_expired_completes_nothing_during_a_rebuild_in_place(hf: Holdfast) -> None:
    """Its worker may only be suspended: what it did would be in the result a second time."""
    stale: list[Claimed] = []
    settled: list[object] = []

    @hf.projector("order.*", name="trail", reset=lambda conn: None)
    async def trail(ctx: Context, order: dict[str, Any]) -> None:
        (one,) = stale
        settled.append(await hf.store.run(settle("w1", [Settlement(one.id, one.fence, Deliver(), "succeeded")])))

    await hf.publish(*order(1), conn=None)
    stale += await hf.store.run(claim([Lane(DEFAULT_QUEUE, "trail", 0, 1)], "w1", timedelta(milliseconds=1), 10))
    (done,) = await hf.projectors.rebuild("trail", actor="ada")
    assert settled == [set()]
    assert (done.applied, done.done) == (1, 1)


def connected(dsn: str) -> Any:
    return sqlite3.connect(dsn.removeprefix("sqlite:///")) if dsn.startswith("sqlite") else psycopg.connect(dsn)


def committing(conn: Any) -> None:
    conn.execute("drop table totals")
    conn.commit()


def scripting(conn: Any) -> None:
    conn.execute("drop table totals")
    conn.executescript("create table totals (nothing)")


@pytest.mark.parametrize(("swap", "stores"), [(committing, "sqlite postgres"), (scripting, "sqlite")])
async def test_a_swap_cannot_commit(hf: Holdfast, swap: Callable[[Any], object], stores: str) -> None:
    if hf.store.dialect.name not in stores:
        pytest.skip("there is no such call")

    @hf.projector("order.*", name="hasty", reset=lambda conn: None, swap=swap)
    async def hasty(ctx: Context, order: dict[str, Any]) -> None: ...

    await hf.publish(*order(1), conn=None)
    with pytest.raises(Exception, match=r"not authorized|Explicit commit"):
        await hf.projectors.rebuild("hasty", actor="ada")
    assert result(hf.dsn, "totals") == []


async def test_a_projector_publishes_nothing_in_a_rebuild(hf: Holdfast) -> None:
    @hf.projector("order.*", name="loud", reset=lambda conn: None)
    async def loud(ctx: Context, order: dict[str, Any]) -> None:
        await ctx.publish("order.heard", {}, conn=None)

    await hf.publish(*order(1), conn=None)
    with pytest.raises(Exception, match=r"if not ctx\.rebuilding"):
        await hf.projectors.rebuild("loud", actor="ada")


async def test_events_are_applied_in_the_order_of_the_log(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.projector("order.*", name="trail", reset=lambda conn: None)
    async def trail(ctx: Context, order: dict[str, Any]) -> None:
        assert ctx.rebuilding
        seen.append(order["at"])

    await hf.publish_many([order(n) for n in range(150)], conn=None)
    await hf.projectors.rebuild("trail", actor="ada")
    assert seen == list(range(150))


async def test_what_its_publisher_did_not_send_it_is_not_applied_twice_after_the_rebuild(
    postgres18_dsn: str, dsn: str, hf: Holdfast
) -> None:
    """An open transaction keeps the deliveries that are to be made for a new projector from being made."""
    if dsn.startswith("sqlite"):
        pytest.skip("there only one writes at a time")
    before = Holdfast(dsn)
    with closing(connected(dsn)) as open_for_long:
        open_for_long.execute("select pg_current_xact_id()")
        await before.publish_many([order(n) for n in range(20)], conn=None)
        (done,) = await hf.projectors.rebuild("totals", actor="ada")
        assert done.applied == 20
    await drain(hf)
    await before.close()
    assert result(dsn, "totals") == expected([order(n) for n in range(20)])["totals"]
    assert len(ask(dsn, "select id from holdfast.delivery where consumer = 'totals'")) == 20


async def test_what_commits_after_the_swap_is_applied_once_by_the_live_projector(hf: Holdfast) -> None:
    if hf.dsn.startswith("sqlite"):
        pytest.skip("there only one writes at a time")
    await hf._runtime.registration.prepare()
    with closing(connected(hf.dsn)) as late:
        hf.sync.publish(*order(1), conn=late)
        await hf.publish(*order(2), conn=None)
        (done,) = await hf.projectors.rebuild("totals", actor="ada")
        assert (done.applied, done.done) == (1, 1)
        late.commit()
    await drain(hf)
    assert result(hf.dsn, "totals") == expected([order(1), order(2)])["totals"]


def test_a_projector_is_declared_so_that_it_can_be_rebuilt() -> None:
    hf = Holdfast("sqlite:///nowhere.db")

    def handler(payload: object) -> None: ...

    async def awaited(conn: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="swap= needs reset="):
        hf.projector("a.b", swap=committing)(handler)
    with pytest.raises(ConfigurationError, match=r"must take \(ctx: Context, payload\)"):
        hf.projector("a.b", reset=committing, swap=committing)(handler)
    with pytest.raises(ConfigurationError, match="one argument"):
        hf.projector("a.b", reset=lambda: None)(handler)  # type: ignore[arg-type,misc]
    with pytest.raises(ConfigurationError, match="plain function"):
        hf.projector("a.b", reset=awaited)(handler)


async def test_an_awaiting_handler_completes_in_its_own_transaction(postgres18_dsn: str) -> None:
    hf = Holdfast(postgres18_dsn)
    ledger.tables(hf)

    @hf.projector("order.*", name="awaited", reset=ledger.reset("totals"), swap=ledger.swap_in("totals"))
    async def awaited(ctx: Context, body: dict[str, Any]) -> None:
        table = ledger.target(ctx, "totals")
        async with await psycopg.AsyncConnection.connect(postgres18_dsn) as db:
            await db.execute(f"insert into {table} values (%s, 1, 0)", (str(body["at"]),))
            await ctx.complete(conn=db)

    await hf.publish_many([order(n) for n in range(3)], conn=None)
    (done,) = await hf.projectors.rebuild("awaited", actor="ada")
    assert (done.applied, done.done) == (3, 3)
    assert len(result(hf.dsn, "totals")) == 3
    await hf.close()


async def test_a_swap_that_meets_a_long_reader_releases_its_locks_and_tries_again(
    postgres18_dsn: str, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    monkeypatch.setattr(rebuild, "_LOCK_TIMEOUT", timedelta(milliseconds=200))
    hf = ledger.build(postgres18_dsn)
    ledger.tables(hf)
    await hf.publish(*order(1), conn=None)
    with closing(connected(postgres18_dsn)) as reader:
        reader.execute("select * from totals")
        rebuilding = asyncio.create_task(hf.projectors.rebuild("totals", actor="ada"))
        await eventually(lambda: logged(log, "rebuild swap delayed"))
        await drain(hf)
        assert result(hf.dsn, "totals") == expected([order(1)])["totals"], "the live projector continues"
    (done,) = await asyncio.wait_for(rebuilding, 30)
    assert (done.applied, done.done) == (1, 0)
    assert result(hf.dsn, "totals") == expected([order(1)])["totals"]
    await hf.close()


async def test_an_event_whose_transaction_was_rolled_back_is_applied_again(hf: Holdfast) -> None:
    attempts: list[int] = []

    @hf.projector("order.*", name="hesitant", reset=ledger.empty("counts"), retry=RetryPolicy.fixed(0.01, attempts=3))
    def hesitant(ctx: Context, body: dict[str, Any]) -> None:
        attempts.append(ctx.attempt)
        with closing(connected(hf.dsn)) as db:
            db.execute(f"insert into counts values ('{body['at']}', 1)")
            ctx.sync.complete(conn=db)
            if ctx.attempt == 2:
                db.commit()

    await hf.publish(*order(1), conn=None)
    await hf.projectors.rebuild("hesitant", actor="ada")
    assert attempts == [1, 2]
    assert result(hf.dsn, "counts") == [("1", 1)]


async def test_what_was_done_a_short_while_ago_is_still_applied_by_a_rebuild(hf: Holdfast) -> None:
    seen: list[bool] = []

    @hf.projector("order.*", name="brief", reset=lambda conn: None, dedupe=True)
    async def brief(ctx: Context, body: dict[str, Any]) -> None:
        seen.append(ctx.rebuilding)

    await hf.publish(*order(1), conn=None)
    await drain(hf)
    await hf.projectors.rebuild("brief", actor="ada")
    assert seen == [False, True]


async def test_a_rebuild_in_place_waits_at_its_end_for_what_a_reaper_has_taken_over(hf: Holdfast) -> None:
    taken: list[Rescued] = []
    waiting = asyncio.Event()

    @hf.projector("order.*", name="bereft", reset=lambda conn: None)
    async def bereft(body: dict[str, Any]) -> None:
        taken.extend(await hf.store.run(rescue("w2", LEASE, 10)))

    def watch(now: RebuildProgress) -> None:
        if now.waiting:
            waiting.set()

    await hf._runtime.registration.prepare()
    await hf.publish(*order(1), conn=None)
    assert await hf.store.run(claim([LANE._replace(consumer="bereft")], "died", timedelta(0), 10))
    rebuilding = asyncio.create_task(hf.projectors.rebuild("bereft", actor="ada", progress=watch))
    await asyncio.wait_for(waiting.wait(), 20)
    ((one, _),) = taken
    await hf.store.run(settle("w2", [Settlement(one.id, one.fence, Retry(timedelta(0)), "expired")]))
    (done,) = await rebuilding
    assert (done.applied, done.done) == (1, 1)


async def test_what_is_half_built_in_place_stays_held_until_a_rebuild_is_done(hf: Holdfast) -> None:
    problem: list[str] = ["handler"]

    def reset(conn: Any) -> None:
        if "reset" in problem:
            raise RuntimeError("the disk is full")

    @hf.projector("order.*", name="fragile", reset=reset, retry=RetryPolicy.none())
    async def fragile(body: dict[str, Any]) -> None:
        if "handler" in problem and body["at"] == 2:
            raise ValueError("no")

    async def held() -> bool:
        (state,) = [one for one in await hf.ops.projectors() if one.name == "fragile"]
        return state.held

    await hf.publish_many([order(1), order(2)], conn=None)
    with pytest.raises(RebuildStopped):
        await hf.projectors.rebuild("fragile", actor="ada")
    assert await held()
    problem[:] = ["reset"]
    with pytest.raises(RuntimeError, match="disk"):
        await hf.projectors.rebuild("fragile", actor="ada")
    assert await held()
    problem.clear()
    await hf.projectors.rebuild("fragile", actor="ada")
    assert not await held()


async def test_a_handler_that_completes_after_its_time_out_is_applied_once(hf: Holdfast) -> None:
    runs: list[bool] = []

    @hf.projector(
        "order.*", name="late", reset=lambda conn: None, timeout="0.3s", retry=RetryPolicy.fixed(0.01, attempts=2)
    )
    def late(ctx: Context, order: dict[str, Any]) -> None:
        if ctx.rebuilding:
            runs.append(ctx.rebuilding)
            with closing(connected(hf.dsn)) as db, db:
                time.sleep(0.8)
                db.execute("create table if not exists late_effect (n integer)")
                ctx.sync.complete(conn=db)

    await hf._runtime.registration.prepare()
    await hf.publish(*order(1), conn=None)
    await hf.projectors.rebuild("late", actor="ada")
    assert runs == [True]
