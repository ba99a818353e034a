"""A rebuild gives what the live projector would have, and it is never visible half done."""

import asyncio
from typing import Any

from holdfast import Holdfast
from holdfast.projections.rebuild import RebuildProgress
from tests.projections.ledger import expected, order, result
from tests.support.worker import drain, working

ONLINE = ("totals", "latest")


async def publish(hf: Holdfast, numbers: range, *, pause: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
    """Publishes events, some alone and some together."""
    events = [order(n) for n in numbers]
    for start in range(0, len(events), 5):
        await hf.publish_many(events[start : start + 5], conn=None)
        await asyncio.sleep(pause)
    return events


async def test_a_rebuild_under_traffic_equals_the_live_result_row_by_row(hf: Holdfast) -> None:
    events = await publish(hf, range(100))
    async with working(hf, concurrency=3):
        stop, more = asyncio.Event(), []

        async def traffic() -> None:
            at = 100
            while not stop.is_set() and at < 300:
                more.extend(await publish(hf, range(at, at + 5), pause=0.1))
                at += 5

        publishing = asyncio.create_task(traffic())
        seen: list[RebuildProgress] = []
        done = await hf.projectors.rebuild(*ONLINE, "counts", actor="ada", progress=seen.append)
        stop.set()
        await publishing
    await drain(hf, concurrency=3)
    wanted = expected([*events, *more])
    for name in (*ONLINE, "counts"):
        assert result(hf.dsn, name) == wanted[name]
    assert [(one.projector, one.online) for one in done] == [("totals", True), ("latest", True), ("counts", False)]
    assert all(one.applied >= 100 for one in done)
    assert seen[-1].applied >= 100
