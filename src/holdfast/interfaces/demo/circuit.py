"""A circuit breaker, as small as it can be: each worker process has its own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import CircuitOpen


class Circuit:
    """Opens after `threshold` failures in a row. From then on one call per `cooldown` seconds looks whether the other
    side is back; all others raise `CircuitOpen`, so that their deliveries are parked and spend no attempt."""

    def __init__(self, name: str, threshold: int, cooldown: float) -> None:
        self._name, self._threshold, self._cooldown = name, threshold, cooldown
        self._failures, self._closed_to = 0, 0.0
        self._lock = threading.Lock()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Lets a call through, or raises `CircuitOpen` at once; watches how the call ends."""
        with self._lock:
            now = time.monotonic()
            if now < self._closed_to:
                raise CircuitOpen(self._name, until=self._closed_to - now)
            if self._failures >= self._threshold:
                self._closed_to = now + self._cooldown  # this call looks, the others wait for what it finds
        try:
            yield
        except OSError:
            with self._lock:
                self._failures += 1
                if self._failures >= self._threshold:
                    self._closed_to = time.monotonic() + self._cooldown
            raise
        with self._lock:
            self._failures, self._closed_to = 0, 0.0
