"""How many requests to one endpoint run at once and begin per second, in this process."""

import time
from collections.abc import Callable

_LONGEST_WAIT = 300.0
_LONGEST_GUESS = 30.0
_SHORTEST_WAIT = 0.05
_WEIGHT = 0.2


class RateLimiter:
    """Lets a delivery pass, or says when to come back.

    Those that must come back are told times one after the other, about as far apart as the endpoint takes them, so
    that a backlog does not run against a closed gate. A wait holds no slot of the worker.
    """

    def __init__(self, concurrency: int, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active = 0
        self._latency = 0.1
        self._free_at = self._tail = self._held_until = 0.0
        self.limit(concurrency, rate)

    def limit(self, concurrency: int, rate: float | None) -> None:
        """Sets the limits anew; `rate` is this process's part of them."""
        self._concurrency, self._gap = concurrency, 0.0 if rate is None else 1 / rate

    def hold(self, seconds: float) -> None:
        """Lets nothing pass for so long: the endpoint asked for it."""
        self._held_until = max(self._held_until, self._clock() + min(seconds, _LONGEST_WAIT))

    def enter(self) -> float:
        """Zero when the delivery passes, which `leave` must then end; else the seconds after which to come back."""
        now = self._clock()
        if now >= self._held_until and now >= self._free_at and self._active < self._concurrency:
            self._active += 1
            self._free_at = now + self._gap
            return 0.0
        guess = self._latency / self._concurrency
        begins = max(now, self._held_until, self._free_at, self._tail)
        # A rate and a hold are known; how long requests will take is a guess from those before.
        known = self._gap > guess or now < self._held_until
        self._tail = min(begins + max(self._gap, guess), now + (_LONGEST_WAIT if known else _LONGEST_GUESS))
        return max(self._tail - now, _SHORTEST_WAIT)

    def leave(self, seconds: float) -> None:
        """A delivery that passed has ended, after so long."""
        self._active -= 1
        self._latency += _WEIGHT * (seconds - self._latency)
