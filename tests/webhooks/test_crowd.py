"""A dead endpoint among a hundred healthy ones: its deliveries park, and the others do not notice."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import Holdfast, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.webhooks import WebhookOptions
from tests.support.apps import MakeApp
from tests.support.worker import eventually, working
from tests.webhooks.receiver import Act, Receiver, Request, silent

pytestmark = pytest.mark.long

OPTIONS = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, timeout=0.5, threshold=3, cooldown=1.5)
HEALTHY = 100


class Crowd:
    """One server that stands for many receivers, distinguished by their paths; it notes when each event came."""

    def __init__(self) -> None:
        self.receiver = Receiver(self._note)
        self.came: dict[tuple[str, int], float] = {}

    async def _note(self, request: Request, writer: asyncio.StreamWriter) -> None:
        path = request.line.split()[1]
        self.came[path, request.json["data"]["id"]] = time.monotonic()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.receiver.port}/{number}"


@asynccontextmanager
async def gathered(hf: Holdfast, dead: Act | None) -> AsyncIterator[tuple[Crowd, Receiver | None, str | None]]:
    """A hundred healthy endpoints and maybe one that is dead, all subscribed to the same events."""
    async with AsyncExitStack() as stack:
        crowd = Crowd()
        await crowd.receiver.open()
        stack.push_async_callback(crowd.receiver.die)
        for number in range(HEALTHY):
            await hf.webhooks.add(crowd.url(number), events=["order.*"], conn=None)
        bad, consumer = None, None
        if dead is not None:
            bad = await Receiver(dead).open()
            stack.push_async_callback(bad.die)
            retry = RetryPolicy.fixed(0.05, attempts=3)
            added = await hf.webhooks.add(bad.url, events=["order.*"], conn=None, retry=retry)
            consumer = f"webhook:{added.id}"
        yield crowd, bad, consumer


async def latencies(hf: Holdfast, crowd: Crowd, events: int, gap: float) -> list[float]:
    """How long each healthy endpoint waited for each event, sorted."""
    published: dict[int, float] = {}
    for number in range(events):
        published[number] = time.monotonic()
        await hf.publish("order.placed", {"id": number}, conn=None)
        await asyncio.sleep(gap)
    await eventually(lambda: len(crowd.came) == events * HEALTHY)
    return sorted(at - published[number] for (_, number), at in crowd.came.items())


async def of(hf: Holdfast, consumer: str) -> list[tuple[Status, str | None]]:
    found = await hf.store.run(deliveries(Filter(consumers=(consumer,)), 1000))
    return [(one.delivery.status, one.delivery.error_type) for one in found]


@pytest.mark.parametrize("dsn", ["sqlite", "postgres18"], indirect=True)
async def test_the_dead_one_parks_and_is_served_when_it_returns(make_app: MakeApp) -> None:
    hf, events = make_app(webhooks=OPTIONS), 5
    async with gathered(hf, silent) as (crowd, bad, consumer):
        assert bad is not None
        assert consumer is not None
        async with working(hf, concurrency=50, lease=timedelta(seconds=10)):
            await latencies(hf, crowd, events, 0.05)
            await eventually(lambda: parked(hf, consumer))
            assert all(status is not Status.FAILED for status, _ in await of(hf, consumer))
            await bad.die()
            bad.then(crowd._note)
            await bad.open()
            await eventually(lambda: all_delivered(hf, consumer))
    assert len({id for path, id in crowd.came if path == "/in"}) == events


async def parked(hf: Holdfast, consumer: str) -> bool:
    found = await of(hf, consumer)
    return any(error == "holdfast.CircuitOpen" for _, error in found)


async def all_delivered(hf: Holdfast, consumer: str) -> bool:
    return {status for status, _ in await of(hf, consumer)} == {Status.DELIVERED}


@pytest.mark.soak
@pytest.mark.parametrize("dsn", ["sqlite", "postgres18"], indirect=True)
async def test_the_healthy_ones_are_as_quick_as_without_it(make_app: MakeApp) -> None:
    """Reports p50 and p99 of runs without a dead endpoint and with one, in turn; judged by who reads it."""
    options = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, timeout=5)
    for dead in (None, silent, None, silent):
        hf = make_app(webhooks=options)
        async with gathered(hf, dead) as (crowd, _, consumer), working(hf, concurrency=50, lease=timedelta(seconds=10)):
            found = await latencies(hf, crowd, 20, 1.0)
            p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
            print(f"{'with' if dead else 'without'} a dead one: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
            if consumer is not None:
                assert all(status is not Status.FAILED for status, _ in await of(hf, consumer))
        for webhook in await hf.ops.webhooks():
            if webhook.disabled_at is None:
                await hf.ops.disable_webhook(webhook.id, actor="test", reason="the next run has its own")
