"""The work of the workflow suite: three-step runs or three plain jobs drained by one worker, and single operations."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from bench.peers.protocol import PATIENCE
from holdfast import Holdfast, MappedStep, Step, WorkerOptions
from holdfast.core.change import Deliver
from holdfast.core.outcome import Succeeded
from holdfast.core.workflows.names import name_array, step_of
from holdfast.engine.workflows.settler import new_events
from holdfast.stores.deliveries.claim import Claimed, Lane, claim
from holdfast.stores.deliveries.settle import Settlement, settle
from holdfast.stores.workflows.advance import StepEnd, advance, next_steps
from holdfast.stores.workflows.run import StepRequest, load_steps

_BATCH = 500
_SLOTS = 500
_WARM = 10
_ROUNDS = 10
_LEASE = timedelta(seconds=60)
_WORKER = "bench"


class Loaded(NamedTuple):
    """Seconds to store so many and to drain them, and the processor time of the worker's process for the drain."""

    started: float
    drained: float
    processor: float


class Load(StrEnum):
    """What is stored and drained."""

    JOBS = "three jobs"
    STEPS = "three-step runs"


class Bench:
    """An app with a job, a workflow of three steps, one that waits, and one that maps. It counts what the last ones did."""

    def __init__(self, where: str) -> None:
        self.hf, self.done, self.first = Holdfast(where), 0, 0.0
        self.waiting, self.stop, self.count = 0, asyncio.Event(), 0
        self.jobs = [self.hf.job(name=name)(self._job()) for name in ("one", "two", "three")]
        self.steps = self.hf.workflow("steps")
        self.waits = self.hf.workflow("waits")
        self._declare()

    def _job(self) -> Any:
        async def job(n: int) -> int:
            self.began()
            self.ended()
            return n

        return job

    def _declare(self) -> None:
        @self.steps.step
        async def one(ctx: Step, n: int) -> int:
            self.began()
            return n

        @self.steps.step(after=one)
        async def two(ctx: Step, one: int) -> int:
            return one

        @self.steps.step(after=two)
        async def three(ctx: Step, two: int) -> int:
            self.ended()
            return two

        @self.waits.step
        async def ask(ctx: Step) -> None:
            self.waiting += 1
            if self.waiting == self.count:
                self.stop.set()
            await ctx.wait("go")

    def began(self) -> None:
        self.first = self.first or time.monotonic()

    def ended(self) -> None:
        self.done += 1
        if self.done == self.count:
            self.stop.set()

    async def work(self, count: int) -> None:
        """Works until so many are done."""
        self.count, self.done, self.first, self.stop = count, 0, 0.0, asyncio.Event()
        options = WorkerOptions(concurrency=_SLOTS, cron=False, grace=timedelta(seconds=PATIENCE))
        await self.hf.work(options, stop=self.stop)

    async def start_runs(self, workflow: Any, count: int, *arguments: int) -> None:
        # In batches like those of `enqueue_many`, by the operation below `start`.
        for start in range(0, count, _BATCH):
            runs = [workflow._new_run(arguments, {})[1] for _ in range(start, min(count, start + _BATCH))]
            await self.hf._runtime.start_runs(runs, None, "bench")

    async def enqueue(self, count: int) -> None:
        """So many of each of the three jobs."""
        for start in range(0, count, _BATCH):
            for job in self.jobs:
                await job.enqueue_many([(n,) for n in range(start, min(count, start + _BATCH))])


async def opened(where: str) -> Bench:
    bench = Bench(where)
    if where.startswith("postgresql"):
        await asyncio.to_thread(bench.hf.store.migrate)
    await bench.hf.publish_many([], conn=None)  # registers the consumers
    return bench


async def drain(where: str, load: Load, count: int, settle: Callable[[], None], waiting: int = 0) -> Loaded:
    """Stores and drains so many three-step runs or so many times three jobs, while `waiting` other runs wait."""
    bench = await opened(where)
    if waiting:
        await bench.start_runs(bench.waits, waiting)
        await bench.work(waiting)
    began = time.monotonic()
    if load is Load.JOBS:
        await bench.enqueue(count)
    else:
        await bench.start_runs(bench.steps, count, 1)
    started = time.monotonic() - began
    await asyncio.to_thread(settle)
    processor = time.process_time()
    await bench.work(3 * count if load is Load.JOBS else count)
    drained = time.monotonic() - bench.first
    await bench.hf.close()
    return Loaded(started, drained, time.process_time() - processor)


async def step_to_step(where: str, count: int) -> dict[str, list[float]]:
    """Seconds from the outcome of one job or step until the next is claimed, and its run read, one after another."""
    bench = await opened(where)
    store, found = bench.hf.store, {Load.JOBS.value: list[float](), Load.STEPS.value: list[float]()}
    await bench.jobs[0].enqueue_many([(n,) for n in range(2 * count + 1)])
    held = await _claim(bench, "one")
    for _ in range(2 * count):
        began = time.monotonic()
        await store.run(settle(_WORKER, [Settlement(held[0].id, held[0].fence, Deliver(), Succeeded.name)]))
        held = await _claim(bench, "one")
        found[Load.JOBS].append(time.monotonic() - began)
    await bench.start_runs(bench.steps, count, 1)
    for _ in range(count):
        held = await _claim(bench, "steps/one")
        for taken, following in (("one", "steps/two"), ("two", "steps/three")):
            began = time.monotonic()
            await store.run(advance(_WORKER, [_end(bench, held[0])], new_events()))
            (one,) = held = await _claim(bench, following)
            await store.run(load_steps([StepRequest(one.message_id, step_of(following), name_array([taken]), one.id)]))
            found[Load.STEPS].append(time.monotonic() - began)
        await store.run(advance(_WORKER, [_end(bench, held[0])], new_events()))
    await bench.hf.close()
    return found


async def advance_500(where: str) -> list[float]:
    """Seconds of each advance of 500 first steps. The first calls find empty tables, so that their plans are kept."""
    bench = await opened(where)
    for _ in range(_WARM):
        await bench.start_runs(bench.steps, 1, 1)
        await bench.hf.store.run(
            advance(_WORKER, [_end(bench, one) for one in await _claim(bench, "steps/one")], new_events())
        )
    await bench.start_runs(bench.steps, _ROUNDS * _BATCH, 1)
    found = []
    for _ in range(_ROUNDS):
        ends = [_end(bench, one) for one in await _claim(bench, "steps/one", _BATCH)]
        began = time.monotonic()
        advanced = await bench.hf.store.run(advance(_WORKER, ends, new_events()))
        found.append(time.monotonic() - began)
        assert len(advanced.settled) == _BATCH
    await bench.hf.close()
    return found


async def fan_in(where: str, items: int) -> tuple[float, int]:
    """Seconds from the first item of a map to the step after it, and how often that step started."""
    hf, stop, times, started = Holdfast(where), asyncio.Event(), [0.0, 0.0], 0
    flow = hf.workflow("maps")

    @flow.step(mapped=True)
    async def item(ctx: MappedStep, n: int) -> int:
        times[0] = times[0] or time.monotonic()
        return n

    @flow.step
    async def spread(ctx: Step) -> int:
        return len(await ctx.map(item, range(items)))

    @flow.step(after=spread)
    async def after(ctx: Step, spread: int) -> None:
        nonlocal started
        assert spread == items
        times[1], started = time.monotonic(), started + 1
        stop.set()

    if where.startswith("postgresql"):
        await asyncio.to_thread(hf.store.migrate)
    await flow.start()
    await hf.work(WorkerOptions(concurrency=_SLOTS, cron=False, grace=timedelta(seconds=PATIENCE)), stop=stop)
    await hf.close()
    return times[1] - times[0], started


async def _claim(bench: Bench, consumer: str, size: int = 1) -> list[Claimed]:
    return await bench.hf.store.run(claim([Lane("default", consumer, 0, 1)], _WORKER, _LEASE, size))


def _end(bench: Bench, claimed: Claimed) -> StepEnd:
    step, graph = step_of(claimed.consumer), bench.steps.declaration.graph
    next = next_steps(claimed.message_id, graph, step, 0)
    return StepEnd(
        claimed.message_id, step, 0, claimed.id, claimed.fence, "1", next, claimed.source, claimed.generation
    )
