"""How other code controls a worker: wake, stop, force stop."""

import asyncio
import contextlib
import random
from collections.abc import Callable


class WorkerControl:
    """The events that control all sessions of a worker: `wake` (there may be work), `stop` (claim no more) and `force_stop`
    (do not wait for handlers)."""

    def __init__(self) -> None:
        self.wake, self.stop, self.force_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        """Stops claiming."""
        self.stop.set()
        self.wake.set()

    async def woken(self, seconds: float) -> None:
        """Waits for a wake-up, at most about this long; the jitter keeps many workers from polling at the same time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wake.wait(), seconds * random.uniform(0.8, 1.2))  # noqa: S311


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], argument: str) -> None:
    """Calls a function in the loop from another thread; does nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, argument)
