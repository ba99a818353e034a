"""What it costs to wrap a call that succeeds at once: Holdfast's `with_retry`, stamina, tenacity; Holdfast's breaker,
purgatory; and no wrapper.

Usage: python -m bench.peers.calls LIBRARY CALLS; prints nanoseconds a call, async and plain, as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

Wrapped = tuple[Callable[[], Awaitable[Any]], Callable[[], Any]]


async def fetch() -> int:
    return 1


def fetch_sync() -> int:
    return 1


def _holdfast() -> Wrapped:
    from holdfast import with_retry

    return with_retry("fetch")(fetch), with_retry.sync("fetch")(fetch_sync)


def _stamina() -> Wrapped:
    import stamina

    retry: Any = stamina.retry(on=ConnectionError)
    return retry(fetch), retry(fetch_sync)


def _tenacity() -> Wrapped:
    from tenacity import retry, stop_after_attempt, wait_random_exponential

    decorate: Any = retry(stop=stop_after_attempt(3), wait=wait_random_exponential(max=5))
    return decorate(fetch), decorate(fetch_sync)


def _breaker() -> Wrapped:
    from holdfast import CircuitBreaker

    breaker = CircuitBreaker("fetch")

    async def guarded() -> int:
        async with breaker.guard():
            return await fetch()

    def guarded_sync() -> int:
        with breaker.sync.guard():
            return fetch_sync()

    return guarded, guarded_sync


def _purgatory() -> Wrapped:
    from purgatory import AsyncCircuitBreakerFactory, SyncCircuitBreakerFactory

    decorate: Any = AsyncCircuitBreakerFactory(default_threshold=5, default_ttl=300)("fetch")
    decorate_sync: Any = SyncCircuitBreakerFactory(default_threshold=5, default_ttl=300)("fetch")
    return decorate(fetch), decorate_sync(fetch_sync)


LIBRARIES: dict[str, Callable[[], Wrapped]] = {
    "holdfast": _holdfast,
    "stamina": _stamina,
    "tenacity": _tenacity,
    "holdfast breaker": _breaker,
    "purgatory": _purgatory,
    "no wrapper": lambda: (fetch, fetch_sync),
}


async def _awaited(call: Callable[[], Awaitable[Any]], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        await call()
    return (time.perf_counter_ns() - started) / calls


def _plain(call: Callable[[], Any], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls


def main(library: str, calls: int) -> None:
    awaited, plain = LIBRARIES[library]()
    asyncio.run(_awaited(awaited, calls // 10))  # warm
    found = {"async": asyncio.run(_awaited(awaited, calls)), "plain": _plain(plain, calls)}
    package = library.partition(" ")[0]
    packages = {} if library == "no wrapper" else {package: version(package)}
    print(json.dumps({**found, "packages": packages}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
