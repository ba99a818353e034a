"""How much runs at once: never more than there are slots, in batches, and everybody gets a turn."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta

from holdfast import Holdfast
from holdfast.app.worker.worker_runner import worker_deps
from holdfast.core.delivery import Status
from holdfast.engine.worker.control import WorkerControl
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.session import WorkerSession
from holdfast.runtime.endpoint_handlers import EndpointHandlers
from tests.support.worker import all_of, drain, options, statuses, wait_for, working


class Gauge:
    """Counts what runs at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.total = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


async def test_as_much_runs_at_once_as_there_are_slots_and_never_more(hf: Holdfast) -> None:
    gauge, plain_gauge = Gauge(), Gauge()
    four, four_threads = asyncio.Barrier(4), threading.Barrier(4)

    @hf.job()
    async def work(n: int) -> None:
        with gauge:
            await four.wait()

    @hf.job()
    def plain(n: int) -> None:
        with plain_gauge:
            four_threads.wait(10)

    for job in (work, plain):
        await hf._runtime.publish([job._message((n,), {})[1] for n in range(40)], None)
        await drain(hf, concurrency=4)
    assert (gauge.most, gauge.total) == (4, 40)
    assert (plain_gauge.most, plain_gauge.total) == (4, 40)


async def test_every_queue_has_separate_slots(hf: Holdfast) -> None:
    """A queue whose handlers all hang does not take the slots of another."""
    gauges = {"slow": Gauge(), "quick": Gauge()}
    hang, through = asyncio.Event(), asyncio.Event()

    @hf.job(queue="slow")
    async def slow(n: int) -> None:
        with gauges["slow"]:
            await hang.wait()

    @hf.job(queue="quick")
    async def quick(n: int) -> None:
        with gauges["quick"]:
            await asyncio.sleep(0.001)
        if gauges["quick"].total == 30:
            through.set()

    await hf._runtime.publish([slow._message((n,), {})[1] for n in range(10)], None)
    await hf._runtime.publish([quick._message((n,), {})[1] for n in range(30)], None)
    async with working(hf, queues={"slow": 2, "quick": 3}):
        await wait_for(through)
        assert gauges["slow"].now == 2
        hang.set()
    assert gauges["slow"].most == 2
    assert gauges["quick"].most <= 3


async def test_a_worker_claims_no_more_long_work_than_it_can_start(hf: Holdfast) -> None:
    """What takes long is left for others, it does not wait in a worker that is busy."""
    started, go = asyncio.Event(), asyncio.Event()
    running: list[int] = []

    @hf.job()
    async def long(n: int) -> None:
        running.append(n)
        if len(running) == 3:
            started.set()
        await go.wait()

    await hf._runtime.publish([long._message((n,), {})[1] for n in range(50)], None)
    async with working(hf, concurrency=3):
        await wait_for(started)
        await asyncio.sleep(0.1)  # five polls: time enough to claim more
        assert (await statuses(hf)).count(Status.IN_FLIGHT) == 3
        go.set()


async def test_short_work_is_fetched_in_batches(hf: Holdfast) -> None:
    @hf.job()
    async def short(n: int) -> None: ...

    await hf._runtime.publish([short._message((n,), {})[1] for n in range(600)], None)
    await drain(hf, concurrency=20)
    done = await all_of(hf)
    assert {delivery.status for delivery in done} == {Status.DELIVERED}
    assert len({delivery.claimed_at for delivery in done}) < 60  # one time for each claim


async def test_consumers_of_one_priority_take_turns(hf: Holdfast) -> None:
    """One that has a thousand waiting does not keep one with a few from being run."""
    order: list[str] = []

    @hf.job()
    async def busy(n: int) -> None:
        order.append("busy")

    @hf.job()
    async def calm(n: int) -> None:
        order.append("calm")

    await hf._runtime.publish([busy._message((n,), {})[1] for n in range(200)], None)
    await hf._runtime.publish([calm._message((n,), {})[1] for n in range(5)], None)
    await drain(hf, concurrency=5)
    assert order.index("calm") < 100
    assert Counter(order) == {"busy": 200, "calm": 5}


async def test_two_workers_share_the_work_and_nothing_runs_twice(hf: Holdfast) -> None:
    ran: Counter[int] = Counter()

    @hf.job()
    async def work(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(0.001)

    await hf._runtime.publish([work._message((n,), {})[1] for n in range(200)], None)
    idle = options(until_idle=True, cron=False, concurrency=5)
    await asyncio.wait_for(asyncio.gather(hf.work(idle), hf.work(idle)), 60)
    assert ran == Counter(range(200))
    assert set(await statuses(hf)) == {Status.DELIVERED}


async def test_the_loop_is_not_starved_by_handlers_that_never_wait(hf: Holdfast) -> None:
    """Other tasks of the loop run after a few milliseconds, for any number of deliveries claimed ahead."""
    turns, done = 0, asyncio.Event()
    in_one_turn: Counter[int] = Counter()

    @hf.job()
    async def busy(n: int) -> None:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        in_one_turn[turns] += 1
        if in_one_turn.total() == 900:
            done.set()

    await hf._runtime.publish([busy._message((n,), {})[1] for n in range(900)], None)
    async with working(hf, concurrency=1):
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0.0001)
    assert max(in_one_turn.values()) <= 25


async def test_what_was_claimed_while_the_last_slot_was_ending_is_started(hf: Holdfast) -> None:
    """A slot that has just ended still counts as taken: a delivery that arrives at that moment would not be started."""
    ran = asyncio.Event()

    @hf.job()
    async def work() -> None:
        ran.set()

    await work.enqueue()
    deps = worker_deps(
        hf._runtime, {}, hf.store, options(), None, EndpointHandlers(hf.store, hf.handlers, hf.webhooks.options)
    )
    session = WorkerSession(deps, options(concurrency=1), WorkerControl())
    session._lease = Lease(hf.store, session.id, timedelta(minutes=1), lambda: None)
    (pool,) = session._pools
    ended = asyncio.create_task(asyncio.sleep(0))
    pool.running[ended] = None
    await ended
    assert await session._claim(pool, 1, woken=False) == 1
    await asyncio.sleep(0.01)
    assert not ran.is_set()
    session._on_slot_done(pool, ended)
    await wait_for(ran)
