"""A broker in the test's own process: what it was sent, what it refuses, and whether it is there at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson

from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable


class Broker:
    """A target that keeps what it was sent. `down` makes it unreachable, `hold` keeps confirmations back."""

    name = "memory:orders"

    def __init__(self) -> None:
        self.sent: list[OutgoingRecord] = []
        self.down = False
        self.refuses: set[str] = set()
        self.opened = 0
        self.let_go = asyncio.Event()
        self.let_go.set()

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.sent]

    @property
    def numbers(self) -> list[int]:
        """What the payloads say of themselves, in the order they came."""
        return [orjson.loads(one.body)["data"]["n"] for one in self.sent]

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Broker"]:
        if self.down:
            raise BrokerUnavailable(self.name, "it is down")
        self.opened += 1
        yield self

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        if self.down:
            raise BrokerUnavailable(self.name, "it is down")
        answers = ["too large" if one.id in self.refuses else None for one in batch]
        self.sent += [one for one, refusal in zip(batch, answers, strict=True) if refusal is None]
        await self.let_go.wait()
        return answers

    async def durability_warnings(self) -> list[str]:
        return []
