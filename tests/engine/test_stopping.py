"""The end of a worker: no new claims, what runs may finish, what is too long is cut off, nothing is lost or spent."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from holdfast import ConfigurationError, Context, Holdfast, RetryPolicy
from holdfast.brokers.redis import stream
from holdfast.core.decide import MAX_HOLDS
from holdfast.core.delivery import Status
from holdfast.stores.deliveries.worker import workers
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.support.worker import Log, all_of, eventually, logged, only, options, query, run_records, statuses, wait_for

NONE = RetryPolicy.none()


class Running:
    """A worker whose stop the test gives by hand."""

    def __init__(self, hf: Holdfast, **given: object) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(hf.work(options(**given), stop=self.stop))

    async def ended(self, within: float = 20) -> float:
        """Stops it and waits; how many seconds that took."""
        began = time.monotonic()
        self.stop.set()
        await asyncio.wait_for(self.task, within)
        return time.monotonic() - began


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_worker_that_stops_while_it_registers_leaves_no_row(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_REDIS", raising=False)

    @hf.consumer("payment.settled", source=stream("payments", group="shop"))
    async def settle(payment: dict[str, int]) -> None: ...

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has no address"):
            await hf.work(options())
    assert await hf.store.run(workers()) == []


async def test_an_idle_worker_ends_at_once_and_leaves_no_row(hf: Holdfast) -> None:
    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    running = Running(hf)
    await eventually(lambda: _all(hf, Status.DELIVERED))
    assert await running.ended() < 2
    assert await hf.store.run(workers()) == []


async def test_what_runs_may_finish_and_nothing_more_is_started(hf: Holdfast) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @hf.job()
    async def work(n: int) -> None:
        ran.append(n)
        started.set()
        await go.wait()

    await work.enqueue(1)
    running = Running(hf, concurrency=1)
    await wait_for(started)
    running.stop.set()
    await work.enqueue(2)
    await asyncio.sleep(0.1)  # five polls: time enough to claim it
    go.set()
    await running.ended()
    done, waiting = await all_of(hf)
    assert (ran, done.status) == ([1], Status.DELIVERED)
    assert (waiting.status, waiting.attempts) == (Status.PENDING, 0)


async def test_what_is_too_long_is_cut_off_given_back_unspent_and_counted_as_a_hold(hf: Holdfast, log: Log) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    await endless.enqueue()
    running = Running(hf, grace=timedelta(seconds=1))
    await wait_for(started)
    assert await running.ended() < 4
    held = await only(hf)
    assert (held.status, held.attempts, held.holds) == (Status.PENDING, 0, 1)
    assert [(run.outcome, run.error) for run in await run_records(hf)] == [
        ("released", "run was cut off at the shutdown deadline")
    ]
    assert logged(log, "worker stopped")[-1]["unwritten"] == 0


async def test_an_error_that_a_handler_makes_of_being_cut_off_is_not_its_failure(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def touchy() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("I was interrupted") from None

    await touchy.enqueue()
    running = Running(hf, grace=timedelta(milliseconds=200))
    await wait_for(started)
    await running.ended()
    assert ((await only(hf)).status, (await only(hf)).attempts) == (Status.PENDING, 0)


async def test_a_handler_that_finishes_although_it_was_cancelled_is_done(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def steady() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await steady.enqueue()
    running = Running(hf, grace=timedelta(milliseconds=200))
    await wait_for(started)
    await running.ended()
    assert await statuses(hf) == [Status.DELIVERED]


async def test_cut_off_too_often_it_counts_as_a_failure(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    await endless.enqueue()
    await query(hf, f"update {{hf}}delivery set holds = {MAX_HOLDS}")
    running = Running(hf, grace=timedelta(milliseconds=200))
    await wait_for(started)
    await running.ended()
    assert await statuses(hf) == [Status.FAILED]


async def test_a_thread_that_cannot_be_stopped_does_not_keep_the_worker(
    hf: Holdfast, release: threading.Event, log: Log
) -> None:
    started = threading.Event()

    @hf.job(retry=NONE)
    def stuck() -> None:
        started.set()
        release.wait(30)

    await stuck.enqueue()
    running = Running(hf, grace=timedelta(milliseconds=500))
    await eventually(started.is_set)
    assert await running.ended() < 4
    assert ((await only(hf)).status, (await only(hf)).holds) == (Status.PENDING, 1)
    assert logged(log, "handler thread still running")


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(hf: Holdfast, log: Log) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @hf.job(retry=NONE)
    async def stubborn() -> None:
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    await stubborn.enqueue()
    running = Running(hf, grace=timedelta(milliseconds=500))
    await wait_for(started)
    assert await running.ended() < 5
    assert logged(log, "handler ignored cancellation")
    go.set()


async def test_a_second_stop_does_not_wait_for_handlers(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    await endless.enqueue()
    running = Running(hf, grace=timedelta(seconds=60))
    await wait_for(started)
    running.stop.set()
    await asyncio.sleep(0.05)
    assert not running.task.done()
    hf._stop_workers()
    assert await running.ended() < 5
    assert await statuses(hf) == [Status.PENDING]


async def test_a_worker_whose_task_is_cancelled_gives_back_what_it_has(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job(retry=NONE)
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    await endless.enqueue()
    running = Running(hf, grace=timedelta(seconds=60))
    await wait_for(started)
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running.task, 5)
    held = await only(hf)
    assert (held.status, held.attempts, held.locked_by) == (Status.PENDING, 0, None)
    assert await hf.store.run(workers()) == []


@pytest.mark.parametrize("moment", range(8))
async def test_cancelled_at_any_moment_nothing_stays_claimed(hf: Holdfast, moment: int) -> None:
    """Also in the middle of a claim that the store has already made."""

    @hf.job(retry=NONE)
    async def work(n: int) -> None:
        await asyncio.sleep(0.002)

    await hf._runtime.publish([work._message((n,), {})[1] for n in range(50)], None)
    running = Running(hf, concurrency=5)
    await asyncio.sleep(0.02 + moment * 0.007)
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running.task, 10)
    assert Status.IN_FLIGHT not in await statuses(hf)
    assert all(d.attempts == (1 if d.status is Status.DELIVERED else 0) for d in await all_of(hf))


async def test_what_was_claimed_ahead_is_given_back_unspent(hf: Holdfast) -> None:
    long: list[int] = []
    go = asyncio.Event()

    @hf.job()
    async def work(n: int) -> None:
        if n < 300:
            await asyncio.sleep(0.002)  # short work, so that the worker claims ahead
            return
        long.append(n)
        await go.wait()

    await hf._runtime.publish([work._message((n,), {})[1] for n in range(300)], None)
    await hf._runtime.publish([work._message((n,), {})[1] for n in range(300, 400)], None)
    running = Running(hf, concurrency=2)
    await eventually(lambda: len(long) == 2 and _in_flight(hf, more_than=2))
    running.stop.set()
    await eventually(lambda: _in_flight(hf, exactly=2))
    go.set()
    await running.ended()
    left = [d for d in await all_of(hf) if d.status is not Status.DELIVERED]
    assert (len(left), {(d.status, d.attempts, d.holds) for d in left}) == (98, {(Status.PENDING, 0, 0)})


async def test_outcomes_known_at_the_end_are_written(hf: Holdfast) -> None:
    """A burst of results right before the end: all of them are in the store when the worker is gone."""

    @hf.job(retry=RetryPolicy.fixed("1h"))
    async def work(ctx: Context, n: int) -> None:
        if n % 2:
            raise OSError("away")

    await hf._runtime.publish([work._message((n,), {})[1] for n in range(100)], None)
    running = Running(hf, concurrency=50)
    await eventually(lambda: _some_done(hf))
    await running.ended()
    for delivery in await all_of(hf):
        assert delivery.status in (Status.DELIVERED, Status.PENDING)
        assert delivery.attempts == (1 if delivery.status is Status.DELIVERED or delivery.last_error else 0)


async def test_a_cancelled_call_ends_cancelled_although_the_server_became_unavailable(
    postgres18: PostgresServer, postgres18_dsn: str
) -> None:
    """Else a loop that outlives outages would take the cancellation for one, and never end."""
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(postgres18_dsn))
        await hf.store.run(workers())
        with proxy.silent():
            call = asyncio.create_task(hf.store.run(workers()))
            await asyncio.sleep(0.1)
            call.cancel()
            await asyncio.sleep(0.1)
            with proxy.away():
                await asyncio.wait({call}, timeout=20)
        assert call.cancelled()


async def test_outcomes_wait_for_a_store_that_comes_back_before_the_deadline(
    postgres18: PostgresServer, postgres18_dsn: str
) -> None:
    finished = asyncio.Event()
    go = asyncio.Event()
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(postgres18_dsn))

        @hf.job(retry=NONE)
        async def work() -> None:
            finished.set()
            await go.wait()

        await work.enqueue()
        running = Running(hf, lease=timedelta(seconds=30), grace=timedelta(seconds=15))
        await wait_for(finished)
        with proxy.away():
            go.set()
            running.stop.set()
            await asyncio.sleep(0.5)
            assert not running.task.done()
        await running.ended()
        assert await statuses(hf) == [Status.DELIVERED]
        await hf.close()


async def _all(hf: Holdfast, status: Status) -> bool:
    return await statuses(hf) == [status]


async def _some_done(hf: Holdfast) -> bool:
    return Status.DELIVERED in await statuses(hf)


async def _in_flight(hf: Holdfast, more_than: int = -1, exactly: int | None = None) -> bool:
    count = (await statuses(hf)).count(Status.IN_FLIGHT)
    return count == exactly if exactly is not None else count > more_than
