"""Which lanes to claim from, in which order, and how deep: hints that keep claims cheap, never an authority.

Under a long-held snapshot dead rows pile up at the head of a lane, and a claim that starts at the beginning
walks over all of them. A floor skips them. But `run_at` is when a transaction began, so work may arrive below
the floor: a shallow look (a little below the floor) and a look at the whole lane come round again, each due after
a multiple of what it cost.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.stores.deliveries.claim import Claimed, Lane

_SHALLOW = timedelta(seconds=10)
_COST_FACTOR = 20.0
_SHALLOW_FACTOR = 8.0
_LOW_SHARE = 8
_CHEAP, _LONGEST = 0.01, 1.0
"""Seconds that a look at everything may take beyond a quick one without being put off, and may be put off at most."""


def urgency(claim: Claimed) -> tuple[int, datetime, int]:
    """What orders claimed deliveries, most urgent first."""
    return claim.priority, claim.run_at, claim.id.int


@dataclass(slots=True)
class _Due:
    """When a look at one depth is worth its cost again, on the local clock: a hint needs no other."""

    factor: float = _COST_FACTOR
    at: float = 0.0

    def took(self, started: float, ended: float) -> None:
        self.at = ended + self.factor * (ended - started)


class Lanes:
    """The lanes of one pool of slots, with a floor for each."""

    def __init__(self) -> None:
        self._known: list[Lane] = []
        self._floors: dict[tuple[str, str, int, int], Lane] = {}
        self._whole, self._shallow = _Due(), _Due(_SHALLOW_FACTOR)
        self._depth = self._whole
        self._turn = 0
        self._outdated_at = float("-inf")
        self._quickest = float("inf")
        self.refresh_due = self.full_scan_due = 0.0
        self.trials: dict[str, list[Lane]] = {}
        """Of each blocked consumer whose pause is over its lanes, from which one delivery may be tried."""
        self.idle = False
        """Whether the store, when it was last asked, had nothing more to claim."""

    def refreshed(self, found: Sequence[Lane], started: float, ended: float) -> None:
        """Takes over what the store found; looking again is due after a multiple of what it cost."""
        if started <= self._outdated_at:
            # Asked before the change, answered after it.
            self._known, self.trials = [], {}
            return
        self._known = [lane for lane in found if not lane.blocked]
        self.trials = {}
        for lane in found:
            if lane.blocked:
                self.trials.setdefault(lane.consumer, []).append(lane)
        self._floors = {lane[:4]: self._floors[lane[:4]] for lane in found if lane[:4] in self._floors}
        self.refresh_due = ended + max(0.02, _COST_FACTOR * (ended - started))

    def outdate(self) -> None:
        """What is known of the lanes holds no longer: nothing is claimed before the store was asked again."""
        self._known, self.trials, self._outdated_at, self.refresh_due = [], {}, time.monotonic(), 0.0

    def __bool__(self) -> bool:
        return bool(self._known)

    def order(self) -> list[Lane]:
        """The lanes for the next claim: by priority, those of one priority in turn, sometimes the last ones first."""
        self._turn += 1
        if not self._known:
            return []
        if self._turn % _LOW_SHARE == 0:
            ordered = sorted(self._known, key=lambda lane: -lane.priority)
        else:
            start = self._turn % len(self._known)
            ordered = sorted(self._known[start:] + self._known[:start], key=lambda lane: lane.priority)
        now = time.monotonic()
        if not self._floors or now >= self._whole.at:
            self._depth = self._whole
            return ordered
        if now >= self._shallow.at:
            self._depth = self._shallow
            return [self._lowered(lane) for lane in ordered]
        self._depth = _Due()
        return [self._floors.get(lane[:4], lane) for lane in ordered]

    def claimed(self, claims: Sequence[Claimed], started: float, ended: float) -> None:
        """Learns from a claim, in the order of `urgency`: a lane's floor is the lowest row just taken from it."""
        self._depth.took(started, ended)
        lowest: dict[tuple[str, str, int, int], Lane] = {}
        for claim in claims:
            name = (claim.queue, claim.consumer, claim.generation, claim.priority)
            if name not in lowest:
                lowest[name] = Lane(*name, claim.run_at, claim.id)
        self._floors |= lowest

    def scanned(self, started: float, ended: float) -> None:
        """Learns what a look at all there is has cost: a dear one, over many dead rows, is not repeated soon."""
        cost = ended - started
        self._quickest = min(self._quickest, cost)
        expensive = cost > _CHEAP + 2 * self._quickest
        self.full_scan_due = ended + (min(_LONGEST, _COST_FACTOR * cost) if expensive else 0.0)

    def _lowered(self, lane: Lane) -> Lane:
        floor = self._floors.get(lane[:4])
        return lane if floor is None else floor._replace(floor_at=floor.floor_at - _SHALLOW, floor_id=lane.floor_id)
