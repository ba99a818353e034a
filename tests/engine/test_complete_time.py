"""Transactions that last: leases are renewed during them, and an open one is not decided."""

import asyncio
import sqlite3
import threading
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel

from holdfast import Context, Holdfast, RetryPolicy, UnsupportedConnection, immediate
from holdfast.core.delivery import Status
from holdfast.core.errors import NoTransaction, StoreBusy
from tests.support.worker import Log, drain, eventually, logged, only, query, run_records, statuses, working

LEASE = timedelta(seconds=1)
on_postgres = pytest.mark.parametrize("dsn", ["postgres16", "postgres18"], indirect=True)
on_sqlite = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
async def table(hf: Holdfast) -> None:
    await query(hf, "create table if not exists effect (note text)")
    await query(hf, "delete from effect")


async def effects(hf: Holdfast) -> list[str]:
    return [str(row[0]) for row in await query(hf, "select note from effect order by note")]


async def several_renewals(hf: Holdfast, number: int = 3) -> None:
    """Until the lease was renewed three times since now: longer than a lease that was not."""
    for _ in range(number):
        before = await _alive_until(hf)
        await eventually(partial(_renewed, hf, before))


async def _alive_until(hf: Holdfast) -> object:
    return (await query(hf, "select max(alive_until) from {hf}worker"))[0][0]


async def _renewed(hf: Holdfast, before: object) -> bool:
    return await _alive_until(hf) != before


@on_postgres
async def test_a_handler_at_repeatable_read_that_outlasts_several_renewals_finishes(hf: Holdfast, dsn: str) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def post(ctx: Context) -> None:
        async with await AsyncConnection.connect(dsn) as conn:
            await conn.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            await conn.execute("insert into effect values ('first')")
            await several_renewals(hf)
            await ctx.complete(conn=conn)

    await post.enqueue()
    await drain(hf, lease=LEASE)
    assert (await statuses(hf), await effects(hf)) == ([Status.DELIVERED], ["first"])


async def test_a_completed_transaction_may_stay_open_while_the_lease_is_renewed(hf: Holdfast, dsn: str) -> None:
    """On PostgreSQL; SQLite has one writer, so that nothing is renewed while a transaction writes."""
    if dsn.startswith("sqlite"):
        pytest.skip("one writer")

    @hf.job(retry=RetryPolicy.none())
    async def post(ctx: Context) -> None:
        async with await AsyncConnection.connect(dsn) as conn:
            await conn.execute("insert into effect values ('held open')")
            await ctx.complete(conn=conn)
            for _ in range(3):
                await several_renewals(hf, 1)
                await conn.execute("select 1")  # idle for a lease, it would be taken for a lost host's

    @hf.job()
    async def other() -> None: ...

    await post.enqueue()
    async with working(hf, lease=LEASE):
        await other.enqueue()
        await eventually(lambda: _all_delivered(hf, 2))
    assert await effects(hf) == ["held open"]


@on_postgres
async def test_a_transaction_left_open_is_waited_for_and_delays_no_other(hf: Holdfast, dsn: str, log: Log) -> None:
    """The thread timed out after it had completed: until its transaction ends the result is unknown, and the others continue."""
    commit = threading.Event()
    completed = threading.Event()

    @hf.job(timeout="300ms", retry=RetryPolicy.none())
    def slow(ctx: Context) -> None:
        with psycopg.connect(dsn) as conn:
            conn.execute("insert into effect values ('late')")
            ctx.sync.complete(conn=conn)
            completed.set()
            commit.wait(20)

    @hf.job()
    async def other(n: int) -> None: ...

    await slow.enqueue()
    async with working(hf):
        await eventually(completed.is_set)
        await eventually(lambda: logged(log, "handler thread still running"))
        for n in range(5):
            await other.enqueue(n)
        await eventually(lambda: _all_delivered(hf, 5, "other"))
        assert await statuses(hf, "slow") == [Status.IN_FLIGHT]
        commit.set()
        await eventually(lambda: _all_delivered(hf, 1, "slow"))
    assert await effects(hf) == ["late"]


@on_postgres
async def test_a_transaction_that_completed_and_was_then_forgotten_is_a_failure(hf: Holdfast, dsn: str) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def post(ctx: Context) -> None:
        conn = await AsyncConnection.connect(dsn)
        await conn.execute("insert into effect values ('never committed')")
        await ctx.complete(conn=conn)
        await conn.close()

    await post.enqueue()
    await drain(hf)
    assert (await statuses(hf), await effects(hf)) == ([Status.FAILED], [])
    (run,) = await run_records(hf)
    assert "its transaction did not commit" in (run.error or "")


@on_postgres
async def test_a_window_does_not_take_for_done_what_was_never_committed(hf: Holdfast, dsn: str) -> None:
    """Otherwise the second attempt would be skipped as a duplicate, and the effect lost."""

    @hf.job(retry=RetryPolicy.fixed(0, attempts=2), dedupe="5m")
    async def post(ctx: Context) -> None:
        conn = await AsyncConnection.connect(dsn)
        await conn.execute(f"insert into effect values ('{ctx.attempt}')")
        await ctx.complete(conn=conn)
        if ctx.attempt == 2:
            await conn.commit()
        await conn.close()

    await post.enqueue()
    await drain(hf)
    assert (await statuses(hf), await effects(hf)) == ([Status.DELIVERED], ["2"])


@on_postgres
async def test_a_dead_peer_cannot_hold_the_row_for_ever(hf: Holdfast, dsn: str) -> None:
    """Completing limits how long the transaction may idle, and only that transaction."""
    seen: list[object] = []

    @hf.job()
    async def post(ctx: Context) -> None:
        async with await AsyncConnection.connect(dsn) as conn:
            await ctx.complete(conn=conn)
            seen.append(await (await conn.execute("show idle_in_transaction_session_timeout")).fetchone())
            await conn.commit()
            seen.append(await (await conn.execute("show idle_in_transaction_session_timeout")).fetchone())

    await post.enqueue()
    await drain(hf)
    assert seen == [("2s",), ("0",)]


@on_sqlite
async def test_a_handler_that_reads_then_writes_gets_the_remedy_and_the_remedy_works(hf: Holdfast, dsn: str) -> None:
    path = dsn.removeprefix("sqlite:///")

    def read(db: sqlite3.Connection, patience: float) -> None:
        db.execute("select count(*) from effect").fetchall()
        with sqlite3.connect(path, timeout=patience) as other:
            try:
                other.execute("insert into effect values ('another writer')")
            except sqlite3.OperationalError:
                assert db.in_transaction  # this one holds the lock already
        other.close()

    @hf.job(retry=RetryPolicy.none())
    def deferred(ctx: Context) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("begin")
            read(db, patience=20)
            ctx.sync.complete(conn=db)
        finally:
            db.close()

    @hf.job(retry=RetryPolicy.none())
    def locked(ctx: Context) -> None:
        db, other = (sqlite3.connect(path, timeout=20, isolation_level=None) for _ in range(2))
        try:
            db.execute("begin")
            db.execute("select count(*) from effect").fetchall()
            other.execute("begin immediate")
            ctx.sync.complete(conn=db)
        finally:
            other.close()
            db.close()

    @hf.job(retry=RetryPolicy.none())
    def at_once(ctx: Context) -> None:
        db = sqlite3.connect(path, timeout=10, isolation_level=None)
        try:
            with immediate(db):
                read(db, patience=0.1)
                db.execute("insert into effect values ('immediate')")
                ctx.sync.complete(conn=db)
        finally:
            db.close()

    for job in (deferred, locked, at_once):
        await job.enqueue()
    await drain(hf, concurrency=1)
    for name in ("deferred", "locked"):
        failed = await only(hf, name)
        assert failed.error_type == f"{StoreBusy.__module__}.StoreBusy", name
        assert "BEGIN IMMEDIATE" in (failed.last_error or "")
    assert await statuses(hf, "at_once") == [Status.DELIVERED]
    # The jobs are enqueued within a millisecond, so any may run first.
    assert sorted(await effects(hf)) == ["another writer", "immediate"]


async def test_a_connection_that_cannot_do_is_refused_before_anything_is_written(hf: Holdfast, dsn: str) -> None:
    errors: dict[str, Exception] = {}

    @hf.job()
    async def post(ctx: Context) -> None:
        for name, conn in {"foreign": _foreign(dsn), "strange": object()}.items():
            try:
                await ctx.complete(conn=conn)
            except Exception as error:  # noqa: BLE001
                errors[name] = error

    await post.enqueue()
    await drain(hf)
    assert isinstance(errors["foreign"], UnsupportedConnection)
    assert "pass a connection to the store's database" in str(errors["foreign"])
    assert isinstance(errors["strange"], UnsupportedConnection)
    assert await statuses(hf) == [Status.DELIVERED]


async def test_the_wrong_colour_names_the_right_call(hf: Holdfast, dsn: str) -> None:
    errors: list[str] = []

    @hf.job()
    async def post(ctx: Context) -> None:
        conn = sqlite3.connect(dsn.removeprefix("sqlite:///")) if dsn.startswith("sqlite") else psycopg.connect(dsn)
        with pytest.raises(TypeError) as raised:
            await ctx.complete(conn=conn)
        errors.append(str(raised.value))
        conn.close()

    await post.enqueue()
    await drain(hf)
    assert ["ctx.sync.complete(...)" in error for error in errors] == [True]


@on_postgres
async def test_a_connection_that_commits_each_statement_is_refused(hf: Holdfast, dsn: str) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def post(ctx: Context) -> None:
        async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
            await ctx.complete(conn=conn)

    await post.enqueue()
    await drain(hf)
    assert (await only(hf)).error_type == f"{NoTransaction.__module__}.NoTransaction"


async def _all_delivered(hf: Holdfast, number: int, consumer: str | None = None) -> bool:
    return await statuses(hf, consumer) == [Status.DELIVERED] * number


def _foreign(dsn: str) -> object:
    if dsn.startswith("sqlite"):
        return type("AsyncConnection", (), {"__module__": "psycopg"})()
    connection = sqlite3.connect(":memory:")
    asyncio.get_running_loop().call_later(1, connection.close)
    return connection
