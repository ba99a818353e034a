"""Decides when to claim, how much, from which lanes, and how long to wait until the next round.

Everything here is pure: no I/O and no clock. The caller passes the time and reports what each query found and cost.

Lanes and floors are hints that keep claims cheap; the row decides. Under a long-held snapshot, dead rows accumulate at
the head of a lane, and a claim that starts at the beginning reads all of them. A floor skips them. `run_at` is the start
of a transaction, so work may arrive below the floor. For this reason a shallow scan (a little below the floor) and a scan
of the whole lane are repeated, each after a multiple of its cost. Listing the lanes is treated in the same way: if it is
expensive, known lanes are read from shortly before their oldest delivery, and all of them from the start once in a while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from holdfast.core.query_interval import next_query
from holdfast.stores.deliveries.claim import Claimed, Lane, LaneList

MAX_CLAIM = 500
_CLAIM_SIZES = (500, 200, 100, 50, 20, 10, 5, 2, 1)
SHALLOW, _LEAST_SHALLOW = timedelta(seconds=10), timedelta(seconds=1)
"""How far below a floor a shallow scan starts. The distance is halved, down to the second value, while such scans are
expensive: that bounds the rows that they read."""
COST_FACTOR = 20.0
_SHALLOW_FACTOR = 8.0
_LISTING_FACTOR = 40.0
LONGEST_HIDDEN, LONGEST_REFRESH = 30.0, 5.0
"""Seconds after which an expensive query is repeated at the latest, in spite of its cost: one that finds what a floor hides,
and one that lists lanes or batches."""
_LOW_PRIORITY_SHARE = 8
_SHORTEST_REFRESH = 0.02
_REFRESH_WHEN_EMPTY = 0.05
CHEAP, LONGEST_DELAY = 0.01, 1.0
"""A full scan that takes this many seconds longer than the fastest one is delayed, by at most the second value."""
_DISTANT = 0.04
"""Seconds that a round trip may take without being expensive, before a faster one is known."""
_RATE_WINDOW = 0.05
_PREFETCH_SECONDS = 0.1
_MAX_PREFETCH = 4 * MAX_CLAIM
_SHORT_WAIT = 0.02


def claim_size(free: int) -> int:
    """The largest of a few sizes that fits: the limit is part of the statement text, and each size has its query plan."""
    return next((size for size in _CLAIM_SIZES if size <= free), 0)


class _Urgent(Protocol):
    @property
    def priority(self) -> int: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def id(self) -> UUID: ...


def urgency(claim: _Urgent) -> tuple[int, datetime, int]:
    """Sort key of claimed deliveries and batches, most urgent first."""
    return claim.priority, claim.run_at, claim.id.int


class NextScan(NamedTuple):
    """The next claim query.

    With `full`, one statement finds the lanes and claims from them. Otherwise the query claims from the known lanes, which
    are listed again first if `refresh` is set. `full_scan_in` is the number of seconds until a delayed full
    scan is due.
    """

    size: int
    full: bool
    refresh: bool
    full_scan_in: float | None


@dataclass(slots=True)
class CostDelay:
    """The time of the next scan of one depth. The wait is proportional to the duration of the last scan, up to a limit."""

    factor: float = COST_FACTOR
    at: float = 0.0

    def took(self, started: float, ended: float) -> None:
        self.at = next_query(started, ended, factor=self.factor, longest=LONGEST_HIDDEN)


class ClaimScheduler:
    """The claim decisions of one pool of slots.

    It prefetches only what the pool starts within a tenth of a second: short work is claimed in large batches, long work
    is left to other workers.
    """

    def __init__(self, slots: int, now: float, *, prefetch: bool = True) -> None:
        self._slots, self._prefetch = slots, prefetch
        self._lanes: list[Lane] = []
        self._floors: dict[tuple[str, str, int, int], Lane] = {}
        self._whole, self._shallow = CostDelay(), CostDelay(_SHALLOW_FACTOR)
        self._depth = self._whole
        self._round = 0
        self._margin = SHALLOW
        self._heads: dict[tuple[str, str, int, int], Lane] | None = None
        self._whole_listing = CostDelay(_LISTING_FACTOR)
        self._listing = CostDelay()
        self._outdated_at = float("-inf")
        self._fastest = _DISTANT
        self._refresh_due = self._full_scan_due = 0.0
        self._idle = False
        self._rate, self._finished, self._window_start = 0.0, 0, now
        self._max_prefetch = self._low_mark = 0
        self.trials: dict[str, list[Lane]] = {}
        """Lanes of blocked consumers whose pause is over: one delivery of each consumer may be tried."""
        self.flow_lanes: list[Lane] = []
        """Lanes with flow control; the claim by lanes does not take from them."""
        self.finds_flow = False
        """Whether there may be lanes with flow control, which a full scan does not find."""

    def is_low(self, waiting: int) -> bool:
        """Whether so few deliveries wait that a new claim should start now."""
        return waiting <= self._low_mark

    def room(self, running: int, waiting: int) -> int:
        """How many deliveries to claim now; 0 while enough are waiting."""
        return max(0, self._slots + self._max_prefetch - running - waiting) if self.is_low(waiting) else 0

    def finished(self, now: float) -> None:
        """Counts one delivery that left its slot."""
        self._finished += 1
        if (passed := now - self._window_start) >= _RATE_WINDOW:
            self._rate = 0.5 * self._rate + 0.5 * self._finished / passed
            self._finished, self._window_start = 0, now
            if self._prefetch:
                self._max_prefetch = min(_MAX_PREFETCH, int(self._rate * _PREFETCH_SECONDS))
                self._low_mark = self._max_prefetch // 2

    @property
    def prefetch(self) -> int:
        """How many deliveries may wait for a slot."""
        return self._max_prefetch

    def next_scan(self, now: float, room: int, *, woken: bool) -> NextScan:
        """Which query finds work for `room` slots. A wake-up of an idle pool may be for a lane that is not known yet."""
        if self.finds_flow:
            due_in = self._refresh_due - now
            return NextScan(
                claim_size(room), False, due_in <= 0, due_in if woken and self._idle and due_in > 0 else None
            )
        needed, due_in = woken and self._idle, self._full_scan_due - now
        whole = needed and self._heads is not None and now >= self._whole_listing.at
        full = needed and due_in <= 0 and not whole
        refresh = not full and (whole or now >= self._refresh_due)
        return NextScan(claim_size(room), full, refresh, due_in if needed and due_in > 0 else None)

    def lanes(self, now: float, held_back: Mapping[str, int]) -> list[Lane]:
        """The lanes for the next claim, without those of held-back consumers; empty if there is nothing to claim from."""
        found = [lane for lane in self._order(now) if not held_back[lane.consumer]]
        if not found:
            self._refresh_due, self._idle = 0.0, True
        return found

    def known(self, now: float) -> list[Lane] | None:
        """The known lanes: when the lanes are listed, these are read from their floors.

        An empty list: all lanes are read from their start, and their floors are learned. None: listing is cheap, so no
        floors are used.
        """
        if self._heads is None:
            return None
        if now >= self._whole_listing.at:
            self._listing = self._whole_listing
            return []
        self._listing = CostDelay()
        return [lane._replace(floor_at=lane.floor_at - self._margin) for lane in self._heads.values()]

    def refreshed(self, listed: LaneList, started: float, ended: float) -> None:
        """Stores the lanes of a query, and their floors; the next query is due after a multiple of its cost."""
        self._store_floors(listed.floors, started, ended)
        self._lanes, self.trials, self.flow_lanes = [], {}, []
        if started <= self._outdated_at:
            # The query began before the change.
            return
        for lane in listed.lanes:
            if lane.blocked:
                self.trials.setdefault(lane.consumer, []).append(lane)
            elif lane.flow is not None:
                self.flow_lanes.append(lane)
                self.finds_flow = True
            else:
                self._lanes.append(lane)
        self._floors = {lane[:4]: self._floors[lane[:4]] for lane in listed.lanes if lane[:4] in self._floors}
        self._refresh_due = next_query(
            started, ended, factor=COST_FACTOR, longest=LONGEST_REFRESH, shortest=_SHORTEST_REFRESH
        )

    def _store_floors(self, floors: Sequence[Lane] | None, started: float, ended: float) -> None:
        expensive = self._is_expensive(ended - started)
        if floors is None or self._heads is None:
            self._heads, self._whole_listing.at = {} if expensive else None, 0.0
            return
        self._listing.took(started, ended)
        if self._listing is not self._whole_listing:
            if expensive and self._margin == _LEAST_SHALLOW and self._fastest == _DISTANT:
                # No query has been faster, and floors did not help: the server is more distant than assumed.
                self._fastest, self._heads = ended - started, None
                return
            self._adapt_margin(expensive=expensive)
        elif not expensive:
            self._heads = None
            return
        # A lane that is not found again keeps its floor: there may be dead rows before it.
        self._heads |= {lane[:4]: lane for lane in floors}

    def _is_expensive(self, cost: float) -> bool:
        self._fastest = min(self._fastest, cost)
        return cost > CHEAP + 2 * self._fastest

    def _adapt_margin(self, *, expensive: bool) -> None:
        self._margin = max(_LEAST_SHALLOW, self._margin / 2) if expensive else min(SHALLOW, self._margin * 2)

    def outdate(self, now: float) -> None:
        """Discards the known lanes: nothing is claimed before the next query."""
        self._lanes, self.trials, self.flow_lanes, self._outdated_at, self._refresh_due = [], {}, [], now, 0.0

    def scan_again(self) -> None:
        """Makes the next claim list all lanes and scan each from its start."""
        self._refresh_due = self._whole.at = self._whole_listing.at = 0.0

    def claimed(self, claims: Sequence[Claimed], started: float, ended: float) -> bool:
        """Records the result of a claim by lane, sorted by `urgency`; returns whether there may be more to claim."""
        self._depth.took(started, ended)
        expensive = self._is_expensive(ended - started)
        if self._depth is self._shallow:
            self._adapt_margin(expensive=expensive)
        lowest: dict[tuple[str, str, int, int], Lane] = {}
        for claim in claims:
            name = (claim.queue, claim.consumer, claim.generation, claim.priority)
            if name not in lowest:
                lowest[name] = Lane(*name, claim.run_at, claim.id)
        self._floors |= lowest
        return self._continue(bool(claims), ended, more=bool(claims))

    def scanned(self, found: int, size: int, started: float, ended: float) -> bool:
        """Records the result of a full scan of `size` that claimed `found`; returns whether there may be more to claim."""
        self._limit_full_scans(started, ended)
        return self._continue(found > 0, ended, more=found >= size)

    def _limit_full_scans(self, started: float, ended: float) -> None:
        # An expensive scan reads many dead rows; the floors keep the next claims away from them.
        cost = ended - started
        delay = min(LONGEST_DELAY, COST_FACTOR * cost) if self._is_expensive(cost) else 0.0
        self._full_scan_due = ended + delay

    def _continue(self, found: bool, now: float, *, more: bool) -> bool:
        if not found:
            self._refresh_due = min(self._refresh_due, now + _REFRESH_WHEN_EMPTY)
        self._idle = not more
        return more

    def _order(self, now: float) -> list[Lane]:
        """Lanes sorted by priority; those of one priority take turns. Every eighth time the lowest priority comes first."""
        self._round += 1
        if not self._lanes:
            return []
        if self._round % _LOW_PRIORITY_SHARE == 0:
            ordered = sorted(self._lanes, key=lambda lane: -lane.priority)
        else:
            start = self._round % len(self._lanes)
            ordered = sorted(self._lanes[start:] + self._lanes[:start], key=lambda lane: lane.priority)
        if not self._floors or now >= self._whole.at:
            self._depth = self._whole
            return ordered
        if now >= self._shallow.at:
            self._depth = self._shallow
            return [self._lowered(lane) for lane in ordered]
        self._depth = CostDelay()
        return [self._floors.get(lane[:4], lane) for lane in ordered]

    def _lowered(self, lane: Lane) -> Lane:
        floor = self._floors.get(lane[:4])
        return lane if floor is None else floor._replace(floor_at=floor.floor_at - self._margin, floor_id=lane.floor_id)


def wait_after_round(*, more: bool, poll: float, until_idle: bool, busy: bool, unsettled: bool) -> float | None:
    """Seconds until the next round; None if the worker may be idle, which a query for the next due delivery decides."""
    if more:
        return 0.0
    if not until_idle or busy:
        return poll
    return min(poll, _SHORT_WAIT) if unsettled else None


class IdleWait(NamedTuple):
    """What a worker that runs until idle does next: it waits, or it stops. `stalled`: work is due that it cannot claim."""

    seconds: float
    stop: bool = False
    stalled: bool = False


def wait_when_idle(
    next_in: float | None, *, limit: float, poll: float, since_claim: float, woken: bool, receiving: bool
) -> IdleWait:
    """Decides by the seconds until the next delivery is due. `receiving`: brokers may still bring records."""
    if next_in is None or next_in > limit:
        return IdleWait(poll) if receiving else IdleWait(0.0, stop=True)
    if woken:
        # A settlement made a delivery due after the claim.
        return IdleWait(0.0)
    stalled = next_in <= 0 and since_claim > limit
    return IdleWait(min(max(next_in, _SHORT_WAIT), poll), stop=stalled, stalled=stalled)
