"""An app with two consumers of a stream, one through the inbox and one direct; each has an effect.

`HOLDFAST_TEST_SOURCE` names the function that makes the source of a stream for a group, as `module:function`.
"""

import importlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast import Context, Holdfast, RetryPolicy
from holdfast.brokers.protocol import Lag, Record, Source, Subscription
from tests.engine.programs import crash
from tests.engine.programs.shop import spelled, transaction

# Without a unique constraint, so that a double effect is visible.
TABLE = "create table if not exists effect (consumer text not null, n bigint not null)"
CONSUMERS = ("stored", "straight")


class CrashingSubscription:
    """A subscription that can crash the process before and after each acknowledgement."""

    def __init__(self, inner: Subscription, name: str) -> None:
        self._inner, self._name = inner, name

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        records = await self._inner.fetch(limit, wait)
        if records:
            crash.point(f"{self._name}.fetched")
        return records

    async def ack(self, records: Sequence[Record]) -> None:
        crash.point(f"{self._name}.unacknowledged")
        await self._inner.ack(records)
        crash.point(f"{self._name}.acknowledged")

    async def release(self, records: Sequence[Record]) -> None:
        await self._inner.release(records)

    async def extend(self, records: Sequence[Record]) -> None:
        await self._inner.extend(records)

    async def lag(self) -> Lag:
        return await self._inner.lag()


@dataclass(frozen=True)
class PointedSource:
    inner: Source
    consumer: str

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def ack_timeout(self) -> float:
        return self.inner.ack_timeout

    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]:
        return self._opened(consumer)

    @asynccontextmanager
    async def _opened(self, consumer: str) -> AsyncIterator[Subscription]:
        async with self.inner.open(consumer) as subscription:
            yield CrashingSubscription(subscription, self.consumer)

    async def durability_warnings(self) -> list[str]:
        return await self.inner.durability_warnings()


def build(dsn: str, source: Any, stream: str) -> Holdfast:
    """The till on one database, fed from one stream."""
    hf = Holdfast(dsn)
    often = RetryPolicy.exponential(attempts=60, base=0.05, cap=0.5)

    def pay(ctx: Context, payment: dict[str, Any]) -> None:
        with transaction(dsn) as db:
            values = (ctx.consumer, payment["n"])
            db.execute(spelled(dsn, "insert into effect (consumer, n) values (?, ?)"), values)
            crash.point(f"{ctx.consumer}.uncommitted")
            ctx.sync.complete(conn=db)
        crash.point(f"{ctx.consumer}.committed")

    for name in CONSUMERS:
        place = PointedSource(source(stream, name), name)
        direct = name == "straight"
        hf.consumer("payment.settled", name=name, source=place, direct=direct, retry=often)(pay)
    return hf


def built(build: Callable[[str, Any, str], Holdfast]) -> Holdfast | None:
    """The app that the environment describes. The crash points are installed: the shop has done it."""
    if "HOLDFAST_TEST_SOURCE" not in os.environ:
        return None
    module, _, function = os.environ["HOLDFAST_TEST_SOURCE"].partition(":")
    source = getattr(importlib.import_module(module), function)
    return build(os.environ["HOLDFAST_DSN"], source, os.environ["HOLDFAST_TEST_STREAM"])


hf = built(build)
