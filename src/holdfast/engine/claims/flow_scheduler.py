"""Decides how much to claim from lanes with flow control, where to search, and when to search again.

Everything here is pure: no I/O and no clock. A claim reads the oldest due deliveries of a lane (the window). If they
are blocked and the window is full, it continues with the deliveries that became due since the last scan, and then with a
walk over the keys. Lanes with fairness are only walked, so that each key gets one turn per round. Floors are hints that
keep claims away from dead rows under a long-held snapshot; the row decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from holdfast.core.query_interval import next_query
from holdfast.engine.claims.key_floors import COMMIT, KeyFloors
from holdfast.engine.claims.scheduler import (
    CHEAP,
    COST_FACTOR,
    LONGEST_DELAY,
    LONGEST_REFRESH,
    SHALLOW,
    CostDelay,
    claim_size,
)
from holdfast.stores.deliveries.claim import LOWEST_ID, Lane, LaneFlow
from holdfast.stores.deliveries.flow import Floors, FlowClaim, FlowScan, window_size

_SHALLOW_FACTOR = 8.0
_FLOORS_EVERY = 1.0
_VISITS = 1000
"""Keys that a walk visits after one that found too few deliveries: dead letters or limits may hold up thousands."""
_FEWEST_CHECKED = 2
_AHEAD = 4
"""A worker prefetches at most a limit or rate that all workers share, divided by this number."""


def is_scarce(flow: LaneFlow) -> bool:
    """Whether all deliveries of the lane share one limit or rate, so that a claimed one keeps others from running."""
    own, queue = flow.consumer, flow.queue
    shared = own is not None and (
        (own.limit is not None and not own.limit_by_key) or (own.rate_count is not None and not own.rate_by_key)
    )
    return shared or queue is not None


def flow_room(flow: LaneFlow, *, slots: int, prefetch: int, held: int, others: int) -> int:
    """How many deliveries of a lane to claim. `held` counts those of lanes with flow control that wait or run in the pool,
    `others` those of other lanes.

    A scarce lane may use half of the slots even if deliveries of other lanes wait for all of them. Only a part of its limit is
    prefetched, because other workers could run the deliveries that wait here.
    """
    if not is_scarce(flow):
        return max(0, slots + prefetch - held - others)
    if others >= slots:
        return max(0, max(1, slots // 2) - held)
    return max(0, slots - held - others + min(prefetch, _smallest(flow) // _AHEAD))


def _smallest(flow: LaneFlow) -> int:
    counts = [
        count
        for one in (flow.consumer, flow.queue)
        if one is not None
        for count in (None if one.limit_by_key else one.limit, None if one.rate_by_key else one.rate_count)
        if count is not None
    ]
    return min(counts, default=0)


@dataclass(slots=True)
class LaneState:
    """The state of one lane in a worker."""

    cursor: str = ""
    keys: int = 0
    known: KeyFloors = field(default_factory=KeyFloors)
    floors: Floors = field(default_factory=Floors)
    floors_due: float = 0.0
    floor: tuple[datetime, UUID] | None = None
    whole: CostDelay = field(default_factory=CostDelay)
    shallow: CostDelay = field(default_factory=lambda: CostDelay(_SHALLOW_FACTOR))
    depth: CostDelay = field(default_factory=CostDelay)
    recent: CostDelay = field(default_factory=lambda: CostDelay(_SHALLOW_FACTOR))
    since: tuple[datetime, UUID] | None = None
    """Where the next scan of the deliveries that became due starts."""
    walks_next: bool = False
    """A scan from `since` filled the last claim, so a walk is next: deliveries that became due earlier wait for it."""
    long_walk: CostDelay = field(default_factory=lambda: CostDelay(_SHALLOW_FACTOR))
    has_passed: bool = False
    """A walk has visited every key: the first one is not delayed, because a worker starts without knowing any key."""
    pass_from: str | None = None
    """Where a walk began, if it has found nothing since then."""
    wrapped: bool = False
    walk_due: float | None = None
    """When to continue a walk that has not visited every key, or a scan that was delayed; None if there is neither."""
    idle: bool = True
    """The last claim found no candidate, or perhaps no room in a limit for all keys: a check comes before the next claim."""


class FlowScheduler:
    """The claim decisions for the lanes with flow control of one pool."""

    def __init__(self, *, walks: bool = True) -> None:
        """With `walks=False` it claims only from the oldest deliveries: a walk over the keys does not find suspect deliveries."""
        self._walks = walks
        self.lanes: list[Lane] = []
        self._states: dict[tuple[str, str, int, int], LaneState] = {}
        self._round = 0
        self._fastest_check = float("inf")
        self._whole_check_due = 0.0
        self.forget_due = 0.0
        """When to remove old buckets of rates again."""

    def refreshed(self, lanes: Sequence[Lane]) -> None:
        """Stores the lanes that a query found, and keeps the state of those that were known."""
        self.lanes = list(lanes)
        if len(self._states) > 2 * len(lanes) + 100:
            self._states = {lane[:4]: self._states[lane[:4]] for lane in lanes if lane[:4] in self._states}

    def order(self) -> list[Lane]:
        """The lanes for the next claims, sorted by priority; those of one priority take turns."""
        self._round += 1
        if not self.lanes:
            return []
        start = self._round % len(self.lanes)
        return sorted(self.lanes[start:] + self.lanes[:start], key=lambda lane: lane.priority)

    def to_check(self, now: float) -> list[Lane]:
        """The idle lanes, which one query checks for due deliveries; empty if a claim costs no more than the check.

        A check reads whole lanes, unless the last one was expensive: then it starts shortly before the floor of each lane.
        """
        idle = [lane for lane in self.lanes if self.state(lane).idle]
        if len(idle) < _FEWEST_CHECKED:
            return []
        if now >= self._whole_check_due:
            return idle
        floors = ((lane, self.state(lane).floor) for lane in idle)
        return [lane if floor is None else lane._replace(floor_at=floor[0] - SHALLOW) for lane, floor in floors]

    def checked(self, started: float, ended: float) -> None:
        """Records the cost of a check: many dead rows make it expensive."""
        cost = ended - started
        self._fastest_check = min(self._fastest_check, cost)
        if cost > CHEAP + 2 * self._fastest_check and started >= self._whole_check_due:
            self._whole_check_due = ended + min(LONGEST_DELAY, COST_FACTOR * cost)

    def state(self, lane: Lane) -> LaneState:
        return self._states.setdefault(lane[:4], LaneState())

    def floors_due(self, lane: Lane, now: float) -> bool:
        """Whether to read the lowest tickets again."""
        return now >= self.state(lane).floors_due

    def floors_read(self, lane: Lane, floors: Floors, started: float, ended: float) -> None:
        state = self.state(lane)
        state.floors = floors
        state.floors_due = next_query(
            started, ended, factor=COST_FACTOR, longest=LONGEST_REFRESH, shortest=_FLOORS_EVERY
        )

    def forget_floors(self) -> None:
        """Clears every floor: after a reconnect the server may be another one, with lower tickets."""
        self._states.clear()

    def first_scan(self, lane: Lane, room: int, now: float) -> tuple[Lane, FlowScan]:
        """The lane with its floor, and the first scan of a round."""
        state, size = self.state(lane), claim_size(room)
        state.walk_due = None
        assert lane.flow is not None
        if self._walks and lane.flow.consumer is not None and lane.flow.consumer.fair:
            return lane, _walk(state, size, now)
        if state.floor is None or now >= state.whole.at:
            state.depth = state.whole
            return lane, FlowScan(size)
        at, id = state.floor
        if now >= state.shallow.at:
            state.depth = state.shallow
            return lane._replace(floor_at=at - SHALLOW), FlowScan(size)
        state.depth = CostDelay()
        return lane._replace(floor_at=at, floor_id=id), FlowScan(size)

    def claimed(self, lane: Lane, scan: FlowScan, found: FlowClaim, started: float, ended: float) -> FlowScan | None:
        """Records the result of a claim; returns the scan that continues it, or None."""
        state = self.state(lane)
        assert lane.flow is not None
        state.idle = not found.claims and (not found.left or lane.flow.cap is not None)
        if scan.cursor is not None:
            return self._walked(state, scan, found, started, ended)
        if scan.since is not None:
            return self._looked(state, scan, found, started, ended)
        state.depth.took(started, ended)
        state.floor = found.floor or state.floor
        missing = scan.size - len(found.claims)
        if lane.flow.consumer is None or lane.flow.consumer.key is None or found.unkeyed:
            return None
        if not self._walks or missing <= 0 or found.left < scan.size:
            return None
        if state.since is None and found.at is not None:
            state.since = found.at - COMMIT, LOWEST_ID
        if state.since is not None and ended >= state.recent.at and not state.walks_next:
            return FlowScan(claim_size(missing), since=state.since)
        state.walks_next, state.walk_due = False, state.recent.at
        return _walk(state, claim_size(missing), ended)

    def _looked(
        self, state: LaneState, scan: FlowScan, found: FlowClaim, started: float, ended: float
    ) -> FlowScan | None:
        """Sets the start of the next scan: the end of this one, or earlier, because a commit is later than its `run_at`."""
        missing = scan.size - len(found.claims)
        state.walks_next = missing <= 0
        if missing <= 0:
            return None
        if found.left + len(found.claims) >= window_size(scan.size):
            state.walk_due = ended
            # The window of SQLite is read after the claim, so it may contain deliveries that the claim did not.
            state.since = scan.since if found.claims else found.floor
        elif found.at is not None:
            state.recent.took(started, ended)
            state.since = found.at - COMMIT, LOWEST_ID
        return _walk(state, claim_size(missing), ended)

    def _walked(
        self, state: LaneState, scan: FlowScan, found: FlowClaim, started: float, ended: float
    ) -> FlowScan | None:
        state.cursor = found.cursor or ""
        state.keys = sum(first is not None for _, first in found.visited) or found.keys
        state.known.learn(found, started, ended)
        state.has_passed = state.has_passed or state.cursor <= (scan.cursor or "")
        if scan.visits is not None:
            state.long_walk.took(started, ended)
        missing = scan.size - len(found.claims)
        if found.claims or found.keys < (scan.visits or scan.size):
            state.pass_from = None
        elif _is_complete(state, scan.cursor or ""):
            state.pass_from = None
            return None
        if missing <= 0 or found.keys < (scan.visits or scan.size):
            return None
        if ended < state.long_walk.at:
            # The walk waits even if it is not delayed, so that other lanes have their turn.
            state.walk_due = min(state.walk_due or math.inf, state.long_walk.at if state.has_passed else ended)
            return None
        return _scan(state, claim_size(missing), 1, _VISITS, ended)


def _is_complete(state: LaneState, before: str) -> bool:
    """Whether a walk that found nothing has visited every key; `before` is where its last part began."""
    if state.pass_from is None:
        state.pass_from, state.wrapped = before, False
    state.wrapped = state.wrapped or state.cursor <= before
    return state.wrapped and state.cursor >= state.pass_from


def _walk(state: LaneState, size: int, now: float) -> FlowScan:
    """The first walk of a round. While a worker has not seen all keys and finds nothing, it is a long one: in short walks
    the first pass over 100,000 blocked keys took 10 times as many statements."""
    visits = None if state.has_passed or state.pass_from is None else _VISITS
    return _scan(state, size, _share(size, state.keys), visits, now)


def _scan(state: LaneState, size: int, share: int, visits: int | None, now: float) -> FlowScan:
    return FlowScan(size, state.cursor, share, visits, known=state.known.after(state.cursor, visits or size, now))


def _share(size: int, keys: int) -> int:
    """The number of deliveries that a walk takes of each key: few keys share a large claim."""
    return max(1, size // keys) if keys else 1


def next_wait(waits: Sequence[float | None], shortest: float = 0.005) -> float | None:
    """Seconds until the next token of a rate; None if no rate waits for one."""
    known = [wait for wait in waits if wait is not None]
    return max(shortest, min(known)) if known else None
