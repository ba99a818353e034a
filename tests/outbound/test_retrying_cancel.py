"""Time-outs: an async call is cancelled; a plain one receives its time limit."""

import asyncio
import time

import pytest

from holdfast import CircuitBreaker, CircuitOpen, RetryPolicy, with_retry

FAST = RetryPolicy.fixed(0.001, attempts=3)


def test_a_hanging_call_counts_against_the_breaker() -> None:
    breaker = CircuitBreaker("slow", threshold=2)

    async def hang() -> None:
        await asyncio.sleep(60)

    with pytest.raises(CircuitOpen):
        asyncio.run(with_retry("call", hang, timeout=0.02, policy=FAST, breaker=breaker))


@pytest.mark.parametrize("moment", ["attempt", "wait"])
def test_cancelling_ends_it_at_once_and_is_never_retried(moment: str) -> None:
    async def main() -> int:
        calls, there = 0, asyncio.Event()

        async def function() -> None:
            nonlocal calls
            calls += 1
            there.set()
            if moment == "wait":
                raise ConnectionError
            await asyncio.sleep(60)

        task = asyncio.create_task(with_retry("call", function, policy=RetryPolicy.fixed(60, attempts=3)))
        await there.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return calls

    assert asyncio.run(main()) == 1


async def test_an_attempt_that_took_too_long_says_so() -> None:
    with pytest.raises(TimeoutError, match=r"report took longer than 0\.02 s"):
        await with_retry("report", lambda: asyncio.sleep(60), timeout=0.02, policy=RetryPolicy.none())


async def test_a_time_out_of_the_function_itself_is_not_called_ours() -> None:
    async def late() -> None:
        raise TimeoutError

    async def hangs() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as raised:
        await with_retry("theirs", late, policy=RetryPolicy.none(), timeout=None)
    assert str(raised.value) == ""
    with pytest.raises(TimeoutError, match=r"ours took longer than 0\.01 s"):
        await with_retry("ours", hangs, policy=RetryPolicy.none(), timeout=0.01)


def test_a_plain_function_that_reads_its_timeout_gets_that_of_a_probe() -> None:
    breaker = CircuitBreaker("slow", threshold=1, cooldown=0.01, jitter=0, probe_timeout=0.5)
    breaker.sync.trip(0.001, "down")
    time.sleep(0.01)
    left = []
    with_retry.sync("look", lambda attempt: left.append(attempt.remaining), breaker=breaker, policy=FAST, timeout=10)
    with_retry.sync("call", lambda attempt: left.append(attempt.remaining), breaker=breaker, policy=FAST, timeout=10)
    assert left[0] <= 0.5
    assert left[1] > 5
