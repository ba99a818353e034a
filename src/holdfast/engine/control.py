"""What a worker is told from outside, through all of its lives."""

import asyncio
import contextlib
import random
from collections.abc import Callable


class WorkerControl:
    """What a worker is told from outside: there may be work, take no more, wait for nothing."""

    def __init__(self) -> None:
        self.wake, self.stop, self.force_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        """Take no more work."""
        self.stop.set()
        self.wake.set()

    async def woken(self, seconds: float) -> None:
        """Waits for a wake-up, about so long: twenty workers must not come back in the same instant."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wake.wait(), seconds * random.uniform(0.8, 1.2))  # noqa: S311


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], argument: str) -> None:
    """Calls a function in the loop from another thread; does nothing if the loop has ended meanwhile."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, argument)
