"""Detects commits on connections without a commit hook, by polling for the message on a separate connection."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, SchemaMismatch, StoreUnavailable
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages_with

log = get_logger("holdfast.reaction")

_SHORTEST, _LONGEST = 0.005, 1.0
_GIVEN_UP_AFTER = 600.0
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    call: Callable[[], None]
    loop: asyncio.AbstractEventLoop | None
    until: float


class CommitWatch:
    """Calls a function once a message is committed, and never if it is rolled back.

    The call runs in the event loop in which the message was published, or in a thread if there was none. One thread polls
    for all messages, and ends when none is left.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[UUID, _Waiting] = {}
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, message: UUID, call: Callable[[], None]) -> None:
        """Calls `call` once the message is committed. A message that is not committed within ten minutes counts as rolled back."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._change:
            if len(self._waiting) >= _MOST:
                log.warning("reactions dropped", count=1, reason="too many open transactions", event_id=str(message))
                return
            self._waiting[message] = _Waiting(call, loop, time.monotonic() + _GIVEN_UP_AFTER)
            self._change.notify()
            if self._thread is None or not self._thread.is_alive():
                # Not a daemon: the reactions of a program that commits and exits still run.
                self._thread = threading.Thread(target=self._watch, name="holdfast-commits")
                self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def finish(self) -> None:
        """Polls once more and discards the rest, before the store is closed."""
        self._poll()
        with self._change:
            self._waiting.clear()
            self._change.notify()

    def _watch(self) -> None:
        pause = _SHORTEST
        while True:
            ending = not threading.main_thread().is_alive()
            found = self._poll()
            with self._change:
                if found is None or ending:
                    self._waiting.clear()
                if not self._waiting:
                    self._thread = None
                    return
                pause = _SHORTEST if found or self._change.wait(pause) else min(pause * 2, _LONGEST)

    def _poll(self) -> int | None:
        """Calls back for committed messages and returns their number; None if the store can no longer be queried."""
        with self._change:
            ids = list(self._waiting)
        try:
            committed = self._store.run_sync(messages_with(ids))
        except (StoreUnavailable, SchemaMismatch):
            # On SQLite the transaction may still create the tables.
            return 0
        except HoldfastError as error:
            log.error("reactions dropped", count=len(ids), error=str(error))
            return None
        now = time.monotonic()
        with self._change:
            ready = [self._waiting.pop(id) for id in ids if id in committed and id in self._waiting]
            for id in [id for id, one in self._waiting.items() if one.until < now]:
                del self._waiting[id]
        for one in ready:
            _call(one)
        return len(ready)


def _call(waiting: _Waiting) -> None:
    if waiting.loop is not None and waiting.loop.is_running():
        waiting.loop.call_soon_threadsafe(waiting.call)
    else:
        waiting.call()
