"""Notifies workers that a transaction committed. A notification shortens a poll, and may be lost."""

import asyncio
import contextlib

from holdfast.engine.worker.worker import Worker
from holdfast.runtime.completion import CompletionWatcher
from holdfast.runtime.loop import running_loop
from holdfast.stores.protocol import Store, Topic

_CLOSE_SECONDS = 0.25


class CommitNotifier:
    """Wakes the workers of this process, and sends a notification to others without blocking an event loop."""

    def __init__(self, store: Store, completions: CompletionWatcher) -> None:
        self._store, self._completions = store, completions
        self._announces = False
        self._sending: set[asyncio.Future[None]] = set()
        self.workers: set[Worker] = set()
        """The workers that run in this process."""

    def notify(self) -> None:
        """Blocks only if no event loop runs in this thread."""
        for worker in list(self.workers):
            worker.wake()
        if (loop := running_loop()) is None:
            self._store.hint_sync()
        elif not self._store.hint_is_scheduled():  # a task takes longer than to ask
            self._send(loop.create_task(self._store.hint()))

    def announce_result(self) -> None:
        """Wakes the callers that wait for results, here and in other processes; once for all calls of a turn of the loop."""
        if not self._announces:
            self._announces = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._announces = False
        self._completions.wake()
        self._send(asyncio.get_running_loop().create_task(self._store.hint(Topic.RESULTS)))

    def _send(self, hint: "asyncio.Task[None]") -> None:
        self._sending.add(hint)
        hint.add_done_callback(self._sent)

    async def drain(self) -> None:
        """Waits shortly for notifications in progress, and cancels the others.

        After the store is closed, a notification would open a connection that stays open. A silent server must not
        delay the end of the process: without a notification a worker finds the work by polling.
        """
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=_CLOSE_SECONDS)
            for hint in late:
                hint.remove_done_callback(self._sent)
                hint.cancel()

    def _sent(self, hint: "asyncio.Future[None]") -> None:
        self._sending.discard(hint)
        if hint.cancelled():
            # The loop is ending. It waits for threads, not for tasks; a closed loop waits for neither.
            with contextlib.suppress(RuntimeError):
                hint.get_loop().run_in_executor(None, self._store.hint_sync)
