"""Handlers that run too long: an async one is cancelled, a thread cannot be, and neither harms what follows."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast import Context, Holdfast, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.engine.execution.threads import Threads
from tests.support.worker import Log, drain, eventually, logged, only, run_records, statuses, wait_for, working

AT_ONCE = RetryPolicy.fixed(0, attempts=2)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets the threads of a test end, at the latest when the test does."""
    event = threading.Event()
    yield event
    event.set()


async def test_an_async_handler_is_cancelled_at_its_timeout_and_retried(hf: Holdfast) -> None:
    cancelled: list[int] = []

    @hf.job(timeout="20ms", retry=AT_ONCE)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise

    await slow.enqueue()
    await drain(hf)
    assert cancelled == [1, 2]
    dead = await only(hf)
    assert (dead.status, dead.attempts) == (Status.FAILED, 2)
    assert dead.last_error == "slow ran longer than its time-out of 0.02 s"
    assert dead.error_type == "holdfast.HandlerTimeout"


async def test_a_timeout_of_the_handler_is_distinguished_from_the_workers(hf: Holdfast) -> None:
    @hf.job(timeout="1m", retry=RetryPolicy.none())
    async def call() -> None:
        raise TimeoutError("the other side did not answer")

    await call.enqueue()
    await drain(hf)
    assert (await only(hf)).error_type == "TimeoutError"


async def test_a_quick_handler_is_not_touched_by_its_timeout(hf: Holdfast) -> None:
    @hf.job(timeout="1m")
    async def quick() -> None: ...

    @hf.job(timeout="1m")
    def quick_plain() -> None: ...

    await quick.enqueue()
    await quick_plain.enqueue()
    await drain(hf)
    assert await statuses(hf) == [Status.DELIVERED, Status.DELIVERED]


async def test_a_thread_that_times_out_runs_on_and_its_late_result_changes_nothing(
    hf: Holdfast, release: threading.Event, log: Log
) -> None:
    attempts: list[int] = []

    @hf.job(timeout="50ms", retry=RetryPolicy.fixed(0, attempts=1))
    def stuck(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        release.wait(20)
        return "too late"

    await stuck.enqueue()
    async with working(hf):
        await eventually(lambda: _failed(hf))
        before = await only(hf)
        release.set()
        await eventually(lambda: logged(log, "handler thread ended late"))
        assert await only(hf) == before
    assert attempts == [1]
    assert logged(log, "handler thread still running")


async def test_a_late_thread_cannot_complete_what_was_settled_without_it(
    hf: Holdfast, release: threading.Event, log: Log
) -> None:
    errors: list[str] = []

    @hf.job(timeout="50ms", retry=RetryPolicy.none())
    def stuck(ctx: Context) -> None:
        release.wait(20)
        try:
            hf.store.run_sync(ctx._completion(None))
        except Exception as error:
            errors.append(str(error))
            raise

    await stuck.enqueue()
    async with working(hf):
        await eventually(lambda: _failed(hf))
        release.set()
        await eventually(lambda: logged(log, "handler thread ended late"))
    assert ["lease lost" in error or "no longer held" in error for error in errors] == [True]
    assert await statuses(hf) == [Status.FAILED]


async def test_the_slot_of_a_thread_that_runs_on_stays_taken(hf: Holdfast, release: threading.Event) -> None:
    """Otherwise hanging handlers would pile up threads without end."""
    running: list[int] = []
    second_ran = asyncio.Event()
    loop = asyncio.get_running_loop()

    @hf.job(timeout="50ms", retry=RetryPolicy.none())
    def stuck() -> None:
        running.append(1)
        release.wait(20)

    @hf.job()
    def after() -> None:
        loop.call_soon_threadsafe(second_ran.set)

    await stuck.enqueue()
    async with working(hf, concurrency=1):
        await eventually(lambda: _failed(hf, "stuck"))
        await after.enqueue()
        await asyncio.sleep(0.2)  # ten polls: time enough to claim it, were there a slot
        assert not second_ran.is_set()
        release.set()
        await wait_for(second_ran)
    assert running == [1]


async def test_an_error_in_a_thread_keeps_its_trace(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none())
    def fails() -> None:
        raise LookupError("deep inside")

    await fails.enqueue()
    await drain(hf)
    (run,) = await run_records(hf)
    assert 'raise LookupError("deep inside")' in (run.trace or "")


async def test_threads_are_used_again_and_do_not_keep_the_process_alive() -> None:
    threads = Threads("test-threads")
    for _ in range(20):
        assert await threads.start(lambda: threading.current_thread().daemon) == (True, None)
    alive = [thread for thread in threading.enumerate() if thread.name.startswith("test-threads")]
    assert len(alive) == 1
    threads.close()
    alive[0].join(5)
    assert not alive[0].is_alive()


async def _failed(hf: Holdfast, consumer: str | None = None) -> bool:
    return await statuses(hf, consumer) == [Status.FAILED]
