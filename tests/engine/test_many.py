"""Many events at once: made while they are written where the store commits on its own, and all or nothing."""

import asyncio

import pytest

from holdfast import Holdfast, InvalidPayload, Published
from tests.support.worker import drain, query

MANY = 1200


def events(*, bad: int | None = None) -> list[object]:
    return [("order.placed", {"n": float("nan") if n == bad else n}) for n in range(MANY)]


def consume(hf: Holdfast) -> list[int]:
    seen: list[int] = []

    @hf.consumer("order.*")
    async def billing(order: dict[str, int]) -> None:
        seen.append(order["n"])

    return seen


async def publish(hf: Holdfast, many: list[object], *, blocking: bool) -> list[Published]:
    if blocking:
        return await asyncio.to_thread(hf.sync.publish_many, many, conn=None, headers={"request_id": "r-1"})
    return await hf.publish_many(many, conn=None, headers={"request_id": "r-1"})


@pytest.mark.parametrize("blocking", [False, True], ids=["awaiting", "blocking"])
async def test_each_is_stored_and_delivered_once(hf: Holdfast, blocking: bool) -> None:
    seen = consume(hf)
    published = await publish(hf, events(), blocking=blocking)
    assert len({one.id for one in published}) == MANY
    assert all(one.created for one in published)
    await drain(hf)
    assert sorted(seen) == list(range(MANY))


@pytest.mark.parametrize("blocking", [False, True], ids=["awaiting", "blocking"])
async def test_one_that_is_refused_in_the_middle_leaves_nothing_and_the_store_continues(
    hf: Holdfast, blocking: bool
) -> None:
    seen = consume(hf)
    with pytest.raises(InvalidPayload):
        await publish(hf, events(bad=1100), blocking=blocking)
    assert await query(hf, "select count(*) from {hf}message") == [(0,)]
    assert await query(hf, "select count(*) from {hf}delivery") == [(0,)]
    await hf.publish_many(events(), conn=None)
    await drain(hf)
    assert len(seen) == MANY


async def test_a_reaction_is_called_for_each_of_many(hf: Holdfast) -> None:
    called: list[int] = []

    @hf.reaction("order.placed")
    async def count(order: dict[str, int]) -> None:
        called.append(order["n"])

    await hf.publish_many(events(), conn=None)
    await hf.close()
    assert sorted(called) == list(range(MANY))
