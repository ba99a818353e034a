"""Floors of lanes: where a count of pending deliveries starts while an old snapshot keeps dead rows.

PostgreSQL removes no dead row that an old snapshot may see, and the index entries of finished deliveries stay at the head
of their lane. A count from the start of a lane reads all of them. A process that counts repeatedly remembers where the
oldest pending delivery was and starts shortly before it.

A floor is a hint. A delivery below it, from a transaction that was open for long, is found when all lanes are read from
their start, which is repeated after a multiple of its cost.
"""

from collections.abc import Sequence
from datetime import timedelta

from holdfast.core.query_interval import next_query
from holdfast.stores.deliveries.claim import Lane

_CHEAP = 0.01
"""A count is expensive if it takes this many seconds longer than two round trips."""
_PER_ROW = 1e-6
"""Seconds that a count may take for each delivery that it counts."""
_COST_FACTOR, _LONGEST = 100.0, 30.0
"""All lanes are counted from their start after this multiple of its cost, and after this many seconds at the latest."""
_MARGIN, _LEAST_MARGIN = timedelta(seconds=10), timedelta(seconds=1)
"""How far below a floor a count starts. Halved, down to the second value, while such counts are expensive."""


class LaneFloors:
    """The floors that one process knows of the lanes of one store. No I/O and no clock: the caller passes the time."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, str, int, int], Lane] | None = None
        self._whole_at = float("-inf")
        self._margin = _MARGIN
        self.round_trip = float("inf")
        """Seconds that the fastest query took; infinite before one was measured."""

    def known(self, now: float) -> list[Lane] | None:
        """The lanes with the floors to count from.

        Empty: all lanes are read from their start, and their floors are learned. None: that is cheap, without floors.
        """
        if self._floors is None:
            return None
        if now >= self._whole_at:
            return []
        return [lane._replace(floor_at=lane.floor_at - self._margin) for lane in self._floors.values()]

    def counted(
        self, known: Sequence[Lane] | None, found: Sequence[Lane], rows: int, started: float, ended: float
    ) -> None:
        """Records what a count with the lanes `known` found, and its duration. It counted `rows` deliveries."""
        cost = ended - started - _PER_ROW * rows
        self.round_trip = min(self.round_trip, ended - started)
        expensive = cost > _CHEAP + 2 * self.round_trip
        if known is None or (not known and not expensive):
            self._floors, self._whole_at = ({} if expensive else None), float("-inf")
            return
        if not known:
            self._whole_at = next_query(started, ended, factor=_COST_FACTOR, longest=_LONGEST)
            self._margin = _MARGIN
        elif expensive:
            self._margin = max(_LEAST_MARGIN, self._margin / 2)
        # A lane that is not found again keeps its floor: there may be dead rows before it.
        self._floors = (self._floors or {}) | {lane[:4]: lane for lane in found}
