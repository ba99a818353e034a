"""Finishing a delivery inside the handler's own transaction, through the worker, on every kind of connection."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AlreadyHandled, Context, Holdfast, LeaseLost, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import cancel, replay
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.stores.queries.time_travel import abandon
from tests.engine.ways import AWAITING, BLOCKING, WAYS, configure_django
from tests.support.worker import Log, all_of, drain, logged, only, query, run_records, statuses

AT_ONCE = RetryPolicy.fixed(0, attempts=3)

Step = Callable[[Context], None]


def nothing(_: Context) -> None: ...


def fail_first(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ConnectionError("the first attempt breaks off")


class Ledger:
    """Handlers that write one row per run and complete in the same transaction."""

    def __init__(self, hf: Holdfast, dsn: str, database: str, way: str) -> None:
        self.hf, self._dsn, self._database, self._way = hf, dsn, database, way
        if way == "django":
            configure_django(dsn)

    def handler(
        self,
        *,
        before: Step = nothing,
        inside: Step = nothing,
        after: Step = nothing,
        swallow: tuple[type[Exception], ...] = (),
        key: str | None = None,
        twice: bool = False,
    ) -> Callable[..., Any]:
        """Opens a transaction, writes, completes and commits; the steps run before, inside and after it.

        With `twice` the first run completes twice.
        """
        if self._way in BLOCKING[self._database]:
            open = BLOCKING[self._database][self._way]

            def post(ctx: Context, n: int = 0) -> None:
                before(ctx)
                with open(self._dsn) as (conn, execute):
                    execute(f"insert into effect (note) values ('{ctx.attempt}')")
                    try:
                        for _ in range(2 if twice and ctx.attempt == 1 else 1):
                            ctx.sync.complete(conn=conn, key=key)
                    except swallow:
                        return
                    inside(ctx)
                after(ctx)

            return post
        begin = AWAITING[self._database][self._way]

        async def post_async(ctx: Context, n: int = 0) -> None:
            before(ctx)
            async with begin(self._dsn) as (conn, execute):
                await execute(f"insert into effect (note) values ('{ctx.attempt}')")
                try:
                    for _ in range(2 if twice and ctx.attempt == 1 else 1):
                        await ctx.complete(conn=conn, key=key)
                except swallow:
                    return
                inside(ctx)
            after(ctx)

        return post_async

    def job(self, **given: Any) -> Any:
        retry = given.pop("retry", AT_ONCE)
        return self.hf.job(name="post", retry=retry)(self.handler(**given))

    async def effects(self) -> list[str]:
        return [str(row[0]) for row in await query(self.hf, "select note from effect order by note")]


@pytest.fixture(params=WAYS, ids=[f"{database}-{way}" for database, way in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def dsn(request: pytest.FixtureRequest, way: tuple[str, str]) -> str:
    """The kind of database that the way leads to."""
    found: str = request.getfixturevalue(f"{way[0]}_dsn")
    return found


@pytest.fixture
async def ledger(hf: Holdfast, dsn: str, way: tuple[str, str]) -> Ledger:
    await query(hf, "create table if not exists effect (note text)")
    await query(hf, "delete from effect")
    return Ledger(hf, dsn, *way)


async def test_the_effect_and_the_delivered_state_commit_together(ledger: Ledger) -> None:
    job = ledger.job()
    await job.enqueue()
    await drain(ledger.hf)
    done = await only(ledger.hf)
    assert (done.status, done.attempts, done.locked_by) == (Status.DELIVERED, 1, None)
    assert await ledger.effects() == ["1"]


async def test_a_handler_that_completes_and_then_raises_is_delivered_once(ledger: Ledger, log: Log) -> None:
    job = ledger.job(after=fail_first)
    await job.enqueue()
    await drain(ledger.hf)
    assert (await statuses(ledger.hf), await ledger.effects()) == ([Status.DELIVERED], ["1"])
    assert await run_records(ledger.hf) == []
    assert logged(log, "handler raised after completion")


async def test_a_handler_that_rolls_back_is_retried(ledger: Ledger) -> None:
    job = ledger.job(inside=fail_first)
    await job.enqueue()
    await drain(ledger.hf)
    done = await only(ledger.hf)
    assert (done.status, done.attempts) == (Status.DELIVERED, 2)
    assert await ledger.effects() == ["2"]
    assert [run.error for run in await run_records(ledger.hf)] == ["the first attempt breaks off"]


async def test_a_handler_that_lost_its_lease_has_committed_nothing_even_if_it_swallows_that(
    ledger: Ledger, log: Log
) -> None:
    """Another worker takes the delivery while the handler runs; the second run is the one that counts."""

    def lose(ctx: Context) -> None:
        if ctx.attempt == 1:
            ledger.hf.store.run_sync(abandon(ctx.delivery_id))

    job = ledger.job(before=lose, swallow=(LeaseLost,))
    await job.enqueue()
    await drain(ledger.hf)
    assert (await statuses(ledger.hf), await ledger.effects()) == ([Status.DELIVERED], ["2"])
    assert logged(log, "lease lost")


@pytest.mark.parametrize("key", [None, "kafka:orders:17"], ids=["without-key", "with-key"])
async def test_a_second_completion_in_a_transaction_is_named_and_its_effect_is_not_lost(
    ledger: Ledger, key: str | None
) -> None:
    """The database rolls back the effect with the second call, so the delivery must not end as delivered."""
    job = ledger.job(key=key, twice=True)
    await job.enqueue()
    await drain(ledger.hf)
    assert (await statuses(ledger.hf), await ledger.effects()) == ([Status.DELIVERED], ["2"])
    (run,) = await run_records(ledger.hf)
    assert run.error_type == "holdfast.AlreadyCompleted"
    assert "this run called ctx.complete before" in str(run.error)


async def test_a_completion_may_be_repeated_after_a_rollback(ledger: Ledger) -> None:
    rolled_back: list[int] = []

    def fail_once(ctx: Context) -> None:
        if not rolled_back:
            rolled_back.append(ctx.attempt)
            raise ConnectionError("the first transaction breaks off")

    post = ledger.handler(inside=fail_once, key="kafka:orders:17")

    async def repeat(ctx: Context) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                if inspect.iscoroutinefunction(post):
                    await post(ctx)
                else:
                    await asyncio.to_thread(post, ctx)
                return

    await ledger.hf.job(name="post", retry=AT_ONCE)(repeat).enqueue()
    await drain(ledger.hf)
    assert (await statuses(ledger.hf), await ledger.effects()) == ([Status.DELIVERED], ["1"])
    assert await run_records(ledger.hf) == []


async def test_a_cancelled_delivery_cannot_be_completed(ledger: Ledger) -> None:
    def call_off(ctx: Context) -> None:
        ledger.hf.store.run_sync(cancel([ctx.delivery_id], "ada", "changed my mind"))

    job = ledger.job(before=call_off)
    await job.enqueue()
    await drain(ledger.hf)
    gone = await only(ledger.hf)
    assert (gone.status, gone.discarded_at is not None, await ledger.effects()) == (Status.FAILED, True, [])


@pytest.mark.parametrize("swallow", [(), (AlreadyHandled,)], ids=["let-through", "swallowed"])
async def test_a_foreign_key_is_handled_once_and_the_second_delivery_is_done_without_effect(
    ledger: Ledger, log: Log, swallow: tuple[type[Exception], ...]
) -> None:
    job = ledger.job(key="kafka:orders:17", swallow=swallow, retry=RetryPolicy.none())
    await job.enqueue(1)
    await job.enqueue(2)
    await drain(ledger.hf, concurrency=1)
    assert await statuses(ledger.hf) == [Status.DELIVERED, Status.DELIVERED]
    assert await ledger.effects() == ["1"]
    assert len(logged(log, "delivery already handled")) == 1


async def test_one_foreign_key_in_two_runs_at_the_same_time_has_one_effect(ledger: Ledger) -> None:
    job = ledger.job(key="kafka:orders:17")
    for n in range(5):
        await job.enqueue(n)
    await drain(ledger.hf, concurrency=5)
    assert set(await statuses(ledger.hf)) == {Status.DELIVERED}
    assert len(await ledger.effects()) == 1


async def test_completed_work_is_not_run_again_by_a_replay_unless_a_rerun_is_asked_for(ledger: Ledger) -> None:
    job = ledger.job()
    await job.enqueue()
    await drain(ledger.hf)
    (done,) = await all_of(ledger.hf)
    assert await ledger.hf.store.run(replay([done.id], "ada", "again")) == []
    await drain(ledger.hf)
    assert await ledger.effects() == ["1"]
    (again,) = await ledger.hf.store.run(replay([done.id], "ada", "again", rerun=True))
    assert again.id == done.id
    await drain(ledger.hf)
    assert await ledger.effects() == ["1", "1"]
    (listed,) = await ledger.hf.store.run(deliveries(Filter()))
    assert listed.delivery.status is Status.DELIVERED
