"""Deliveries sort in the order of their publications, also of those within one millisecond."""

from typing import Any

from holdfast import Holdfast
from tests.support.worker import query


async def test_deliveries_sort_in_the_order_of_their_publications(hf: Holdfast) -> None:
    @hf.consumer("order.placed")
    async def ship(payload: Any) -> None: ...

    for number in range(40):
        await hf.publish("order.placed", {"n": number}, conn=None)
    await hf.publish_many([("order.placed", {"n": number}) for number in range(40, 1990)], conn=None)
    for number in range(1990, 2000):
        await hf.publish("order.placed", {"n": number}, conn=None)
    rows = await query(
        hf, "select m.position from {hf}delivery d join {hf}message m on m.id = d.message_id order by d.id"
    )
    positions = [position for (position,) in rows]
    assert len(positions) == 2000
    assert positions == sorted(positions)
