"""Decides when to check for batches and from which lanes to claim them. Pure: no I/O and no clock.

A check counts what is due and locks nothing. A claim follows only if the check found a complete or old batch. The result of
a check is used for a short time; then consumers may be paused, and deliveries may have arrived below the floors.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.core.query_interval import next_query
from holdfast.engine.batches.options import BatchOptions
from holdfast.engine.claims.scheduler import COST_FACTOR, LONGEST_REFRESH
from holdfast.stores.deliveries.batch import BatchLane
from holdfast.stores.deliveries.claim import Claimed, Lane

_SHORTEST_CHECK = 0.05
_MOMENT = 0.002
"""Seconds after which the database's clock has certainly passed the time that a check computed."""

LaneName = tuple[str, str, int, int]


class BatchScheduler:
    """The batch claims of one pool of slots."""

    def __init__(self, batches: Mapping[str, BatchOptions]) -> None:
        self._batches = batches
        self._ready: dict[LaneName, Lane] = {}
        self._check_at = 0.0
        self._due_at: float | None = None
        self._is_requested = False
        self._round = 0

    def check_due(self, now: float) -> bool:
        """Whether to check now. A request that comes too early is remembered."""
        self._is_requested = now < self._check_at
        return not self._is_requested

    def checked(self, found: Sequence[BatchLane], started: float, ended: float) -> None:
        """Records the result of a check: which lanes have a batch, and when the next one becomes old enough."""
        self._ready, self._due_at = {}, None
        for lane, due, waited in found:
            batch = self._batches[lane.consumer]
            if due >= batch.size or waited >= batch.within:
                self._ready[lane[:4]] = lane
            else:
                due_at = ended + (batch.within - waited).total_seconds() + _MOMENT
                self._due_at = due_at if self._due_at is None else min(self._due_at, due_at)
        self._check_at = next_query(
            started, ended, factor=COST_FACTOR, longest=LONGEST_REFRESH, shortest=_SHORTEST_CHECK
        )
        self._round += 1

    def ready(self, is_held_back: Callable[[str], bool]) -> list[Lane]:
        """The lanes to claim from, sorted by priority; those of one priority take turns."""
        found = [lane for lane in self._ready.values() if not is_held_back(lane.consumer)]
        start = self._round % len(found) if found else 0
        return sorted(found[start:] + found[:start], key=lambda lane: lane.priority)

    def claimed(self, lane: Lane, claims: Sequence[Claimed]) -> None:
        """Records the result of a claim: an incomplete batch was the last one of its lane."""
        if len(claims) < self._batches[lane.consumer].size:
            del self._ready[lane[:4]]
            return
        lowest = min(claims, key=lambda claimed: (claimed.run_at, claimed.id.int))
        self._ready[lane[:4]] = lane._replace(floor_at=lowest.run_at, floor_id=lowest.id)

    def wait(self, now: float) -> float | None:
        """Seconds until the next check is needed; None if only new work or a poll can bring a batch."""
        if self._is_requested:
            return max(0.0, self._check_at - now)
        return self.due_in(now)

    def due_in(self, now: float) -> float | None:
        """Seconds until the next incomplete batch is old enough; None if none is known."""
        return None if self._due_at is None else max(0.0, self._due_at - now)

    @property
    def largest(self) -> int:
        """The size of the largest batch."""
        return max(batch.size for batch in self._batches.values())
