"""Retry budgets: retries may add a part to a downstream's load, they cannot multiply it."""

import threading
import time
from collections.abc import Callable

from holdfast.core.errors import ConfigurationError


class RetryBudget:
    """A bucket of tokens. Each call adds `ratio`, each retry takes one; a retry that finds none is not made.

    So with the default a fifth of the calls may be retried, however many fail. `per_second` tokens come by
    themselves, for those who call seldom, and no more than `burst` are kept. One budget may be shared by all who call
    the same service, in all threads.
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
                f"retry budget of ratio {ratio!r}, per_second {per_second!r}, burst {burst!r}: give numbers from 0, "
                "and a burst from 1"
            )
        self._ratio, self._per_second, self._burst, self._clock = ratio, per_second, burst, clock
        self._tokens, self._refilled_at = float(burst), clock()
        self._lock = threading.Lock()

    def called(self) -> None:
        """Notes a call that is no retry."""
        if self._tokens < self._burst:
            with self._lock:
                self._tokens = min(self._burst, self._tokens + self._ratio)

    def may_retry(self) -> bool:
        """Takes a token for one retry; false when there is none."""
        with self._lock:
            now = self._clock()
            came = (now - self._refilled_at) * self._per_second
            self._tokens, self._refilled_at = min(self._burst, self._tokens + came), now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
