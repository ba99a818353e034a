"""A worker's lease: one small row, renewed from a separate thread and connection."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.stores.deliveries.worker import renew_and_read
from holdfast.stores.protocol import Store

log = get_logger("holdfast.lease")

_RENEWALS = 4
_RETRIES = 20
_HOLDS_FOR = 0.9
_BREAK = 0.5


class Lease(threading.Thread):
    """Renews a worker's row several times per lease, even while the event loop is blocked.

    `gone` is called once, from this thread, when the lease had expired before it was renewed, or its row no longer exists.
    The worker watches `left` to know whether the lease is still valid: a renewal that hangs cannot report it. `cancelled`
    gets the runs of the worker that were cancelled, as JSON text, also from this thread.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        lease: timedelta,
        gone: Callable[[], None],
        started_at: float | None = None,
        cancelled: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(name=f"holdfast-lease-{worker}", daemon=True)
        self._store, self._worker, self._lease, self._gone = store, worker, lease, gone
        self._cancelled = cancelled
        self._seconds = lease.total_seconds()
        self._stopping = threading.Event()
        self._renewed_at = time.monotonic() if started_at is None else started_at
        self._contact_since: float | None = self._renewed_at
        self._valid_since = self._renewed_at

    @property
    def valid_until(self) -> float:
        """The lease is valid at least until this monotonic time; a tenth of it is reserved to stop the handlers."""
        return self._renewed_at + _HOLDS_FOR * self._seconds

    @property
    def left(self) -> float:
        """Seconds for which the lease is valid at least."""
        return self.valid_until - time.monotonic()

    async def over(self) -> None:
        """Returns when the lease may be over, even if a renewal hangs."""
        while (left := self.left) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)

    def held_since(self, moment: float) -> bool:
        """Whether the lease has been valid since this time of the monotonic clock."""
        return self._valid_since <= moment and self.left > 0

    @property
    def trusted_in(self) -> float:
        """Seconds until this process may treat another worker as dead: after half a lease of uninterrupted contact; 0 if it may now.

        After an outage the rows of living workers may look expired. They renew within half a lease: a renewal is due every
        quarter of a lease, one that hangs is cancelled after another quarter, and a failed one is repeated every twentieth.
        """
        now, since = time.monotonic(), self._contact_since
        if since is None or now - self._renewed_at > _BREAK * self._seconds:
            return _BREAK * self._seconds
        return max(0.0, since + _BREAK * self._seconds - now)

    def run(self) -> None:
        pause: float | None = self._seconds / _RENEWALS
        while pause is not None and not self._stopping.wait(pause):
            pause = self.renew()

    def renew(self) -> float | None:
        """Renews the lease once; returns the seconds until the next renewal, None if the lease is lost."""
        started = time.monotonic()
        try:
            renewed, cancelled = self._store.run_sync(renew_and_read(self._worker, self._lease))
        except Exception as error:  # noqa: BLE001
            # Every error: if this thread ended, the worker would continue without a lease.
            self._contact_since = None
            log.warning("lease renewal failed", worker=self._worker, error=str(error))
            return self._seconds / _RETRIES
        # A late reply, as after a suspension: the store may have renewed the lease after another worker took over.
        if not renewed or time.monotonic() - self._renewed_at > self._seconds:
            if not self._stopping.is_set():
                self._gone()
            return None
        if self._contact_since is None:
            log.info("lease renewal resumed", worker=self._worker)
        # A process that was suspended had no contact during that time.
        if self._contact_since is None or started - self._renewed_at > _BREAK * self._seconds:
            self._contact_since = started
        # The time before the query. The store's lease starts later, so this worker stops before the lease expires.
        self._renewed_at = started
        if cancelled is not None:
            self._cancelled(cancelled)
        return self._seconds / _RENEWALS

    def stop(self) -> None:
        """Ends the thread. The caller removes the row."""
        self._stopping.set()
