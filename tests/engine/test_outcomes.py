"""What a handler raises or returns, and what becomes of its delivery, end to end."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Holdfast, RetryAfter, RetryPolicy, Snooze, TerminalError
from holdfast.core.delivery import Status
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, logged, only, run_records, statuses

pytestmark = pytest.mark.parametrize("dsn", ["sqlite", "postgres16", "postgres18"], indirect=True)

AT_ONCE = RetryPolicy.fixed(0, attempts=3)


def give(signal: Exception, how: str) -> Any:
    """A signal may be raised or returned: both mean the same."""
    if how == "raised":
        raise signal
    return signal


async def test_a_normal_return_delivers(hf: Holdfast) -> None:
    @hf.job()
    async def greet(name: str) -> str:
        return f"hello {name}"

    await greet.enqueue("ada")
    await drain(hf)
    done = await only(hf)
    assert (done.status, done.attempts, done.locked_by, done.last_error) == (Status.DELIVERED, 1, None, None)
    assert done.completed_at is not None
    assert await run_records(hf) == []


async def test_successes_are_recorded_on_request(hf: Holdfast) -> None:
    @hf.job(keep_runs=True)
    async def greet() -> None: ...

    await greet.enqueue()
    await drain(hf)
    (run,) = await run_records(hf)
    assert (run.outcome, run.attempt, run.error) == ("succeeded", 1, None)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_terminal_error_is_dead_at_once(hf: Holdfast, how: str) -> None:
    @hf.job(retry=AT_ONCE)
    async def charge() -> Any:
        return give(TerminalError("card is void"), how)

    await charge.enqueue()
    await drain(hf)
    dead = await only(hf)
    assert (dead.status, dead.attempts, dead.discarded_at) == (Status.FAILED, 1, None)
    assert (dead.last_error, dead.error_type) == ("card is void", "holdfast.TerminalError")
    (run,) = await run_records(hf)
    assert (run.outcome, run.attempt) == ("failed", 1)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_retry_after_waits_as_long_as_it_says_and_spends_the_attempt(hf: Holdfast, how: str) -> None:
    @hf.job(retry=RetryPolicy.fixed(0, attempts=3))
    async def call() -> Any:
        return give(RetryAfter(600, "later, please"), how)

    await call.enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    waiting = await only(hf)
    assert (waiting.status, waiting.attempts) == (Status.PENDING, 1)
    assert timedelta(seconds=590) < waiting.run_at - before < timedelta(seconds=630)
    assert waiting.last_error == "retry after 10m: later, please"


async def test_retry_after_is_clamped_by_the_policy(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.fixed(0, attempts=3, retry_after_cap="2m"))
    async def call() -> None:
        raise RetryAfter(10**12)

    await call.enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    assert (await only(hf)).run_at - before < timedelta(minutes=3)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_snooze_is_no_failure_and_returns_the_attempt(hf: Holdfast, how: str) -> None:
    @hf.job()
    async def poll() -> Any:
        return give(Snooze("10m"), how)

    await poll.enqueue()
    await drain(hf)
    waiting = await only(hf)
    assert (waiting.status, waiting.attempts, waiting.last_error) == (Status.PENDING, 0, None)
    assert waiting.first_failed_at is None
    assert await run_records(hf) == []


async def test_a_snooze_runs_again_and_never_exhausts_the_budget(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(retry=RetryPolicy.none())
    async def poll(ctx: Context) -> Snooze | None:
        seen.append(ctx.attempt)
        return Snooze(0) if len(seen) < 4 else None

    await poll.enqueue()
    await drain(hf)
    assert seen == [1, 1, 1, 1]
    assert await statuses(hf) == [Status.DELIVERED]


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_cancel_is_discarded_recorded_and_not_alerted(make_app: MakeApp, log: Log, how: str) -> None:
    alerts: list[object] = []
    hf = make_app(alerts=[alerts.append])

    @hf.job()
    async def remind() -> Any:
        return give(Cancel("they unsubscribed"), how)

    await remind.enqueue()
    await drain(hf)
    gone = await only(hf)
    assert (gone.status, gone.attempts, gone.last_error) == (Status.FAILED, 1, "they unsubscribed")
    assert gone.discarded_at is not None
    assert [(run.outcome, run.error) for run in await run_records(hf)] == [("cancelled", "they unsubscribed")]
    assert alerts == []
    assert logged(log, "dead letter") == []


async def test_failures_are_retried_until_the_budget_is_spent_and_leave_a_history(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(retry=AT_ONCE)
    async def flaky(ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise ConnectionError(f"no route, attempt {ctx.attempt} of {ctx.max_attempts}")

    await flaky.enqueue()
    await drain(hf)
    assert seen == [1, 2, 3]
    dead = await only(hf)
    assert (dead.status, dead.attempts) == (Status.FAILED, 3)
    assert dead.last_error == "no route, attempt 3 of 3"
    assert dead.first_failed_at is not None
    assert dead.fingerprint
    history = await run_records(hf)
    assert [(run.attempt, run.outcome, run.error_type) for run in history] == [
        (attempt, "failed", "ConnectionError") for attempt in (1, 2, 3)
    ]
    assert all(run.trace and "raise ConnectionError" in run.trace for run in history)


async def test_what_succeeds_on_a_later_attempt_is_delivered(hf: Holdfast) -> None:
    @hf.job(retry=AT_ONCE)
    def flaky(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise OSError("not yet")

    await flaky.enqueue()
    await drain(hf)
    assert (await only(hf)).attempts == 3
    assert await statuses(hf) == [Status.DELIVERED]


async def test_a_wait_between_attempts_is_a_run_at_in_the_future(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.schedule(["10m", "20m"]))
    async def flaky() -> None:
        raise OSError("away")

    await flaky.enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    waiting = await only(hf)
    assert waiting.status is Status.PENDING
    assert timedelta(minutes=9) < waiting.run_at - before < timedelta(minutes=11)


async def test_a_handler_that_means_to_end_the_program_fails_alone(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none())
    def leave_plain() -> None:
        raise SystemExit(3)

    @hf.job(retry=RetryPolicy.none())
    async def leave() -> None:
        raise SystemExit(3)

    @hf.job()
    async def other() -> None: ...

    for job in (leave_plain, leave, other):
        await job.enqueue()
    await drain(hf)
    assert (await only(hf, "leave_plain")).error_type == "SystemExit"
    assert (await only(hf, "leave")).error_type == "SystemExit"
    assert await statuses(hf, "other") == [Status.DELIVERED]


async def test_a_plain_handler_may_even_raise_stop_iteration(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none())
    def first_of_none() -> None:
        next(iter(()))

    await first_of_none.enqueue()
    await drain(hf)
    assert await statuses(hf) == [Status.FAILED]


async def test_an_exception_of_no_common_kind_is_a_failure_too(hf: Holdfast) -> None:
    class Odd(BaseException): ...

    @hf.job(retry=AT_ONCE)
    async def odd() -> None:
        raise Odd("strange")

    await odd.enqueue()
    await drain(hf)
    assert ((await only(hf)).attempts, await statuses(hf)) == (3, [Status.FAILED])


async def test_a_cancellation_that_a_handler_lets_escape_is_a_failure(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def confused() -> None:
        raise asyncio.CancelledError

    await confused.enqueue()
    await drain(hf)
    assert (await only(hf)).error_type == "asyncio.exceptions.CancelledError"


HOSTILE = ["nul \x00 byte", "lone \ud800 surrogate", "x" * 3_000_000, "'; drop table delivery; --", "{braces} %s %(a)s"]


@pytest.mark.parametrize("text", HOSTILE, ids=["nul", "surrogate", "huge", "sql", "templates"])
async def test_an_error_is_recorded_with_any_text(hf: Holdfast, text: str) -> None:
    @hf.job(retry=RetryPolicy.none())
    async def cursed() -> None:
        raise RuntimeError(text)

    @hf.job()
    async def called_off() -> None:
        raise Cancel(text)

    await cursed.enqueue()
    await called_off.enqueue()
    await drain(hf)
    assert await statuses(hf) == [Status.FAILED, Status.FAILED]
    for dead in await all_of(hf):
        assert dead.last_error
        assert len(dead.last_error) <= 2000


async def test_an_error_that_cannot_say_what_it_is_is_recorded(hf: Holdfast) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    @hf.job(retry=RetryPolicy.none())
    def cursed() -> None:
        raise Mute

    await cursed.enqueue()
    await drain(hf)
    assert await statuses(hf) == [Status.FAILED]
