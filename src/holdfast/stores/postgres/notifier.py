"""Wake-up notifications: a rate-limited NOTIFY after a commit. The last commit is always followed by one."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import psycopg

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.pool import AsyncPool, Pool
from holdfast.stores.postgres.prepared_statement import PreparedPsycopg
from holdfast.stores.postgres.watchdog import ResponseWatchdog

# In a separate transaction: in the publisher's transaction it would take a global lock at commit. It does not wait for
# the disk: after a crash of the server the listeners reconnect and poll anyway.
HINT = "select set_config('synchronous_commit', 'off', true), pg_notify(%s, '')"
_EVERY = 0.01
_LAST = 5.0


class Notifier:
    """Sends notifications to one channel. Best effort: a worker that misses one finds the work by polling."""

    def __init__(self, channel: str, pool: Pool, async_pool: AsyncPool, patience: ResponseWatchdog) -> None:
        self._channel, self._pool, self._async_pool, self._patience = channel, pool, async_pool, patience
        self._at = float("-inf")
        self._sending = self._again = False
        self._late: threading.Timer | None = None

    async def send(self) -> None:
        """Sends one now or when the minimum interval is over; does nothing if a later one is already scheduled."""
        if (wait := self._due_in()) is None:
            return
        try:
            if wait:
                await asyncio.sleep(wait)
            await self._send()
        except asyncio.CancelledError:
            self._at = float("-inf")  # other callers relied on this one
            raise

    def send_sync(self) -> None:
        """`send`, blocking; a delayed one is sent from a thread."""
        if (wait := self._due_in()) is None:
            return
        if wait:
            self._late = threading.Timer(wait, self._send_sync)
            self._late.start()
        else:
            self._send_sync()

    @property
    def scheduled(self) -> bool:
        """Whether one will be sent later, after all commits so far."""
        return self._at > time.monotonic()

    @property
    def late(self) -> bool:
        """Whether a thread still has to send one."""
        return self._late is not None and self._late.is_alive()

    def finish(self) -> None:
        """Waits for a delayed notification: once the pool is closed, it would leak a connection."""
        if self._late is not None:
            self._late.join(_LAST)

    async def _send(self) -> None:
        """Sends one at a time even if the server is slow, because publishers need the connections."""
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
                            await self._notify(connection)
                if not self._again:
                    return
        finally:
            self._sending = False

    async def _notify(self, connection: Any) -> None:
        if connection.prepared_calls is None:
            await connection.execute(HINT, (self._channel,))
        else:
            await PreparedPsycopg(connection, connection.prepared_calls).run(HINT.replace("%s", "$1"), [self._channel])

    def _send_sync(self) -> None:
        with (
            contextlib.suppress(psycopg.Error, StoreUnavailable),
            self._pool.connection() as connection,
            self._patience.watch(connection, _LAST),
        ):
            connection.execute(HINT, (self._channel,))

    def _due_in(self) -> float | None:
        """Seconds until the next notification may be sent; None when a later one is already scheduled.

        Needs no lock: two concurrent threads may both send one, which is harmless.
        """
        if self.scheduled:
            return None
        now = time.monotonic()
        self._at = at = max(now, self._at + _EVERY)
        return at - now
