"""The application of the simulated processes. Its handlers are declared once per interpreter and shared by all apps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cache
from hashlib import blake2b
from typing import Any

from holdfast import Context, Holdfast, Job, Limit, RetryPolicy, Router, Step, TerminalError, Workflow
from holdfast.core.errors import LeaseLost
from holdfast.stores.protocol import Store
from simulation.process import Process
from simulation.world import World

ATTEMPTS = 4
ORDERED_ATTEMPTS = 60
CALL_LIMIT = 2
TICK_SECONDS = 3

RETRY = RetryPolicy.exponential(attempts=ATTEMPTS, base=0.3, cap=2)


class Unlucky(Exception):
    """A failure of a handler that a retry may fix."""


class SimulatedApp(Holdfast):
    """An app of one process."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        super().__init__("sqlite:///simulated", source="sim", keep=None)

    def _open_store(self, **options: Any) -> Store:
        store: Store = self.world.database.store(self.process, self.world)
        return store


def current() -> SimulatedApp:
    """The app of the process that runs now."""
    loop: Any = asyncio.get_running_loop()
    app: SimulatedApp = loop.process.app
    return app


class SharedRouter(Router):
    """Declarations that many apps include: to declare them for each process took a quarter of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.declared_jobs: dict[str, Job[..., Any]] = {}
        self.declared_workflows: dict[str, Workflow] = {}

    @property
    def _runtime(self) -> Any:
        return current()._runtime


def chance(world: World, *address: object) -> float:
    """A number from 0 to 1 that depends on the seed and the address only."""
    digest = blake2b(f"{world.seed}/{address}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32


@cache
def declarations() -> SharedRouter:
    """All handlers."""
    router = SharedRouter()
    _declare_events(router)
    _declare_jobs(router)
    _declare_workflow(router)
    return router


@contextlib.asynccontextmanager
async def recorded(ctx: Context, n: int | None) -> AsyncIterator[None]:
    """Records a run, waits for a while, and fails as the seed says."""
    hf = current()
    world, process = hf.world, hf.process
    index = world.started_run(process, str(ctx.delivery_id), ctx.consumer, ctx.fence, ctx.attempt, n)
    try:
        await asyncio.sleep(chance(world, "time", ctx.consumer, n, ctx.attempt) ** 3 * 2.0)
        if chance(world, "fails", ctx.consumer, n, ctx.attempt) < 0.2:
            raise Unlucky(f"{ctx.consumer} {n} failed in attempt {ctx.attempt}")
        yield
    except BaseException as error:
        if process.alive:
            world.ended_run(
                process, index, "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            )
        raise
    world.ended_run(process, index, "returned")


async def complete(ctx: Context, n: int) -> None:
    """Writes an effect and completes the delivery in one transaction, with a wait in the middle for some."""
    hf = current()
    world, process = hf.world, hf.process
    # Below the lease: on SQLite a write transaction keeps all leases from being renewed.
    slow, longest = chance(world, "slow", ctx.consumer, n, ctx.attempt, ctx.fence), world.settings.lease / 2
    async with world.database.transaction(process) as conn:
        await world.database.insert(conn, "effect", n, str(ctx.delivery_id), ctx.consumer, ctx.attempt)
        if slow < 0.15:
            await asyncio.sleep(slow / 0.15 * longest)
        await world.database.complete(process, ctx, conn)
        if slow > 0.9:
            await asyncio.sleep((slow - 0.9) * 10 * longest)
        if 0.5 < slow < 0.55:
            raise Unlucky("failed after complete, before the commit")
    if 0.6 < slow < 0.65:
        raise Unlucky("failed after the commit")


def _declare_events(hf: SharedRouter) -> None:
    @hf.consumer("order.placed", name="book", retry=RETRY)
    async def book(ctx: Context, order: dict[str, Any]) -> None:
        async with recorded(ctx, order["n"]):
            try:
                await complete(ctx, order["n"])
            except LeaseLost:
                # Careless code that catches everything: the database must have rolled back.
                if chance(current().world, "careless", order["n"]) < 0.5:
                    return
                raise

    @hf.consumer("order.placed", name="post", retry=RETRY)
    async def post(ctx: Context, order: dict[str, Any]) -> None:
        async with recorded(ctx, order["n"]):
            pass

    @hf.consumer(
        "entry.added", name="ledger", order_by="account", retry=RetryPolicy.fixed("0.2s", attempts=ORDERED_ATTEMPTS)
    )
    async def ledger(ctx: Context, entry: dict[str, Any]) -> None:
        async with recorded(ctx, entry["n"]):
            await complete(ctx, entry["n"])


def _declare_jobs(hf: SharedRouter) -> None:
    @hf.job(name="pay", retry=RETRY)
    async def pay(ctx: Context, n: int) -> None:
        async with recorded(ctx, n):
            if chance(current().world, "terminal", n) < 0.1:
                raise TerminalError(f"payment {n} is invalid")
            await complete(ctx, n)

    @hf.job(name="call", retry=RETRY, limit=Limit(CALL_LIMIT))
    async def call(ctx: Context, n: int) -> None:
        async with recorded(ctx, n):
            await asyncio.sleep(0.3)

    hf.declared_jobs.update(pay=pay, call=call)

    @hf.job(name="tick", retry=RetryPolicy.fixed("0.5s", attempts=20))
    async def tick(ctx: Context) -> None:
        async with recorded(ctx, None):
            pass


def _declare_workflow(hf: SharedRouter) -> None:
    hf.declared_workflows["trip"] = trip = hf.workflow("trip")
    often = RetryPolicy.fixed("0.3s", attempts=20)

    @trip.step(retry=often)
    async def flight(ctx: Step, n: int) -> int:
        async with recorded(ctx, n):
            return n

    @trip.step(retry=often)
    async def hotel(ctx: Step, n: int) -> int:
        async with recorded(ctx, n):
            return n * 2

    @trip.step(after=[flight, hotel], retry=often)
    async def invoice(ctx: Step, n: int, flight: int, hotel: int) -> int:
        async with recorded(ctx, n):
            assert (flight, hotel) == (n, n * 2), "results of other runs"
            return flight + hotel
