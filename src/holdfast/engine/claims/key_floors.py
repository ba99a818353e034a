"""The keys that a worker knows of a lane, each with a time below which a walk does not read its deliveries.

Under a long-held snapshot, each delivery that ran leaves an entry in front of the others of its key. A floor keeps walks away
from them. It is a hint: a delivery below it, such as one that a stopping worker released or that was published in a
transaction of more than a second, is found when the floors are dropped. That happens after a multiple of what it costs to
read the keys without floors. They are used only while that is expensive. Ordered keys have no floors: a delivery that returns
or commits below one would be overtaken.
"""

from bisect import bisect_right, insort
from datetime import datetime, timedelta

from holdfast.engine.claims.scheduler import COST_FACTOR, LONGEST_DELAY
from holdfast.stores.deliveries.flow import FlowClaim, KeyFloor

COMMIT = timedelta(seconds=1)
"""`run_at` is the start of the publisher's transaction. No floor is less than this before the time of a claim."""
_EXPENSIVE, _EXPENSIVE_KEY = 0.005, 0.0001
"""A walk that takes more seconds than this, in total and per key, is assumed to read dead rows."""
_MOST = 10_000


class KeyFloors:
    """Floors of keys; pure like the scheduler, so the caller passes the time."""

    def __init__(self) -> None:
        self._used = False
        self._keys: list[str] = []
        self._floors: dict[str, datetime] = {}
        self._drop_at: float | None = None
        self._cost = 0.0

    def after(self, cursor: str, count: int, now: float) -> tuple[KeyFloor, ...] | None:
        """Up to `count` known keys in the order of a walk that starts after `cursor`; None if floors are not needed."""
        if not self._used:
            return None
        if self._drop_at is not None and now >= self._drop_at:
            self._keys, self._floors, self._drop_at, self._cost = [], {}, None, 0.0
        start = bisect_right(self._keys, cursor)
        chosen = self._keys[start : start + count]
        chosen += self._keys[: min(start, count - len(chosen))]
        return tuple((key, self._floors[key]) for key in chosen)

    def learn(self, found: FlowClaim, started: float, ended: float) -> None:
        """Stores the floors of the keys that a walk has visited.

        A walk that knew none of its keys shows the cost without floors.
        """
        cost = ended - started
        unknown = self._store(found)
        if found.keys and unknown >= len(found.visited):
            self._used = cost > _EXPENSIVE and cost / found.keys > _EXPENSIVE_KEY
        if unknown:
            begun = ended if self._drop_at is None else self._drop_at - self._delay
            self._cost += cost * unknown / len(found.visited)
            self._drop_at = begun + self._delay

    def _store(self, found: FlowClaim) -> int:
        """Returns how many of the keys were not known."""
        unknown = 0
        for key, first in found.visited:
            assert found.at is not None
            highest = found.at - COMMIT
            if key not in self._floors:
                if len(self._keys) >= _MOST:
                    continue
                unknown += 1
                insort(self._keys, key)
                self._floors[key] = highest
            if first is not None:
                self._floors[key] = min(first, highest)
        return unknown

    @property
    def _delay(self) -> float:
        return min(LONGEST_DELAY, COST_FACTOR * self._cost)
