"""Mechanisms that only some seeds use, so that a world stays small: each seed draws its own mixture."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from holdfast import BatchContext, Context, Rate, RetryPolicy
from holdfast.brokers.protocol import OutgoingRecord, Sender
from holdfast.core.errors import BrokerUnavailable
from simulation.application import (
    RETRY,
    SharedRouter,
    SimulatedApp,
    chance,
    complete,
    current,
    declarations,
    recorded,
)
from simulation.process import Process
from simulation.world import World

RATE, RATE_SECONDS = 3, 2
PARTS = 3
OPTIONAL = ("rate", "debounce", "batch", "group", "late", "relay", "projector", "later", "plan", "outage")
_SHARE = 0.4

_OFTEN = RetryPolicy.fixed("0.3s", attempts=20)


def features(world: World) -> frozenset[str]:
    """The optional mechanisms that a seed uses."""
    return frozenset(name for name in OPTIONAL if chance(world, "feature", name) < _SHARE)


def late_at(world: World) -> float:
    """When the late consumer is deployed, in virtual seconds."""
    return chance(world, "late at") * 0.8 * world.settings.seconds


def application(world: World, process: Process) -> SimulatedApp:
    """The app of a process, with all handlers that are deployed now."""
    process.app = hf = SimulatedApp(world, process)
    # The database is in memory: it is part of the world, and no power failure reaches it.
    hf._runtime.producer.warns_of_durability = False
    names = sorted(features(world) & set(_DECLARED) - ({"late"} if world.clock.seconds < late_at(world) else set()))
    for router in (declarations(), *map(declare, names)):
        hf.include(router)
        # The declarations find their app through the running process, and must not keep the last one alive.
        router._parent = None
    return hf


@cache
def declare(name: str) -> SharedRouter:
    """The handlers of one mechanism."""
    router = SharedRouter()
    _DECLARED[name](router)
    return router


def _rate(router: SharedRouter) -> None:
    @router.job(name="mail", retry=RETRY, rate=Rate(f"{RATE}/{RATE_SECONDS}s"))
    async def mail(ctx: Context, n: int) -> None:
        async with recorded(ctx, n):
            pass

    router.declared_jobs["mail"] = mail


def _debounce(router: SharedRouter) -> None:
    @router.job(name="index", retry=_OFTEN, debounce="0.5s", max_wait="2s", by="account")
    async def index(ctx: Context, account: str, n: int) -> None:
        async with recorded(ctx, n):
            pass

    router.declared_jobs["index"] = index


def _batch(router: SharedRouter) -> None:
    @router.consumer("entry.added", name="sum", batch=3, within="0.4s", retry=RETRY)
    async def total(ctx: BatchContext, entries: list[dict[str, Any]]) -> None:
        hf = current()
        n = entries[0]["n"]
        runs = [
            hf.world.started_run(hf.process, str(item.delivery_id), "sum", None, item.attempt, entry["n"])
            for item, entry in zip(ctx.items, entries, strict=True)
        ]
        await asyncio.sleep(chance(hf.world, "time", "sum", n) ** 3 * 2.0)
        failed = chance(hf.world, "fails", "sum", n, ctx.items[0].attempt) < 0.2
        for run in runs:
            hf.world.ended_run(hf.process, run, "Unlucky" if failed else "returned")
        if failed:
            raise RuntimeError(f"batch of {n} failed")


def _group(router: SharedRouter) -> None:
    @router.job(name="part", retry=RETRY, result="1h")
    async def part(ctx: Context, n: int, number: int) -> int:
        async with recorded(ctx, n):
            return number

    @router.job(name="album", retry=_OFTEN)
    async def album(ctx: Context, parts: list[Any], n: int) -> None:
        async with recorded(ctx, n):
            pass

    router.declared_jobs.update(part=part, album=album)


def _late(router: SharedRouter) -> None:
    @router.consumer("order.placed", name="late", retry=RETRY)
    async def late(ctx: Context, order: dict[str, Any]) -> None:
        async with recorded(ctx, order["n"]):
            pass


class _Broker:
    """A broker of the world: it confirms, fails before or after it stored a batch, and keeps what it stored."""

    name = "simulated:orders"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Sender]:
        yield _Sender()

    async def durability_warnings(self) -> list[str]:
        return []


class _Sender:
    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        world = current().world
        await asyncio.sleep(world.latency())
        fails = 1.0 if world.quiet else world.random.random()
        if fails < 0.05:
            raise BrokerUnavailable("simulated:orders", "refused")
        world.history.relayed += [record.id for record in batch]
        await asyncio.sleep(world.latency())
        if fails < 0.1:
            raise BrokerUnavailable("simulated:orders", "no confirmation")
        return [None] * len(batch)


def _relay(router: SharedRouter) -> None:
    router.relay("order.placed", to=_Broker(), name="orders-to-broker", lease="3s")


def _projector(router: SharedRouter) -> None:
    def reset(conn: Any) -> None:
        conn.execute("delete from effect where consumer = 'view'")

    @router.projector("entry.added", name="view", reset=reset, retry=_OFTEN)
    async def view(ctx: Context, entry: dict[str, Any]) -> None:
        if ctx.rebuilding:
            # Long enough for other processes to claim and publish during a rebuild.
            await asyncio.sleep(chance(current().world, "rebuild time", entry["n"]) * 0.3)
            await complete(ctx, entry["n"])
            return
        async with recorded(ctx, entry["n"]):
            await complete(ctx, entry["n"])


def _later(router: SharedRouter) -> None:
    @router.job(name="remind", retry=RETRY)
    async def remind(ctx: Context, n: int) -> None:
        async with recorded(ctx, n):
            pass

    router.declared_jobs["remind"] = remind


def delay(world: World, n: int) -> timedelta:
    """When a delayed job is due: at once for half of them, the others within three seconds."""
    return timedelta(seconds=max(0.0, chance(world, "delay", n) - 0.5) * 6)


_DECLARED = {
    "rate": _rate,
    "debounce": _debounce,
    "batch": _batch,
    "group": _group,
    "late": _late,
    "relay": _relay,
    "projector": _projector,
    "later": _later,
}

CONSUMERS = {
    "order": {"late": "late"},
    "entry": {"batch": "sum", "projector": "view"},
    "mail": {"rate": "mail"},
    "index": {"debounce": "index"},
    "remind": {"later": "remind"},
}
"""The consumers that a mechanism adds to a kind of publication."""
KINDS = {
    "rate": ("mail",),
    "debounce": ("index",),
    "group": ("album",),
    "projector": ("entry", "entry"),
    "later": ("remind",) * 4,
}
"""The publications that a mechanism adds."""
