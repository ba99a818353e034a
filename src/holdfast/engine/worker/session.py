"""One session of a worker: from the registration of its row to its end."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from holdfast._log import get_logger
from holdfast.core.delivery import Status
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.outcome import Released
from holdfast.engine.batches.batch import ClaimedBatch, Work, as_batch, as_batches
from holdfast.engine.batches.claimer import BatchClaimer
from holdfast.engine.claims.flow_claimer import FlowClaimer
from holdfast.engine.claims.idle import IdleCheck
from holdfast.engine.claims.lane_queries import discovery_query, lanes_query
from holdfast.engine.claims.orphaned_claims import OrphanedClaims
from holdfast.engine.claims.scheduler import wait_after_round
from holdfast.engine.claims.slot_pool import SlotPool, cancel_running, has_waiting, pools, running_tasks
from holdfast.engine.execution.cancellation import Cancellations
from holdfast.engine.execution.executor import DeliveryExecutor
from holdfast.engine.execution.threads import Threads
from holdfast.engine.maintenance.reaper import Reaper
from holdfast.engine.settlement.builder import SettlementBuilder
from holdfast.engine.settlement.settler import Ack, Settler
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.control import WorkerControl, call_threadsafe
from holdfast.engine.worker.deps import WorkerDeps
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.options import WorkerOptions, consumers_of, instance_id
from holdfast.engine.worker.periodic import every, first
from holdfast.stores.deliveries.claim import Claimed, claim
from holdfast.stores.deliveries.worker import start_worker, stop_worker
from holdfast.stores.messages.registry import catch_up

log = get_logger("holdfast.worker")

_SLICE = 0.001
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_LEAST_PATIENCE = timedelta(seconds=2)
_RESERVE = 3.0
"""Seconds of the grace that are reserved to stop handlers and to write outcomes; at most a third of it."""
_PARTING = 1.0
"""Seconds of the reserve for a cancelled statement to end if the store is silent; writing gets at least half of it."""


class WorkerSession:
    """A worker instance: it claims, runs and settles under one lease, and ends with it."""

    def __init__(self, deps: WorkerDeps, options: WorkerOptions, control: WorkerControl) -> None:
        # A claim or settlement on a silent connection is cancelled early enough to retry it within the lease.
        deps = replace(deps, store=deps.store.within(max(options.lease / 2, _LEAST_PATIENCE)))
        self._deps, self._options, self._control, self._store = deps, options, control, deps.store
        self.id = instance_id()
        self._lease_lost = asyncio.Event()
        self._longest_pause = min(_LONGEST_PAUSE, options.lease.total_seconds() / 4)
        self._pools = pools(options)
        announce, is_busy = deps.announce_result, partial(has_waiting, self._pools)
        self._settler = Settler(self._store, self.id, self._on_settled, self._longest_pause, announce, is_busy)
        self._settlements = SettlementBuilder(self.id, deps.alerts, deps.meter, deps.handlers)
        self._executor = DeliveryExecutor(
            deps, self.id, self._settler, self._settlements, self._lease_lost, self._hold_back, options.lease
        )
        self._executor.steps.loaded = [partial(self._on_step_loaded, pool) for pool in self._pools]
        self._cancellations = Cancellations(self._store, self.id, self._pools, deps.handlers)
        self._claimed_at, self._backlogged = time.monotonic(), False
        # Suspects run one at a time, also those of batch handlers.
        self._batches = {} if options.suspects else deps.batches
        self._batches_first = bool(self._batches)
        # Always held back from single claims: their deliveries are claimed in batches.
        self._held_back: Counter[str] = Counter(list(self._batches))
        self._batch_claimer = BatchClaimer(
            self._store,
            self.id,
            self._batches,
            options,
            self._pools,
            lambda name: self._held_back[name] > 1,
            lambda pool, claims: self._accept(pool, claims, as_batch(claims)),
        )
        self._orphaned_claims = OrphanedClaims(self._store, self.id, self._settler, self._pools)
        self._idle = IdleCheck(self._store, self.id, deps, options, [pool.scheduler for pool in self._pools])
        self._lease: Lease | None = None
        self._flow = FlowClaimer(self._store, self.id, options, deps.handlers, self._pools, self._accept)

    async def register(self) -> None:
        """Creates the worker's row and starts to renew it.

        It uses the lease's connections: a worker that cannot renew its lease must not claim, or it would repeatedly
        start handlers only to stop them. The thread that renews the lease does not keep the process from ending.
        """
        queues, handlers, started_at = list(self._options.queues or ()), self._deps.handlers, time.monotonic()
        row = start_worker(self.id, self._options.generation, queues, sorted(handlers), self._options.lease)
        await Threads.run_once("holdfast-register", self._deps.lease_store.run_sync, row)
        loop = asyncio.get_running_loop()
        self._lease = Lease(
            self._deps.lease_store,
            self.id,
            self._options.lease,
            lambda: call_threadsafe(loop, self._on_lease_lost, "it had expired, or its row is gone"),
            started_at,
            lambda runs: call_threadsafe(loop, self._cancellations.received, runs),
        )
        await self._executor.start(self._lease)
        self._lease.start()
        served, store = consumers_of(queues, handlers), self._store.name
        log.info("worker started", worker=self.id, store=store, consumers=served, queues=queues or "all")

    async def run(self) -> None:
        """Works until `stop` is set or the lease is lost; then releases what has not started."""
        settling = asyncio.create_task(self._settler.run(), name="holdfast-settle")
        claiming = asyncio.create_task(self._claim_loop(), name="holdfast-claim")
        background = self._background()
        try:
            await first(settling, claiming, self._lease_lost.wait(), self._control.stop.wait())
        except asyncio.CancelledError:
            # A caller that cancels does not want to wait.
            self._control.end()
            self._control.force_stop.set()
            raise
        finally:
            for task in background:
                task.cancel()
            await self._wind_down(claiming, settling)
            claiming.cancel()
            settling.cancel()
            await asyncio.gather(claiming, settling, *background, return_exceptions=True)
        for task in (claiming, settling):
            if not task.cancelled() and (error := task.exception()):
                raise error

    def _background(self) -> "list[asyncio.Task[None]]":
        assert self._lease is not None
        length, groups, lease = self._options.lease, self._executor.groups, self._options.lease.total_seconds()
        reaper = Reaper(self._store, self.id, length, self._lease, self._settlements, self._settler, groups)
        periodic_tasks = () if self._options.suspects else self._deps.periodic_tasks
        return [
            asyncio.create_task(self._watch_lease(self._lease), name="holdfast-lease-watch"),
            asyncio.create_task(reaper.run(), name="holdfast-reap"),
            asyncio.create_task(every(lease / 4, self._orphaned_claims.scan), name="holdfast-orphaned-claims"),
            asyncio.create_task(every(1.0, self._catch_up, first=0.0), name="holdfast-catch-up"),
            *(
                asyncio.create_task(every(task.interval.total_seconds(), partial(task.perform, self.id), first=0.0))
                for task in periodic_tasks
            ),
        ]

    async def _claim_loop(self) -> None:
        """Claims while there are free slots and work; otherwise waits for a notification or the next poll."""
        pause = _SHORTEST_PAUSE
        while not self._ending:
            woken = self._control.wake.is_set()
            self._control.wake.clear()
            try:
                wait = await self._round(woken)
                pause = _SHORTEST_PAUSE
            except StoreUnavailable as error:
                log.warning("store unavailable", worker=self.id, task="claim", error=str(error))
                wait, pause = pause, min(pause * 2, self._longest_pause)
            except Exception as error:
                if isinstance(error, HoldfastError) or self._options.until_idle:
                    raise
                # An unexpected driver error may be temporary, like an outage.
                log.error("claim failed", worker=self.id, **error_fields(error))
                wait, pause = pause, min(pause * 2, self._longest_pause)
            finally:
                self._orphaned_claims.round_ended()
            if wait:
                await self._control.woken(wait)

    async def _round(self, woken: bool) -> float:
        """Claims for every pool that has room; returns the seconds to wait until the next round."""
        if self._options.suspects:
            # The next suspect may crash this process: earlier outcomes must be durable before it starts.
            await self._settler.drained()
        self._backlogged = self._settler.behind
        more = False
        if not self._backlogged:
            # In turn: if few slots are free, the first claim takes them all.
            if first := self._batches_first:
                more = await self._batch_claimer.claim()
            more |= any([await self._claim(pool, room, woken) for pool in self._pools if (room := pool.room())])
            if self._batches and not first:
                more |= await self._batch_claimer.claim()
            if self._flow.has_lanes:
                more |= await self._flow.claim(self._held_back, self._control.wake.set)
        poll = self._options.poll.total_seconds()
        wait = wait_after_round(
            more=more,
            poll=poll,
            until_idle=self._options.until_idle,
            busy=any(pool.busy for pool in self._pools),
            unsettled=len(self._settler) > 0,
        )
        if wait is None:
            wait = await self._wait_when_idle(poll)
        batch_wait = self._batch_claimer.wait()
        return wait if batch_wait is None else min(wait, batch_wait)

    async def _claim(self, pool: SlotPool, room: int, woken: bool) -> bool:
        """Claims what is due and starts it; returns whether there may be more."""
        scheduler, started = pool.scheduler, time.monotonic()
        scan = scheduler.next_scan(started, room, woken=woken)
        if scan.full:
            names = [name for name in self._deps.handlers if not self._held_back[name]]
            known, claimant = scheduler.known(started) or (), (self.id, scan.size)
            claims = await self._store.run(discovery_query(names, self._options, pool.queues, known, claimant))
            more = scheduler.scanned(len(claims), scan.size, started, time.monotonic())
            self._accept(pool, claims)
            return more
        if scan.full_scan_in is not None:
            pool.full_scan_timer.start(scan.full_scan_in + _SLICE, self._control.wake.set)
        if scan.refresh:
            lanes = lanes_query(self._deps.handlers, self._options, pool.queues, scheduler.known(started))
            scheduler.refreshed(await self._store.run(lanes), started, time.monotonic())
            await self._flow.prepare_trials(scheduler.trials)
            self._accept(pool, await self._executor.trials(scheduler.trials, self._options))
        started = time.monotonic()
        if not (order := scheduler.lanes(started, self._held_back)):
            return False
        query = claim(order, self.id, self._options.lease, scan.size, suspects=self._options.suspects)
        claims = await self._store.run(query)
        more = scheduler.claimed(claims, started, time.monotonic())
        self._accept(pool, claims)
        return more

    def _accept(
        self, pool: SlotPool, claims: list[Claimed], work: list[Work] | None = None, *, first: bool = False
    ) -> None:
        """Queues claimed deliveries, or `work` if they form a batch; with `first`, before those that already wait."""
        if not claims:
            return
        self._batches_first = work is None and bool(self._batches)
        if work is None and self._deps.batches:
            work = as_batches(claims, self._deps.handlers)
        pool.accept(claims if work is None else work, first=first)
        self._executor.accepted(claims)
        self._spawn_slot(pool)
        self._claimed_at = time.monotonic()
        self._deps.meter.claimed(claims)

    def _on_settled(self, batch: Sequence[Ack]) -> None:
        """Wakes the claim loop if it, a limit or an order waited for settlements, or if one made a delivery due."""
        due = any(ack.settlement.change.status is Status.PENDING or ack.step is not None for ack in batch)
        if due or self._backlogged or self._options.until_idle or self._flow.has_lanes:
            self._control.wake.set()

    def _spawn_slot_soon(self, pool: SlotPool) -> None:
        """Checks, once per turn of the loop, whether the waiting deliveries need one more slot."""
        if not pool.spawn_scheduled:
            pool.spawn_scheduled = True
            asyncio.get_running_loop().call_soon(self._spawn_slot, pool)

    def _on_step_loaded(self, pool: SlotPool) -> None:
        """A slot that waited for the read of its step continues in a new turn; otherwise it would yield after one step,
        and that step would be settled alone."""
        pool.turn_started_at = time.monotonic()
        self._spawn_slot_soon(pool)

    def _spawn_slot(self, pool: SlotPool) -> None:
        """Starts a slot if all slots are waiting for I/O. Handlers that never wait need only one."""
        pool.spawn_scheduled = False
        pool.turn_started_at = time.monotonic()
        if pool.needs_slot and not self._executor.steps.waiting and not self._ending:
            task = asyncio.create_task(self._work(pool), name="holdfast-slot")
            pool.running[task] = None
            task.add_done_callback(lambda task: self._on_slot_done(pool, task))
            self._spawn_slot_soon(pool)

    def _on_slot_done(self, pool: SlotPool, task: "asyncio.Task[None]") -> None:
        del pool.running[task]
        if not task.cancelled() and (error := task.exception()):
            log.error("slot failed", worker=self.id, **error_fields(error))
        # A delivery that was claimed while this slot ended found no free slot, and nothing else would start it.
        self._spawn_slot_soon(pool)
        self._control.wake.set()

    async def _work(self, pool: SlotPool) -> None:
        """One slot: runs waiting deliveries one after another, and ends when none is left or the lease is over."""
        task = asyncio.current_task()
        assert task is not None
        assert self._lease is not None
        self._cancellations.enter()
        while pool.waiting and not self._ending:
            self._spawn_slot_soon(pool)
            claimed = pool.waiting.popleft()
            pool.running[task] = claimed
            if isinstance(claimed, ClaimedBatch):
                await self._executor.batches.run(claimed, task)
            else:
                await self._executor.run(claimed, task)
            pool.scheduler.finished(now := time.monotonic())
            if now > self._lease.valid_until:
                self._on_lease_lost()
            if pool.scheduler.is_low(len(pool.waiting)):
                self._control.wake.set()
            # A handler that never waits would keep the loop from claiming and settling.
            if now - pool.turn_started_at > _SLICE:
                await pool.rest()

    def _hold_back(self, consumer: str) -> Callable[[], None]:
        """Stops new runs of a consumer until the returned function is called, which releases its waiting deliveries."""
        self._held_back[consumer] += 1
        waiting = [claimed for pool in self._pools for claimed in pool.take_back(consumer)]

        def resume() -> None:
            self._held_back[consumer] -= 1
            self._release(waiting)
            for pool in self._pools:
                pool.scheduler.outdate(time.monotonic())
            self._control.wake.set()

        return resume

    def _release(self, claims: list[Claimed]) -> None:
        for claimed in claims:
            self._executor.settle(claimed, Released(started=False))

    async def _catch_up(self) -> None:
        more = True
        while more and not self._ending:
            added, more = await self._store.run(catch_up())
            if added:
                self._control.wake.set()

    async def _wait_when_idle(self, poll: float) -> float:
        """Stops the worker if nothing is due within the idle limit; otherwise returns the seconds to wait for it."""
        if self._options.suspects:
            lanes = lanes_query(self._deps.handlers, self._options, self._pools[0].queues)
            if not (await self._store.run(lanes)).lanes:
                self._control.end()
            return poll
        await self._catch_up()
        idle = await self._idle.wait(self._claimed_at, self._control.wake.is_set, self._batch_claimer.due_in())
        if idle.stop:
            self._control.end()
        return idle.seconds

    async def _watch_lease(self, lease: Lease) -> None:
        """Ends this session before another worker may take over its deliveries."""
        await lease.over()
        self._on_lease_lost()

    def _on_lease_lost(self, why: str = "it was not renewed in time") -> None:
        if not self._lease_lost.is_set():
            log.error("worker lease lost", worker=self.id, reason=why)
            self._lease_lost.set()
            self._control.wake.set()

    async def _wind_down(self, claiming: "asyncio.Task[None]", settling: "asyncio.Task[None]") -> None:
        """Releases what has not started, waits for running handlers, cancels late ones, and writes the outcomes."""
        grace = self._options.grace.total_seconds()
        reserve = min(_RESERVE, grace / 3)
        if self._lease_lost.is_set():
            # Other workers may run these deliveries soon: stopping them here comes first.
            claiming.cancel()
            await cancel_running(self._pools, self.id, reserve)
            grace = reserve
        ends = time.monotonic() + grace
        # A claim in progress may finish: its deliveries are released below.
        await asyncio.wait({claiming}, timeout=reserve)
        claiming.cancel()
        self._release([claimed for pool in self._pools for claimed in pool.take_back()])
        if running := running_tasks(self._pools):
            done = asyncio.wait(running)
            await first(done, self._lease_lost.wait(), self._control.force_stop.wait(), until=ends - reserve)
            await cancel_running(self._pools, self.id, reserve)
        await self._deregister(ends, settling)
        self._executor.close()
        log.info("worker stopped", worker=self.id, released=self._settlements.released, unwritten=len(self._settler))

    async def _deregister(self, ends: float, settling: "asyncio.Task[None]") -> None:
        """Writes the outcomes and removes the worker's row. If time runs out, the lease expires instead."""
        seconds = max(_PARTING / 2, ends - _PARTING - time.monotonic())
        # Together with the statement that this waits for: cancelling one on a silent connection takes up to a second.
        asyncio.get_running_loop().call_later(seconds, settling.cancel)
        try:
            async with asyncio.timeout(seconds):
                if not settling.done():
                    await self._settler.drained()
                    await self._orphaned_claims.release_all()
                    await self._settler.drained()
                    await self._executor.progress.flush()
                await self._end_lease(1.0)
                await self._store.run(stop_worker(self.id))
        except (HoldfastError, TimeoutError) as error:
            log.warning("worker stop timed out", worker=self.id, error=repr(error))
            await self._end_lease(0.1)

    async def _end_lease(self, patience: float) -> None:
        if self._lease is not None:
            self._lease.stop()
            await asyncio.to_thread(self._lease.join, patience)

    @property
    def _ending(self) -> bool:
        return self._lease_lost.is_set() or self._control.stop.is_set()
