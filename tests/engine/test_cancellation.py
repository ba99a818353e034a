"""Cancelled runs: the worker learns of them with its lease, an async handler is stopped, and nothing is stored."""

import asyncio
import time
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, JobFailed
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audit
from tests.support.worker import Log, eventually, logged, only, query, wait_for, working


async def test_a_cancellation_reaches_a_running_async_handler_and_its_slot_continues(hf: Holdfast, log: Log) -> None:
    started, stopped, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    @hf.job(result="1h")
    async def long(ctx: Context) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(ctx.cancelled)
            stopped.set()
            raise
        return "not reached"

    @hf.job()
    async def short(ctx: Context) -> None:
        seen.append(ctx.cancelled)
        done.set()

    handle = await long.enqueue()
    async with working(hf, lease=timedelta(seconds=4), concurrency=1):
        await wait_for(started)
        assert await handle.cancel(reason="customer left")
        at = time.monotonic()
        await wait_for(stopped)
        assert time.monotonic() - at < 5
        with pytest.raises(JobFailed, match="was cancelled"):
            await handle.result(timeout="5s")
        await short.enqueue()
        await wait_for(done)
        await eventually(lambda: _none_left(hf))
    assert seen == [True, False]
    assert (await only(hf, "long")).status is Status.FAILED
    assert not await handle.cancel()
    assert [line["consumer"] for line in logged(log, "run cancelled")] == ["long"]
    (entry,) = await hf.store.run(audit())
    assert (entry.actor, entry.action, entry.reason) == ("app:app", "cancel", "customer left")


async def test_a_plain_function_reads_that_it_was_cancelled_and_its_return_changes_nothing(hf: Holdfast) -> None:
    flags: list[bool] = []

    @hf.job()
    def long(ctx: Context) -> None:
        flags.append(ctx.cancelled)
        until = time.monotonic() + 20
        while not ctx.cancelled and time.monotonic() < until:
            time.sleep(0.01)
        flags.append(ctx.cancelled)

    handle = await long.enqueue()
    async with working(hf, lease=timedelta(seconds=4)):
        await eventually(lambda: flags)
        assert await asyncio.to_thread(handle.sync.cancel)
        await eventually(lambda: len(flags) == 2)
    found = await only(hf)
    assert (flags, found.status, found.last_error) == ([False, True], Status.FAILED, "cancelled")


async def test_a_job_that_waits_is_cancelled_before_it_runs(hf: Holdfast) -> None:
    @hf.job()
    async def never() -> None: ...

    handle = await never.enqueue()
    assert await handle.cancel()
    assert not await handle.cancel()
    assert not await never.handle(UUID(int=1)).cancel()
    assert await query(hf, "select count(*) from {hf}cancellation") == [(0,)]


async def _none_left(hf: Holdfast) -> bool:
    return await query(hf, "select count(*) from {hf}cancellation") == [(0,)]
