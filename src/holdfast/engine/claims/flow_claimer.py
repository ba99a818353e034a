"""Claims from lanes with flow control for one worker session."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.core.errors import StoreUnavailable
from holdfast.engine.claims.flow_adoption import FlowAdoption, LaneName
from holdfast.engine.claims.flow_scheduler import FlowScheduler, flow_room, is_scarce, next_wait
from holdfast.engine.claims.scheduler import claim_size
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.deliveries.debounce import claim_debounced
from holdfast.stores.deliveries.flow import (
    FlowClaim,
    FlowScan,
    claim_flow,
    due_lanes,
    flow_floors,
    forget_starts,
)
from holdfast.stores.protocol import Store

_FORGET_EVERY = 60.0


class Accept(Protocol):
    """Queues claimed deliveries of a pool; with `first` in front of those that wait."""

    def __call__(self, pool: SlotPool, claims: list[Claimed], *, first: bool) -> None: ...


class FlowClaimer:
    """Claims within limits, rates and order; `accept` takes what was claimed."""

    def __init__(
        self,
        store: Store,
        worker: str,
        options: WorkerOptions,
        handlers: Mapping[str, Handler],
        pools: Sequence[SlotPool],
        accept: Accept,
    ) -> None:
        self._store, self._worker, self._options, self._handlers = store, worker, options, handlers
        self._accept = accept
        self._adoption = FlowAdoption(store, handlers, suspects=options.suspects)
        self._pools = [(pool, FlowScheduler(walks=not options.suspects)) for pool in pools]
        for pool in pools:
            pool.scheduler.finds_flow = any(handler.flow is not None for handler in handlers.values())

    @property
    def has_lanes(self) -> bool:
        """Whether a pool knows a lane with flow control."""
        return any(pool.scheduler.flow_lanes for pool, _ in self._pools)

    async def claim(self, held_back: Mapping[str, int], wake: Callable[[], None]) -> bool:
        """Claims for every pool; returns whether there may be more. Calls `wake` when a rate allows the next claim."""
        more = False
        for pool, scheduler in self._pools:
            found, wait = await self._claim(pool, scheduler, held_back)
            more = more or found
            if wait is not None:
                pool.flow_timer.start(wait, wake)
        return more

    async def prepare_trials(self, trials: Mapping[str, Sequence[Lane]]) -> None:
        """Gives keys to deliveries of blocked consumers before one of them is tried."""
        for lanes in trials.values():
            await self._adoption.sweep(lanes)

    async def _claim(
        self, pool: SlotPool, scheduler: FlowScheduler, held_back: Mapping[str, int]
    ) -> tuple[bool, float | None]:
        scheduler.refreshed(pool.scheduler.flow_lanes)
        waits = []
        try:
            empty = await self._empty(scheduler)
            more = await self._adoption.sweep(scheduler.lanes, empty)
            unordered = self._adoption.unordered(scheduler.lanes)
            scarce = {lane[:2] for lane in scheduler.lanes if lane.flow is not None and is_scarce(lane.flow)}
            for lane in scheduler.order():
                if (
                    lane[:4] in empty
                    or lane.consumer in unordered
                    or held_back[lane.consumer]
                    or not claim_size(room := self._room(pool, lane, scarce))
                ):
                    continue
                found, wait = await self._claim_lane(pool, scheduler, lane, room)
                more = more or found
                waits.append(wait)
        except StoreUnavailable:
            scheduler.forget_floors()
            raise
        await self._forget_starts(scheduler)
        return more, next_wait(waits)

    async def _empty(self, scheduler: FlowScheduler) -> set[LaneName]:
        """The idle lanes that have nothing to claim: one query for all of them instead of one claim for each."""
        if not (idle := scheduler.to_check(started := time.monotonic())):
            return set()
        floors = [scheduler.state(lane).floors for lane in idle]
        due = await self._store.run(due_lanes(idle, floors, suspects=self._options.suspects))
        scheduler.checked(started, time.monotonic())
        return {lane[:4] for lane in idle} - {lane[:4] for lane in due}

    def _room(self, pool: SlotPool, lane: Lane, scarce: set[tuple[str, str]]) -> int:
        assert lane.flow is not None
        known = [*pool.waiting, *(claim for claim in pool.running.values() if claim is not None)]
        held = sum((claim.queue, claim.consumer) in scarce for claim in known) if scarce else 0
        prefetch = pool.scheduler.prefetch
        return flow_room(lane.flow, slots=pool.slots, prefetch=prefetch, held=held, others=len(known) - held)

    async def _claim_lane(
        self, pool: SlotPool, scheduler: FlowScheduler, lane: Lane, room: int
    ) -> tuple[bool, float | None]:
        assert lane.flow is not None
        if lane.flow.is_debounced:
            return await self._claim_debounced(pool, scheduler, lane, room), None
        now = time.monotonic()
        if lane.flow.locks(lane) and scheduler.floors_due(lane, now):
            floors = await self._store.run(flow_floors(lane))
            scheduler.floors_read(lane, floors, now, time.monotonic())
        scanned, scan = scheduler.first_scan(lane, room, time.monotonic())
        found = await self._scan(pool, scheduler, scanned, scan)
        if found.unkeyed and await self._adoption.adopt(lane):
            return True, None
        claims, wait = len(found.claims), found.wait if found.left else None
        further = scheduler.claimed(lane, scan, found, now, time.monotonic())
        while further is not None:
            started = time.monotonic()
            walked = await self._scan(pool, scheduler, lane, further)
            claims += len(walked.claims)
            wait = next_wait((wait, walked.wait))
            further = scheduler.claimed(lane, further, walked, started, time.monotonic())
        if (due := scheduler.state(lane).walk_due) is not None:
            # Without this, a walk over thousands of keys that are held up would do only one step per poll.
            wait = next_wait((wait, due - time.monotonic()))
        return claims > 0, wait

    async def _claim_debounced(self, pool: SlotPool, scheduler: FlowScheduler, lane: Lane, room: int) -> bool:
        """Claims the newest deliveries; returns whether anything changed, so that there may be more."""
        suspects = self._options.suspects
        found = await self._store.run(
            claim_debounced(lane, self._worker, self._options.lease, claim_size(room), suspects=suspects)
        )
        self._accept(pool, found.claims, first=False)
        scheduler.state(lane).idle = not (found.claims or found.changed or found.unkeyed)
        adopted = found.unkeyed > 0 and await self._adoption.adopt(lane)
        return bool(found.claims or found.changed or adopted)

    async def _scan(self, pool: SlotPool, scheduler: FlowScheduler, lane: Lane, scan: FlowScan) -> FlowClaim:
        floors = scheduler.state(lane).floors
        suspects = self._options.suspects
        found = await self._store.run(
            claim_flow(lane, self._worker, self._options.lease, scan, floors, suspects=suspects)
        )
        assert lane.flow is not None
        self._accept(pool, found.claims, first=is_scarce(lane.flow))
        return found

    async def _forget_starts(self, scheduler: FlowScheduler) -> None:
        if time.monotonic() < scheduler.forget_due:
            return
        scheduler.forget_due = time.monotonic() + _FORGET_EVERY
        for lane in scheduler.lanes:
            assert lane.flow is not None
            for name, settings in ((lane.consumer, lane.flow.consumer), (f"queue:{lane.queue}", lane.flow.queue)):
                if settings is not None and settings.rate_window is not None:
                    await self._store.run(forget_starts(name, 2 * settings.rate_window))
