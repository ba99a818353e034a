"""Hints: NOTIFY after a commit, for workers that wait. Seldom, and never for the last time before the last commit."""

import asyncio
import contextlib
import threading
import time

import psycopg

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.pool import AsyncPool, Pool
from holdfast.stores.postgres.watchdog import ResponseWatchdog

# In a transaction of its own: inside the publisher's it would take a global lock at commit. And not worth waiting for
# the disk: with the server the listeners are gone too, and look when they are back.
HINT = "select set_config('synchronous_commit', 'off', true), pg_notify(%s, '')"
_EVERY = 0.01
_LAST = 5.0


class Notifier:
    """Sends hints to one channel. Best effort: whoever misses one finds the work by polling."""

    def __init__(self, channel: str, pool: Pool, async_pool: AsyncPool, patience: ResponseWatchdog) -> None:
        self._channel, self._pool, self._async_pool, self._patience = channel, pool, async_pool, patience
        self._at = float("-inf")
        self._sending = self._again = False
        self._late: threading.Timer | None = None

    async def send(self) -> None:
        """Sends one now, or at the end of the pause after the last; nothing when one will be sent that is as good."""
        if (wait := self._due_in()) is None:
            return
        try:
            if wait:
                await asyncio.sleep(wait)
            await self._send()
        except asyncio.CancelledError:
            self._at = float("-inf")  # others counted on it
            raise

    def send_sync(self) -> None:
        """`send`, blocking; a late one is sent from a thread."""
        if (wait := self._due_in()) is None:
            return
        if wait:
            self._late = threading.Timer(wait, self._send_sync)
            self._late.start()
        else:
            self._send_sync()

    @property
    def late(self) -> bool:
        """Whether a thread has one still to send."""
        return self._late is not None and self._late.is_alive()

    def finish(self) -> None:
        """Waits for a late one: it would open a connection that nobody closes."""
        if self._late is not None:
            self._late.join(_LAST)

    async def _send(self) -> None:
        """One at a time, however slow the server is: the connections are for those who publish."""
        if self._sending:
            self._again = True
            return
        self._sending = True
        try:
            while True:
                self._again = False
                with contextlib.suppress(psycopg.Error, StoreUnavailable):
                    async with self._async_pool.connection() as connection:
                        with self._patience.watch(connection, _LAST):
                            await connection.execute(HINT, (self._channel,))
                if not self._again:
                    return
        finally:
            self._sending = False

    def _send_sync(self) -> None:
        with (
            contextlib.suppress(psycopg.Error, StoreUnavailable),
            self._pool.connection() as connection,
            self._patience.watch(connection, _LAST),
        ):
            connection.execute(HINT, (self._channel,))

    def _due_in(self) -> float | None:
        """In how many seconds to send one; none when one is on its way that leaves later than now.

        Needs no lock: of two threads that ask at the same time both may send one.
        """
        now = time.monotonic()
        if self._at > now:
            return None
        self._at = at = max(now, self._at + _EVERY)
        return at - now
