"""Renewal: while a request runs, its lease does not run out; when its process dies, it does, and soon.

One thread renews for all requests of a gate, awaiting and blocking ones alike. A handler that keeps the event loop to
itself cannot stop it.
"""

import os
import threading
import time
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.core.errors import StoreError
from holdfast.core.failures.report import report
from holdfast.idempotency.records import Records, Renew
from holdfast.stores.integrations.idempotency import Reservation

log = get_logger("holdfast.idempotency")


class Renewal:
    """Prolongs the leases of the requests it is told of, at most `limit` long each: then another may take over."""

    def __init__(self, records: Records, lease: timedelta, limit: timedelta) -> None:
        self._records, self._lease, self._limit = records, lease, limit.total_seconds()
        self._pause = lease.total_seconds() / 3
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._since: dict[Reservation, float] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def begin(self, held: Reservation) -> None:
        """Renews from now on."""
        if self._process != os.getpid():
            self._reset()  # a thread does not survive a fork, and the parent's requests are not ours
        with self._changed:
            self._since[held] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-idempotency", daemon=True)
                self._thread.start()

    def end(self, held: Reservation) -> None:
        """Renews no more."""
        with self._changed:
            self._since.pop(held, None)

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
                # A process that serves no more must not keep a thread for it.
                if idle > 10 and not self._since:
                    self._thread = None
                    return

    def _due(self) -> list[Reservation]:
        now = time.monotonic()
        with self._changed:
            return [held for held, since in self._since.items() if self._pause / 2 <= now - since <= self._limit]

    def _renew(self, due: list[Reservation]) -> None:
        try:
            # One that is not renewed has just ended, or is lost: completing it will tell.
            self._records.do_sync(Renew(due, self._lease))
        except StoreError as error:
            log.warning("key lease renewal failed", held=len(due), error=str(error))
        except Exception as error:  # noqa: BLE001
            # The thread must outlive it: others' leases depend on it.
            told = report(error)
            known = {"error": told.message, "error_type": told.type, "stack_trace": told.trace}
            log.error("key lease renewal failed", held=len(due), **known)
