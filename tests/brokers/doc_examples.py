"""The how-to of a broker, run as printed: a record comes in, an event goes out."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from holdfast import Holdfast
from holdfast.brokers.protocol import OutgoingRecord, Record, Source, Target
from tests.support.worker import eventually, working

_PAGES = Path(__file__).parents[2] / "docs" / "how-to"


async def run_example(page: str, payments: Target, orders: Source, capsys: pytest.CaptureFixture[str]) -> Record:
    """Runs the page's program in the current directory until its handler has printed; returns what it sent."""
    example: dict[str, Any] = {}
    [code] = re.findall(r"```python\n(.*?)```", (_PAGES / page).read_text(), re.DOTALL)
    exec(code, example)  # noqa: S102
    hf: Holdfast = example["hf"]
    payment = OutgoingRecord(id="p1", type="payment.settled", key=None, body=orjson.dumps({"order_id": 7}), headers={})
    async with payments.open() as sender:
        assert await sender.send([payment]) == [None]
    printed = ""

    def paid() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "paid: 7" in printed

    async with orders.open("reader") as reading, working(hf):
        await hf.publish("order.placed", {"order_id": 8}, conn=None, key="o8")
        sent: list[Record] = await eventually(lambda: reading.fetch(1, 0.2))
        await eventually(paid)
    await hf.close()
    return sent[0]
