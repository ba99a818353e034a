"""Statistics are queried once for all open pages, and again after a change."""

import asyncio

import pytest

from holdfast.interfaces.console.stats_cache import StatsCache
from holdfast.ops.service import Operations


class Readings:
    """A slow question that counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def __call__(self, _: Operations) -> int:
        self.asked += 1
        mine = self.asked
        await self.answer.wait()
        return mine


@pytest.fixture
def cache() -> StatsCache:
    return StatsCache(lambda: None)  # type: ignore[arg-type,return-value]


async def test_many_who_look_at_once_ask_once(cache: StatsCache) -> None:
    ask = Readings()
    looking = [asyncio.create_task(cache.read("figure", ask)) for _ in range(10)]
    await asyncio.sleep(0)
    ask.answer.set()
    assert await asyncio.gather(*looking) == [1] * 10
    assert await cache.read("figure", ask) == 1


async def test_after_a_change_no_reading_that_began_before_it_is_shown(cache: StatsCache) -> None:
    ask = Readings()
    early = asyncio.create_task(cache.read("figure", ask))
    await asyncio.sleep(0)
    cache.invalidate()
    late = asyncio.create_task(cache.read("figure", ask))
    await asyncio.sleep(0)
    ask.answer.set()
    assert (await early, await late) == (1, 2)
    assert await cache.read("figure", ask) == 2


async def test_one_who_leaves_does_not_take_the_answer_along_and_a_failure_is_not_kept(cache: StatsCache) -> None:
    ask = Readings()
    gone, stays = (asyncio.create_task(cache.read("figure", ask)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    ask.answer.set()
    assert await stays == 1

    async def broken(_: Operations) -> int:
        raise RuntimeError("out")

    with pytest.raises(RuntimeError):
        await cache.read("other", broken)
    assert await cache.read("other", ask) == 2
