"""A rerun of a consumer with `dedupe=` runs its handler again inside the window, with every kind of deduplication."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from holdfast import Filter, Holdfast
from holdfast.core.delivery import Status
from holdfast.dedupe import Dedupe, MemoryDedupe, RedisDedupe
from holdfast.stores.queries.query import deliveries
from tests.servers.redis import RedisServer
from tests.support.worker import drain


@pytest.fixture(params=["store", "memory", "redis"])
async def dedupe(request: pytest.FixtureRequest) -> AsyncIterator[Dedupe | None]:
    if request.param == "redis":
        with RedisServer() as server:
            redis = RedisDedupe(server.url)
            yield redis
            await redis.close()
    else:
        yield MemoryDedupe() if request.param == "memory" else None


@pytest.fixture
def shop(dsn: str, dedupe: Dedupe | None) -> tuple[Holdfast, list[int]]:
    hf = Holdfast(dsn, dedupe=dedupe)
    ran: list[int] = []

    @hf.consumer("order.placed", name="mail", dedupe=True)
    async def mail(order: dict[str, int]) -> None:
        ran.append(order["id"])

    return hf, ran


@pytest.mark.parametrize("key", [None, "order:1"])
async def test_a_rerun_inside_the_window_runs_the_handler_again(
    shop: tuple[Holdfast, list[int]], dedupe: Dedupe | None, key: str | None
) -> None:
    hf, ran = shop
    await hf.publish("order.placed", {"id": 1}, conn=None, key=key)
    await drain(hf)
    assert ran == [1]
    plan = await hf.ops.plan_replay(Filter(statuses=(Status.DELIVERED,)), rerun=True)
    assert plan.preview.deduplicated == (1 if dedupe is None else 0)
    await plan.execute(actor="ada", reason="lost mail")
    await drain(hf)
    assert ran == [1, 1]
    (found,) = await hf.store.run(deliveries(Filter(), limit=10))
    assert found.delivery.status is Status.DELIVERED
    await hf.close()


async def test_another_message_with_the_key_is_still_a_duplicate(dsn: str) -> None:
    window = MemoryDedupe()
    hf = Holdfast(dsn, dedupe=window)
    ran: list[int] = []

    @hf.consumer("order.placed", name="mail", dedupe=True)
    async def mail(order: dict[str, int]) -> None:
        ran.append(order["id"])

    first = await hf.publish("order.placed", {"id": 1}, conn=None, key="order:1")
    await drain(hf)
    plan = await hf.ops.plan_replay(Filter(message_id=first.id), rerun=True)
    await plan.execute(actor="ada")
    await drain(hf)
    await window.record("mail", f"{hf.source}:order:2", timedelta(minutes=5))
    await hf.publish("order.placed", {"id": 2}, conn=None, key="order:2")
    await drain(hf)
    assert ran == [1, 1], "a rerun of one delivery lets no other one through"
    await hf.close()
