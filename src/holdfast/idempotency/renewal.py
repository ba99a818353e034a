"""Renews the leases of running requests. After a crash they are not renewed, and expire soon.

One thread renews for all requests of an engine, async and blocking. So a handler that blocks the event loop does not lose
its lease.
"""

import os
import threading
import time
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.core.errors import StoreError
from holdfast.core.failures.report import report
from holdfast.idempotency.records import Records, RenewKeys
from holdfast.stores.integrations.idempotency import Reservation

log = get_logger("holdfast.idempotency")


class Renewal:
    """Extends the leases of running requests, each for at most `limit`; then another request may take over."""

    def __init__(self, records: Records, lease: timedelta, limit: timedelta) -> None:
        self._records, self._lease, self._limit = records, lease, limit.total_seconds()
        self._pause = lease.total_seconds() / 3
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._since: dict[Reservation, float] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def begin(self, reservation: Reservation) -> None:
        """Starts renewing a reservation."""
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork, and the parent's requests are not ours
        with self._changed:
            self._since[reservation] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-idempotency", daemon=True)
                self._thread.start()

    def end(self, reservation: Reservation) -> None:
        """Stops renewing a reservation."""
        with self._changed:
            self._since.pop(reservation, None)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(self._pause)
            due = self._due()
            if due:
                idle = 0
                self._renew(due)
                continue
            idle += 1
            with self._changed:
                # An idle process keeps no thread.
                if idle > 10 and not self._since:
                    self._thread = None
                    return

    def _due(self) -> list[Reservation]:
        now = time.monotonic()
        with self._changed:
            return [
                reservation
                for reservation, since in self._since.items()
                if self._pause / 2 <= now - since <= self._limit
            ]

    def _renew(self, due: list[Reservation]) -> None:
        try:
            # A lease that is not renewed has just ended or is lost; completing the request detects that.
            self._records.do_sync(RenewKeys(due, self._lease))
        except StoreError as error:
            log.warning("idempotency lease renewal failed", requests=len(due), error=str(error))
        except Exception as error:  # noqa: BLE001
            # The thread must continue: the leases of other requests depend on it.
            details = report(error)
            fields = {"error": details.message, "error_type": details.type, "stack_trace": details.trace}
            log.error("idempotency lease renewal failed", requests=len(due), **fields)
