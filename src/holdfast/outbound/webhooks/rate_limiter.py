"""Limits the concurrency and the rate of requests to one endpoint, in this process."""

import time
from collections.abc import Callable

_LONGEST_WAIT = 300.0
_LONGEST_ESTIMATE = 30.0
_SHORTEST_WAIT = 0.05
_WEIGHT = 0.2


class RateLimiter:
    """Admits a delivery, or returns when to try again.

    Deliveries that must wait get increasing times, spaced by the rate at which the endpoint accepts requests, so that a
    backlog does not retry all at once. A wait does not occupy a slot of the worker.
    """

    def __init__(self, concurrency: int, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active = 0
        self._latency = 0.1
        self._free_at = self._tail = self._held_until = 0.0
        self.limit(concurrency, rate)

    def limit(self, concurrency: int, rate: float | None) -> None:
        """Sets the limits; `rate` is the share of this process."""
        self._concurrency, self._gap = concurrency, 0.0 if rate is None else 1 / rate

    def hold(self, seconds: float) -> None:
        """Admits nothing for this many seconds, as the endpoint requested."""
        self._held_until = max(self._held_until, self._clock() + min(seconds, _LONGEST_WAIT))

    def enter(self) -> float:
        """Returns 0 if the delivery is admitted (then call `leave`), else the seconds to wait."""
        now = self._clock()
        if now >= self._held_until and now >= self._free_at and self._active < self._concurrency:
            self._active += 1
            self._free_at = now + self._gap
            return 0.0
        estimate = self._latency / self._concurrency
        begins = max(now, self._held_until, self._free_at, self._tail)
        # A rate and a hold are exact; the duration of a request is estimated from earlier ones.
        known = self._gap > estimate or now < self._held_until
        self._tail = min(begins + max(self._gap, estimate), now + (_LONGEST_WAIT if known else _LONGEST_ESTIMATE))
        return max(self._tail - now, _SHORTEST_WAIT)

    def leave(self, seconds: float) -> None:
        """Records the end of an admitted delivery and its duration."""
        self._active -= 1
        self._latency += _WEIGHT * (seconds - self._latency)
