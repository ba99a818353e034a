"""Limits the concurrent requests to one endpoint, in this process."""

import time
from collections.abc import Callable

_LONGEST_WAIT = 300.0
_LONGEST_ESTIMATE = 30.0
_SHORTEST_WAIT = 0.05
_WEIGHT = 0.2


class ConcurrencyLimiter:
    """Admits a delivery, or returns when to try again.

    Deliveries that must wait get increasing times, spaced by the time that the endpoint takes for requests, so that a
    backlog does not retry all at once. A wait does not occupy a slot of the worker.
    """

    def __init__(self, concurrency: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active = 0
        self._latency = 0.1
        self._tail = self._held_until = 0.0
        self.concurrency = concurrency

    def hold(self, seconds: float) -> None:
        """Admits nothing for this many seconds, as the endpoint requested."""
        self._held_until = max(self._held_until, self._clock() + min(seconds, _LONGEST_WAIT))

    def enter(self) -> float:
        """Returns 0 if the delivery is admitted (then call `leave`), else the seconds to wait."""
        now = self._clock()
        if now >= self._held_until and self._active < self.concurrency:
            self._active += 1
            return 0.0
        begins = max(now, self._held_until, self._tail)
        # A hold is exact; the duration of a request is estimated from earlier ones.
        longest = _LONGEST_WAIT if now < self._held_until else _LONGEST_ESTIMATE
        self._tail = min(begins + self._latency / self.concurrency, now + longest)
        return max(self._tail - now, _SHORTEST_WAIT)

    def leave(self, seconds: float) -> None:
        """Records the end of an admitted delivery and its duration."""
        self._active -= 1
        self._latency += _WEIGHT * (seconds - self._latency)
