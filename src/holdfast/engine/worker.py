"""The worker: claims what is due, runs it, settles it, and takes over what dead workers left.

A worker lives one or more lives. In each it has an instance id and a lease of its own; when the lease cannot be
known to hold, that life ends, its handlers are stopped, and a new one begins.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Protocol

import structlog

from holdfast.core.change import Block
from holdfast.core.classify import Rules, Verdict, VerdictKind
from holdfast.core.delivery import Claim
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.outcome import Failed, LeaseExpired, Outcome, Released, Succeeded
from holdfast.core.report import report
from holdfast.engine.alert import Alerts
from holdfast.engine.context import Context, Publisher
from holdfast.engine.execute import Window, execute
from holdfast.engine.handler import Handler
from holdfast.engine.lease import Lease
from holdfast.engine.options import WorkerOptions, claim_size, instance_id
from holdfast.engine.outcomes import Outcomes, fields
from holdfast.engine.periodic import every
from holdfast.engine.pool import Pool
from holdfast.engine.settler import Settler
from holdfast.stores.claim import Claimed, claim, lanes, take_over
from holdfast.stores.operate import block_consumer
from holdfast.stores.protocol import Store
from holdfast.stores.query import outlook
from holdfast.stores.registry import catch_up
from holdfast.stores.settle import Hold, ownership
from holdfast.stores.worker import start_worker, stop_worker

log = structlog.get_logger("holdfast.worker")

_TAKE_OVER = 100
_SLICE = 0.005

Probe = Callable[[], Awaitable[bool]]


class RolledBack(HoldfastError):
    """A handler called `ctx.complete` and returned, but its transaction did not commit."""


class Duty(Protocol):
    """Something a worker does from time to time beside its deliveries: cron, pruning, watching suspects."""

    @property
    def interval(self) -> timedelta: ...

    async def perform(self, worker: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a worker needs of the application around it."""

    store: Store
    lease_store: Store
    handlers: Mapping[str, Handler]
    rules: Rules
    alerts: Alerts
    window: Window
    publisher: Publisher | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    duties: tuple[Duty, ...] = ()


class Worker:
    """Runs handlers until told to stop; never holds a transaction open while one runs."""

    def __init__(self, around: Surroundings, options: WorkerOptions) -> None:
        self._around, self._options = around, options
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.id = ""

    def stop(self) -> None:
        """Takes no more work and drains; called twice, it stops waiting for handlers. Safe in a signal handler."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._wake.set()

    def wake(self) -> None:
        """There may be work. Safe from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Works until stopped, or until idle if so asked. Outages of the store are waited out."""
        self._loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(self._threads(), "holdfast-handler")
        changes = asyncio.create_task(self._around.store.changes(self._wake.set), name="holdfast-changes")
        try:
            while not self._stopping.is_set():
                await _Life(self, self._around, self._options, threads).run()
        finally:
            changes.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await changes
            # A thread that ignores its time-out cannot be stopped, and must not keep the process from ending.
            threads.shutdown(wait=False, cancel_futures=True)

    def _threads(self) -> int:
        queues = self._options.queues
        return min(128, sum(queues.values()) if queues else self._options.concurrency)


class _Life:
    """One instance of a worker: from the announcement of its row to its end."""

    def __init__(
        self, worker: Worker, around: Surroundings, options: WorkerOptions, threads: ThreadPoolExecutor
    ) -> None:
        self._worker, self._around, self._options, self._threads = worker, around, options, threads
        self._store = around.store
        self.id = worker.id = instance_id()
        self._settler = Settler(self._store, self.id)
        self._outcomes = Outcomes(self.id, around.alerts)
        if options.suspects:
            self._pools = [Pool(None if options.queues is None else tuple(options.queues), 1)]
        elif options.queues is None:
            self._pools = [Pool(None, options.concurrency)]
        else:
            self._pools = [Pool((name,), slots) for name, slots in options.queues.items()]
        self._over = asyncio.Event()
        self._claimed_at = time.monotonic()
        self._lease: Lease | None = None

    async def run(self) -> None:
        if not await self._announce():
            return
        loop = asyncio.get_running_loop()
        self._lease = Lease(
            self._around.lease_store,
            self.id,
            self._options.lease,
            lambda why: _threadsafe(loop, self._lose, why),
        )
        self._lease.start()
        lease = self._options.lease.total_seconds()
        settling = asyncio.create_task(self._settler.run(), name="holdfast-settle")
        tasks = [
            asyncio.create_task(every(lease / 4, self._reap), name="holdfast-reap"),
            asyncio.create_task(every(1.0, self._catch_up, first=0.0), name="holdfast-catch-up"),
        ]
        if not self._options.suspects:
            tasks += [
                asyncio.create_task(every(duty.interval.total_seconds(), self._duty(duty), first=0.0))
                for duty in self._around.duties
            ]
        try:
            await self._feed()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._wind_down()
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)

    async def _announce(self) -> bool:
        """Makes the worker's row; waits while the store is away. False when stopped meanwhile."""
        queues = list(self._options.queues or ())
        consumers = sorted(self._around.handlers)
        pause = 0.05
        while not self._worker._stopping.is_set():
            try:
                await self._store.run(
                    start_worker(self.id, self._options.generation, queues, consumers, self._options.lease)
                )
                log.info("worker started", worker=self.id, consumers=consumers, queues=queues or "all")
                return True
            except StoreUnavailable as error:
                log.warning("waiting for the store", worker=self.id, error=str(error))
                await self._sleep(pause)
                pause = min(pause * 2, 5.0)
        return False

    async def _feed(self) -> None:
        """Claims for as long as there are slots and work; otherwise waits for a hint or the next poll."""
        pause = 0.05
        while not self._ending:
            self._worker._wake.clear()
            try:
                taken = [await self._claim(pool, room) for pool in self._pools if (room := pool.room())]
                pause = 0.05
            except StoreUnavailable as error:
                log.warning("claiming waits for the store", worker=self.id, error=str(error))
                await self._sleep(pause)
                # Twenty workers must not come back in the same instant.
                pause = min(pause * 2, 5.0)
                continue
            if any(taken):
                continue
            if self._options.until_idle and not any(pool.busy for pool in self._pools) and not len(self._settler):
                if await self._idle():
                    self._worker.stop()
                continue
            await self._sleep(self._options.poll.total_seconds())

    async def _claim(self, pool: Pool, room: int) -> int:
        started = time.monotonic()
        if started >= pool.lanes.refresh_due:
            found = await self._store.run(
                lanes(
                    sorted(self._around.handlers),
                    self._options.generation,
                    queues=pool.queues,
                    suspects=self._options.suspects,
                )
            )
            pool.lanes.refreshed(found, started, time.monotonic())
        if not (order := pool.lanes.order()):
            pool.lanes.refresh_due = 0.0
            return 0
        started = time.monotonic()
        claims = await self._store.run(
            claim(order, self.id, self._options.lease, claim_size(room), suspects=self._options.suspects)
        )
        pool.lanes.claimed(claims, started, time.monotonic())
        if not claims:
            pool.lanes.refresh_due = min(pool.lanes.refresh_due, time.monotonic() + 0.05)
        else:
            self._claimed_at = time.monotonic()
        pool.accept(claims)
        self._start(pool)
        return len(claims)

    def _start(self, pool: Pool) -> None:
        for _ in range(min(len(pool.waiting), pool.slots - len(pool.running))):
            task = asyncio.create_task(self._work(pool), name="holdfast-slot")
            pool.running[task] = None
            task.add_done_callback(lambda task: self._freed(pool, task))

    def _freed(self, pool: Pool, task: "asyncio.Task[None]") -> None:
        del pool.running[task]
        if not task.cancelled() and (error := task.exception()):
            log.error("a slot failed", worker=self.id, exc_info=error)
        self._worker._wake.set()

    async def _work(self, pool: Pool) -> None:
        """One slot: runs what waits, one after another, and ends when nothing does."""
        task = asyncio.current_task()
        assert task is not None
        yielded = time.monotonic()
        while pool.waiting and not self._ending:
            claimed = pool.waiting.popleft()
            pool.running[task] = claimed
            await self._run_one(claimed)
            pool.finished()
            if not pool.waiting or pool.room():
                self._worker._wake.set()
            # A handler that never waits would keep the loop from claiming and settling.
            if time.monotonic() - yielded > _SLICE:
                await asyncio.sleep(0)
                yielded = time.monotonic()

    async def _run_one(self, claimed: Claimed) -> None:
        handler = self._around.handlers[claimed.consumer]
        policy = claimed.own_policy or handler.retry
        budget = policy.attempts if claimed.max_attempts is None else claimed.max_attempts
        context = Context(claimed, self.id, self._store.dialect, self._around.publisher, budget)
        started = time.monotonic()
        try:
            outcome, error = await execute(
                handler, claimed, context, self._around.rules, self._threads, self._around.window
            )
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                task.uncancel()
                outcome, error = Released(started=True), None
            else:
                # Nobody here cancelled it: the handler let a cancellation of its own escape.
                outcome, error = Failed(report(cancelled), Verdict.retry()), cancelled
        elapsed = timedelta(seconds=time.monotonic() - started)
        if context.completing:
            completed = await self._look(claimed, outcome, error)
            if completed is None:
                return
            outcome = completed
        if isinstance(outcome, Failed) and outcome.verdict.kind is VerdictKind.BLOCK:
            outcome = replace(outcome, held=await self._is_well(outcome.verdict.resource or ""))
        change, ack = self._outcomes.settle(claimed, outcome, policy, elapsed, keep_run=handler.keep_runs)
        self._settler.add(ack)
        if isinstance(change, Block) and not change.held:
            await self._block(claimed.consumer, change)

    async def _look(self, claimed: Claimed, outcome: Outcome, error: BaseException | None) -> Outcome | None:
        """How a delivery stands that its handler completed by itself; none when there is nothing left to settle."""
        match await self._hold(claimed):
            case Hold.SETTLED:
                if error is not None:
                    log.warning("the handler raised after it had completed", error=repr(error), **fields(claimed))
                return None
            case Hold.LOST:
                log.warning("lease lost: the handler's transaction was refused", worker=self.id, **fields(claimed))
                return None
            case Hold.MINE if isinstance(outcome, Succeeded):
                why = RolledBack("the handler called ctx.complete() and returned, but its transaction did not commit")
                return Failed(report(why), Verdict.retry())
            case _:
                return outcome

    async def _hold(self, claimed: Claimed) -> Hold:
        while True:
            try:
                holds = await self._store.run(ownership([Claim(claimed.id, self.id, claimed.fence)]))
                return holds[claimed.id]
            except StoreUnavailable:
                if self._over.is_set():
                    return Hold.LOST
                await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311

    async def _is_well(self, resource: str) -> bool:
        """Whether a probe of the resource succeeds. One without a probe cannot be known to be out."""
        probe = self._around.probes.get(resource)
        if probe is None:
            return True
        try:
            return await asyncio.wait_for(probe(), 10)
        except Exception:  # noqa: BLE001
            return False

    async def _block(self, consumer: str, change: Block) -> None:
        """Persists the pause for every worker, and gives back what this one has not started."""
        for pool in self._pools:
            self._release(pool.take_back(consumer))
            pool.lanes.refresh_due = 0.0
        with contextlib.suppress(HoldfastError):
            await self._store.run(block_consumer(consumer, change.resource, change.delay, self.id))

    async def _reap(self) -> None:
        """Takes over what dead workers left, and decides about it as about any failure."""
        while self._lease is not None and self._lease.trusted and not self._ending:
            taken = await self._store.run(take_over(self.id, self._options.lease, _TAKE_OVER))
            for claimed, policy in taken:
                log.warning("taken over: the worker's lease ran out", worker=self.id, **fields(claimed))
                _, ack = self._outcomes.settle(claimed, LeaseExpired(), policy)
                self._settler.add(ack)
            if len(taken) < _TAKE_OVER:
                return
            await self._settler.drained()

    async def _catch_up(self) -> None:
        more = True
        while more and not self._ending:
            added, more = await self._store.run(catch_up())
            if added:
                self._worker._wake.set()

    def _duty(self, duty: Duty) -> Callable[[], Awaitable[None]]:
        return lambda: duty.perform(self.id)

    async def _idle(self) -> bool:
        """Whether nothing is left that is due within the limit; waits for what is."""
        if self._options.suspects:
            found = await self._store.run(lanes(sorted(self._around.handlers), self._options.generation, suspects=True))
            await self._sleep(self._options.poll.total_seconds() if found else 0.0)
            return not found
        await self._catch_up()
        limit = self._options.idle_limit
        wait = await self._store.run(outlook(sorted(self._around.handlers)))
        if wait is None or wait > limit:
            return True
        if time.monotonic() - self._claimed_at > limit.total_seconds() and wait <= timedelta(0):
            log.warning(
                "not idle, but nothing could be claimed: blocked, suspect or another generation's", worker=self.id
            )
            return True
        await self._sleep(min(max(wait.total_seconds(), 0.0), self._options.poll.total_seconds()))
        return False

    async def _wind_down(self) -> None:
        """Gives back what has not started, waits for the rest, cuts off what is too long, writes what is known."""
        lost = self._over.is_set()
        for pool in self._pools:
            self._release(pool.take_back())
        running = [task for pool in self._pools for task in pool.running]
        if running and not lost:
            hurry = asyncio.create_task(self._worker._hurry.wait())
            finished = asyncio.create_task(asyncio.wait(running))
            grace = self._options.grace.total_seconds()
            await asyncio.wait({hurry, finished}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            finished.cancel()
        cut_off = [task for pool in self._pools for task in pool.running]
        for task in cut_off:
            task.cancel()
        if cut_off:
            await asyncio.wait(cut_off, timeout=5)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settler.drained(), 1 if lost else 5)
        if self._lease is not None:
            self._lease.stop()
            await asyncio.to_thread(self._lease.join, 2)
        with contextlib.suppress(HoldfastError, TimeoutError):
            await asyncio.wait_for(self._store.run(stop_worker(self.id)), 5)
        log.info("worker stopped", worker=self.id, unwritten=len(self._settler))

    def _release(self, claims: list[Claimed]) -> None:
        for claimed in claims:
            policy = claimed.own_policy or self._around.handlers[claimed.consumer].retry
            _, ack = self._outcomes.settle(claimed, Released(started=False), policy)
            self._settler.add(ack)

    def _lose(self, why: str) -> None:
        if not self._over.is_set():
            log.error("the worker's lease is lost; its handlers are stopped", worker=self.id, reason=why)
            self._over.set()
            self._worker._wake.set()

    @property
    def _ending(self) -> bool:
        return self._over.is_set() or self._worker._stopping.is_set()

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._worker._wake.wait(), seconds * random.uniform(0.8, 1.2))  # noqa: S311


def _threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    # The loop may have ended while the lease thread was still renewing.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)
