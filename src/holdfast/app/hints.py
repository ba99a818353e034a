"""Hints to the workers of other processes that something was committed; they shorten a poll and may be lost."""

import asyncio
import contextlib
from collections.abc import Callable

from holdfast.app.loop import running_loop
from holdfast.stores.protocol import Store

_CLOSE_SECONDS = 5


class CommitHints:
    """Sends hints without making a publisher wait: as tasks where an event loop runs."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._sending: set[asyncio.Future[None]] = set()

    def send(self) -> None:
        """Sends one; blocks only where no event loop runs."""
        if (loop := running_loop()) is None:
            self._store().hint_sync()
        else:
            hint = loop.create_task(self._store().hint())
            self._sending.add(hint)
            hint.add_done_callback(self._sent)

    async def drain(self) -> None:
        """Waits for those under way: one that came after the store was closed would open a connection that stays."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=_CLOSE_SECONDS)

    def _sent(self, hint: "asyncio.Future[None]") -> None:
        self._sending.discard(hint)
        if hint.cancelled():
            # The loop ends. It waits for threads, not for tasks; one that is closed does neither.
            with contextlib.suppress(RuntimeError):
                hint.get_loop().run_in_executor(None, self._store().hint_sync)
