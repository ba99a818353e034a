"""What only an async call can: be broken off in the middle."""

import asyncio

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
