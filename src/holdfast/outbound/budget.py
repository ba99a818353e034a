"""Retry budgets: limit the share of retries in the load on a service."""

import threading
import time
from collections.abc import Callable

from holdfast.core.errors import ConfigurationError


class RetryBudget:
    """A token bucket. Each call adds `ratio` tokens, each retry takes one; without a token a retry is not made.

    With the default, at most a fifth of the calls are retried, independent of how many fail. `per_second` tokens are
    added over time, for callers with few calls; the bucket holds at most `burst`. All callers of a service can share
    one budget, in all threads.
    """

    __slots__ = ("_burst", "_clock", "_lock", "_per_second", "_ratio", "_refilled_at", "_tokens")

    def __init__(
        self,
        ratio: float = 0.2,
        per_second: float = 1.0,
        burst: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (ratio >= 0 and per_second >= 0 and burst >= 1):
            raise ConfigurationError(
                f"retry budget of ratio {ratio!r}, per_second {per_second!r}, burst {burst!r}: give ratio and per_second of 0 or more, "
                "and burst of 1 or more"
            )
        self._ratio, self._per_second, self._burst, self._clock = ratio, per_second, burst, clock
        self._tokens, self._refilled_at = float(burst), clock()
        self._lock = threading.Lock()

    def called(self) -> None:
        """Records a call that is not a retry."""
        if self._tokens < self._burst:
            with self._lock:
                self._tokens = min(self._burst, self._tokens + self._ratio)

    def may_retry(self) -> bool:
        """Takes a token for one retry; false if there is none."""
        with self._lock:
            now = self._clock()
            added = (now - self._refilled_at) * self._per_second
            self._tokens, self._refilled_at = min(self._burst, self._tokens + added), now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
