"""A consumer that comes late gets what was there before it: while others publish, and not what was pruned."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, NotFound
from tests.projections.ledger import order
from tests.support.worker import drain, eventually, query, working


async def test_a_consumer_added_under_load_gets_everything_once_when_it_is_asked_for(dsn: str, hf: Holdfast) -> None:
    """It started with what comes, and an operator gives it the past."""
    await hf.publish_many([order(n) for n in range(1500)], conn=None)
    late, seen = Holdfast(dsn), Counter[int]()

    @late.consumer("order.*", name="late", start="now")
    async def catch(body: dict[str, Any]) -> None:
        seen[body["at"]] += 1

    stop, published = asyncio.Event(), 1500

    async def traffic() -> None:
        nonlocal published
        while not stop.is_set():
            await hf.publish_many([order(n) for n in range(published, published + 20)], conn=None)
            published += 20
            await asyncio.sleep(0.02)

    publishing = asyncio.create_task(traffic())
    reported: list[int] = []
    async with working(late):
        await eventually(lambda: seen)
        assert 0 not in seen
        added = await late.ops.catch_up("late", actor="ada", progress=reported.append)
        stop.set()
        await publishing
        await eventually(lambda: len(seen) == published)
    assert set(seen.values()) == {1}
    assert 1500 <= added == reported[-1]
    assert await late.ops.catch_up("late", actor="ada") == 0
    (entry, _) = await late.ops.audit(target=("consumer", "late"))
    assert (entry.action, entry.actor, entry.detail) == ("catch-up", "ada", {"added": 0})
    await late.close()


async def test_it_starts_at_a_time_and_above_what_was_pruned(dsn: str, hf: Holdfast) -> None:
    await hf.publish_many([order(n) for n in range(3)], conn=None)
    await asyncio.sleep(0.01)
    between = datetime.now(UTC)
    await asyncio.sleep(0.01)
    await hf.publish_many([order(n) for n in range(3, 6)], conn=None)
    late, seen = Holdfast(dsn), Counter[int]()

    @late.consumer("order.*", name="late", start="now")
    async def catch(body: dict[str, Any]) -> None:
        seen[body["at"]] += 1

    await drain(late)
    assert await late.ops.catch_up("late", since=between, actor="ada") == 3
    await drain(late)
    assert seen == {3: 1, 4: 1, 5: 1}

    await late.ops.prune(timedelta(0), actor="ada")
    assert await query(late, "select count(*) from {hf}delivery where consumer = 'late'") == [(0,)]
    assert await late.ops.catch_up("late", actor="ada") == 0, "what was done and pruned is not done again"
    with pytest.raises(NotFound, match="unknown"):
        await late.ops.catch_up("unknown", actor="ada")
    await late.close()
