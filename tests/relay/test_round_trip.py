"""From one application through a real broker to another: ids, versions and correlation arrive, repetitions are one."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, correlate
from holdfast.brokers import redis as streams
from tests.servers.redis import RedisServer
from tests.support.apps import MakeApp
from tests.support.worker import drain, eventually, query, working

_names = count(1)


@pytest.fixture
def stream(redis: RedisServer) -> streams.RedisStream:
    return streams.stream(f"round-{next(_names)}", group="mall", url=redis.url)


async def test_what_is_relayed_twice_is_handled_once_by_the_application_that_consumes_it(
    make_app: MakeApp, stream: streams.RedisStream, tmp_path: Path
) -> None:
    shop, mall = make_app(source="shop"), make_app(dsn=f"sqlite:///{tmp_path / 'mall.db'}", source="mall")
    shop.relay("order.*", to=stream, name="orders-out")
    seen: list[tuple[object, str, str]] = []
    customs: list[str | None] = []

    @mall.consumer("order.placed", source=stream, name="book")
    async def book(ctx: Context, order: dict[str, int]) -> None:
        seen.append((order["n"], ctx.headers["request_id"], ctx.headers["event_version"]))
        customs.append(ctx.headers.get("custom_id"))

    with correlate(request_id="r-1", custom_id="c-1"):
        await shop.publish("order.placed", {"n": 1}, conn=None, headers={"event_version": "2"})
    await drain(shop)
    async with working(mall):
        await eventually(lambda: seen == [(1, "r-1", "2")])
        await resend(shop)
        with correlate(request_id="r-2"):
            await shop.publish("order.placed", {"n": 2}, conn=None, headers={"event_version": "2"})
        await drain(shop)
        await eventually(lambda: len(seen) > 1)
        await asyncio.sleep(0.2)
    assert seen == [(1, "r-1", "2"), (2, "r-2", "2")]
    assert customs == ["c-1", None]


async def resend(hf: Holdfast) -> None:
    """Makes a relay forget what it has sent."""
    await query(hf, "update {hf}position set cursor = ';;0'")
