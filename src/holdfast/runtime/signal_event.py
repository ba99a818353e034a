"""An event that a handler of `signal.signal` may set."""

import time

_STEP = 0.05


class SignalEvent:
    """A `threading.Event` for signal handlers.

    `threading.Event.set` takes a lock. A handler runs between two instructions of the main thread, which may hold that
    lock in `wait`; both would then wait for each other forever.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Returns whether the event is set, after `seconds` at most; a signal is noticed within 50 ms."""
        deadline = time.monotonic() + seconds
        while not self._is_set and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _STEP))
        return self._is_set
