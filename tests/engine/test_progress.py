"""Progress of runs: reported without waiting, written about once a second, and shown until the delivery is delivered."""

import asyncio
import threading
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import pytest

from holdfast import BatchContext, ConfigurationError, Context, Holdfast, JobHandle, RetryPolicy
from holdfast.core.change import Retry
from holdfast.core.delivery import Status
from holdfast.core.progress import check_progress
from holdfast.engine.handlers import progress
from holdfast.engine.handlers.progress import ProgressWriter
from holdfast.engine.settlement.settler import Ack
from holdfast.interfaces.cli.deliveries.delivery_report import lines
from holdfast.interfaces.presentation.views import dumps
from holdfast.stores.deliveries.progress import JobProgress
from holdfast.stores.deliveries.settle import Settlement
from holdfast.stores.operation import Operation
from tests.support.apps import MakeApp
from tests.support.worker import all_of, drain, eventually, only, query, wait_for, working


class Invocation(NamedTuple):
    id: UUID = UUID(int=7)
    fence: int = 1
    correlation: dict[str, str] = {}  # noqa: RUF012


async def test_reports_of_async_and_plain_handlers_are_shown_and_go_when_they_are_delivered(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_INTERVAL", 0.01)
    hf = make_app(redact=["card"])
    go, released = asyncio.Event(), threading.Event()

    @hf.job()
    async def pay(ctx: Context, card: str) -> None:
        for n in range(1000):
            await ctx.progress(n / 1000)
        await ctx.progress(0.4, f"charging {card}")
        await wait_for(go)

    @hf.job()
    def plain(ctx: Context) -> None:
        # Libraries call back from other threads.
        other = threading.Thread(target=ctx.sync.progress, args=(1, "uploaded"))
        other.start()
        other.join()
        assert released.wait(20)

    first, second = await pay.enqueue("4111-1111"), await plain.enqueue()
    assert await first.progress() is None
    async with working(hf, lease=timedelta(seconds=30)):
        found = await eventually(lambda: _at(first, 0.4))
        assert (found.fraction, found.note) == (0.4, "charging [redacted]")
        assert (await eventually(lambda: _at(second, 1.0))).note == "uploaded"
        blocking = await asyncio.to_thread(second.sync.progress)
        assert blocking is not None
        assert blocking.fraction == 1.0
        detail = await hf.ops.job(first.id)
        assert orjson.loads(dumps(detail))["progress"]["fraction"] == 0.4
        text = "\n".join("".join(part for part, _ in line) for line in lines(detail))
        assert "40 %, charging [redacted]" in text
        go.set()
        released.set()
        await eventually(lambda: _has_rows(hf))
    assert [one.status for one in await all_of(hf)] == [Status.DELIVERED] * 2
    assert await first.progress() is None


async def test_a_failed_run_keeps_its_last_report(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def fails(ctx: Context) -> None:
        await ctx.progress(0.1)
        await asyncio.sleep(0)
        await ctx.progress(0.7, "row 7\x00")
        raise ValueError("row 7 is broken")

    handle = await fails.enqueue()
    await drain(hf)
    found = await handle.progress()
    assert found is not None
    assert (found.fraction, found.note) == (0.7, "row 7\ufffd")
    detail = await hf.ops.job(handle.id)
    assert detail.progress is not None
    assert detail.progress.fraction == 0.7


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((1.5,), r"got 1\.5; pass a number from 0 to 1"),
        ((-0.1,), "a number from 0 to 1"),
        ((float("nan"),), "got nan"),
        ((40,), "40 % is 0.4"),
        (("0.4",), "got str as its fraction"),
        ((True,), "got bool"),
        ((0.4, 7), "got int as its note"),
    ],
)
def test_wrong_values_are_refused(given: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_progress(*given, *(None,) * (2 - len(given)))


def test_a_rounding_error_is_cut_off() -> None:
    assert [check_progress(value, None) for value in (0, 1, 1.0000000000000002, -1e-17)] == [0.0, 1.0, 1.0, 0.0]


async def test_wrong_values_and_batches_end_as_dead_letters_that_say_why(hf: Holdfast) -> None:
    @hf.job()
    def percent(ctx: Context) -> None:
        ctx.sync.progress(40)

    @hf.consumer("clicked", batch=2)
    async def store(ctx: BatchContext, events: list[dict[str, int]]) -> None:
        await ctx.progress(0.5)

    await percent.enqueue()
    await hf.publish("clicked", {"n": 1}, conn=None)
    await drain(hf)
    assert [(one.status, one.attempts) for one in await all_of(hf)] == [(Status.FAILED, 1)] * 2
    assert "from 0 to 1" in ((await only(hf, "percent")).last_error or "")
    assert "takes batches" in ((await only(hf, "store")).last_error or "")


async def test_a_step_of_a_workflow_reports(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL", 0.01)
    order, go = hf.workflow("order"), asyncio.Event()

    @order.step()
    async def charge(ctx: Context, order_id: int) -> None:
        await ctx.progress(0.5, f"order {order_id}")
        await wait_for(go)

    await order.start(order_id=7)
    async with working(hf, lease=timedelta(seconds=30)):
        await eventually(lambda: _has_rows(hf, (0.5, "order 7")))
        go.set()
        await eventually(lambda: _has_rows(hf))


async def test_ten_thousand_reports_are_one_statement_and_a_late_thread_reports_nothing() -> None:
    written: list[Operation[Any]] = []

    class Recording:
        async def run(self, operation: Operation[Any]) -> None:
            written.append(operation)

    writer = ProgressWriter(Recording(), "w1")  # type: ignore[arg-type]
    run = Invocation()
    context = Context(run, "w1", None, None, 1, progress=writer)  # type: ignore[arg-type]
    for n in range(10_000):
        await context.progress(n / 10_000)
    await asyncio.sleep(0.01)
    (query,) = (next(operation.start()) for operation in written)
    assert query.batches["reports"]["fraction"] == [0.9999]
    await context.progress(1)
    assert context.reported is not None
    ack = Ack(Settlement(run.id, run.fence, Retry(timedelta(0)), "failed"))
    assert writer.settlement(context.reported, ack.settlement.change, ack) is ack
    context.sync.progress(0.1)
    await writer.flush()
    assert next(written[-1].start()).batches["reports"]["fraction"] == [1.0]
    await writer.flush()
    assert len(written) == 2
    writer.close()


async def _at(handle: JobHandle, fraction: float) -> JobProgress | None:
    found = await handle.progress()
    return found if found is not None and found.fraction == fraction else None


async def _has_rows(hf: Holdfast, *rows: tuple[float, str | None]) -> bool:
    return await query(hf, "select fraction, note from {hf}progress") == list(rows)
