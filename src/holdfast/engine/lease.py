"""A worker's lease: one small row, renewed from a thread with a connection of its own."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from holdfast.core.errors import HoldfastError
from holdfast.stores.protocol import Store
from holdfast.stores.worker import renew_worker

log = structlog.get_logger("holdfast.lease")

_RENEWALS = 4
_MARGIN = 0.8


class Lease(threading.Thread):
    """Renews a worker's row several times per lease, whatever the event loop is doing.

    `lost` is called once, from this thread, when the lease cannot be known to hold any more; the worker then stops
    its handlers before another worker may take their deliveries over.
    """

    def __init__(self, store: Store, worker: str, lease: timedelta, lost: Callable[[str], None]) -> None:
        super().__init__(name=f"holdfast-lease-{worker}", daemon=True)
        self._store, self._worker, self._lease, self._lost = store, worker, lease, lost
        self._seconds = lease.total_seconds()
        self._stopping = threading.Event()
        self._renewed_at = time.monotonic()
        self._contact_since: float | None = self._renewed_at

    @property
    def trusted(self) -> bool:
        """Whether this process had unbroken contact for one lease: only then may it call another one dead.

        After an outage of the database every worker's row looks expired; the others need time to renew theirs.
        """
        since = self._contact_since
        return since is not None and time.monotonic() - since >= self._seconds

    def run(self) -> None:
        while not self._stopping.wait(self._seconds / _RENEWALS):
            started = time.monotonic()
            try:
                renewed = self._store.run_sync(renew_worker(self._worker, self._lease))
            except HoldfastError as error:
                self._contact_since = None
                log.warning("lease renewal failed", worker=self._worker, error=str(error))
            else:
                if not renewed:
                    self._lost("its row is gone")
                    return
                self._renewed_at = started
                if self._contact_since is None:
                    self._contact_since = started
            # Time also passes inside a renewal that hangs, or while the process was stopped.
            if time.monotonic() - self._renewed_at > self._seconds * _MARGIN:
                self._contact_since = None
                if time.monotonic() - self._renewed_at > self._seconds:
                    self._lost(f"not renewed for {time.monotonic() - self._renewed_at:.1f} s")
                    return

    def stop(self) -> None:
        """Ends the thread; the row is left to the caller."""
        self._stopping.set()
