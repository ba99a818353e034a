"""`keep="0"`: the rows of a job go with its settlement, dead letters stay, and what needs its rows keeps them."""

import asyncio
import time
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

from holdfast import Context, Holdfast, Queue, RetryPolicy
from holdfast.core.change import DeliverResult, Remove
from holdfast.core.delivery import Status
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.maintenance.pruner import Pruner
from holdfast.engine.settlement.settler import Ack, Settler
from holdfast.engine.worker.lease import Lease
from holdfast.stores.operation import Operation
from holdfast.stores.queries.time_travel import abandon
from tests.engine.ways import BLOCKING
from tests.support.apps import MakeApp
from tests.support.builders import claim_all, outcome
from tests.support.worker import all_of, drain, query

HOUR = timedelta(hours=1)


async def rows(hf: Holdfast, table: str) -> int:
    ((count,),) = await query(hf, f"select count(*) from {{hf}}{table}")
    return int(count)


async def test_rows_of_a_job_go_when_it_is_done_and_dead_letters_stay(
    make_app: MakeApp, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pruner of a worker that starts may meet what `ctx.complete` has just marked delivered; it leaves the message.
    monkeypatch.setattr(Pruner, "perform", AsyncMock())
    hf = make_app(queues=[Queue("brief", keep="0")])
    way = next(iter(BLOCKING["sqlite" if dsn.startswith("sqlite") else "postgres18"].values()))

    @hf.job(keep="0", retry=RetryPolicy.fixed(0, attempts=2))
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    @hf.job(queue="brief", result="1h")
    async def returns(n: int) -> int:
        return n + 1

    @hf.job(keep="0")
    def completes(ctx: Context) -> None:
        with way(dsn) as (conn, _):
            ctx.sync.complete(conn=conn)

    @hf.job(keep="0", retry=RetryPolicy.none())
    async def breaks() -> None:
        raise ValueError("always")

    await second_time.enqueue()
    handle = await returns.enqueue(1)
    await completes.enqueue()
    await breaks.enqueue()
    await drain(hf)
    assert [(one.consumer, one.status) for one in await all_of(hf)] == [("breaks", Status.FAILED)]
    assert (await rows(hf, "message"), await rows(hf, "run"), await rows(hf, "result")) == (1, 1, 1)
    assert await handle.result(timeout=0) == 2


def test_only_rows_that_nothing_reads_later_go_at_once() -> None:
    hf = Holdfast("sqlite:///shop.db", queues=[Queue("brief", keep="0")])
    order = hf.workflow("order")

    def work() -> None: ...

    hf.job(name="job", keep="0")(work)
    hf.command(name="command", key="k:{n}", queue="brief")(lambda n: None)
    hf.cron("0 7 * * *", name="cron", keep="0")(work)
    hf.job(name="kept", queue="brief", keep="1h")(work)
    hf.job(name="recorded", keep="0", keep_runs=True)(work)
    hf.consumer("order.placed", name="consumer", keep="0")(lambda order: None)
    hf.projector("order.placed", name="projector", keep="0")(lambda order: None)
    order.step(queue="brief")(work)
    removing = {name for name, handler in hf.handlers.items() if handler.removes_delivered}
    assert removing == {"job", "command", "cron"}


async def test_jobs_of_a_group_stay_for_the_job_after_them(hf: Holdfast) -> None:
    @hf.job(keep="0", result="1h")
    async def one(n: int) -> int:
        return n

    @hf.job(keep="0", result="1h")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    group = await hf.group([one.call(n) for n in range(3)]).then(total).enqueue()
    await drain(hf)
    assert await group.result(timeout="20s") == 3
    found = await group.progress()
    assert (found.total, found.done) == (4, 4)


class LosesReplies:
    """A store that writes the first settlement and loses its reply."""

    def __init__(self, store: Any) -> None:
        self._store, self.calls = store, 0

    async def run(self, operation: Operation[Any]) -> Any:
        self.calls += 1
        reply = await self._store.run(operation)
        if self.calls == 1:
            raise StoreUnavailable("store", "the connection was lost")
        return reply


@pytest.mark.parametrize("held", [True, False])
async def test_after_a_lost_reply_a_removed_row_is_settled_if_no_other_worker_could_own_it(
    hf: Holdfast, held: bool
) -> None:
    @hf.job(keep="0")
    async def work(n: int) -> None: ...

    await work.enqueue_many([(n,) for n in range(3)])
    first, second, lost = claims = await claim_all(hf.store)
    await hf.store.run(abandon(lost.id))
    ended: list[tuple[str, Any]] = []
    settler = Settler(LosesReplies(hf.store), "w1", longest_pause=0.01)  # type: ignore[arg-type]
    settler.lease_held_since = lambda at: held and at <= time.monotonic()
    changes = Remove(), DeliverResult("1", HOUR, remove=True), Remove()
    for one, change in zip(claims, changes, strict=True):
        written, gone = (partial(ended.append, (what, one.id)) for what in ("written", "lost"))
        settler.add(Ack(outcome(one, change), written, gone))
    task = asyncio.create_task(settler.run())
    await asyncio.wait_for(settler.drained(), 20)
    task.cancel()
    what = "written" if held else "lost"
    assert ended == [(what, first.id), (what, second.id), ("lost", lost.id)]
    assert [one.id for one in await all_of(hf)] == [lost.id]


async def test_a_row_that_was_removed_before_the_first_attempt_is_lost(hf: Holdfast) -> None:
    @hf.job(keep="0")
    async def work() -> None: ...

    await work.enqueue()
    (claimed,) = await claim_all(hf.store)
    await query(hf, "delete from {hf}delivery")
    ended: list[str] = []
    settler = Settler(hf.store, "w1")
    settler.lease_held_since = lambda _: True
    settler.add(Ack(outcome(claimed, Remove()), lambda: ended.append("written"), lambda: ended.append("lost")))
    task = asyncio.create_task(settler.run())
    await asyncio.wait_for(settler.drained(), 20)
    task.cancel()
    assert ended == ["lost"]


def test_a_lease_has_been_held_since_a_time_only_without_a_gap() -> None:
    class Slow:
        def run_sync(self, operation: Operation[Any]) -> tuple[bool, None]:
            time.sleep(0.3)
            return True, None

    begun = time.monotonic()
    long = Lease(Slow(), "w1", HOUR, lambda: None)  # type: ignore[arg-type]
    assert long.held_since(time.monotonic())
    assert not long.held_since(begun - 1)
    gone: list[bool] = []
    lease = Lease(Slow(), "w1", timedelta(seconds=0.2), lambda: gone.append(True))  # type: ignore[arg-type]
    lease.start()
    lease.join(20)
    # The first renewal ended after the lease: another worker may have owned everything in between.
    assert gone == [True]
    assert not lease.held_since(begun)
