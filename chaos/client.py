"""The client of the lab: submits numbered items of each load, and repeats under the same key what was not answered.

Usage: python -m chaos.client

An item is noted as attempted before it is sent and as accepted after the answer. One that is attempted and not accepted
is in doubt, because this process was killed: it may be applied once or never.
"""

import http.client
import itertools
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from chaos.application import build, spelled, transaction
from chaos.journal import ACCEPTED, ATTEMPTED, HOLD, ROLLED_BACK, Journal
from holdfast.core.errors import StoreError

PUBLISHED = ("work", "complete", "webhooks", "relay", "rebuild", "limits")
"""Loads that are one publication each."""
_UNAVAILABLE = (StoreError, psycopg.Error, sqlite3.Error, http.client.HTTPException, OSError)
_HTTP_SECONDS = 5.0


class _RolledBack(Exception):
    """The caller rolls its transaction back."""


class Client:
    """One process with a thread for each load."""

    def __init__(self, dsn: str, loads: tuple[str, ...], journal: Journal, interval: float) -> None:
        self._dsn, self._loads, self._journal, self._interval = dsn, loads, journal, interval
        self._app, self._workflow = build(dsn, (), journal)
        self._port = int(os.environ.get("CHAOS_HTTP_PORT", "0"))
        self._numbers = itertools.count()

    def run(self) -> None:
        submit: dict[str, Callable[[str], None]] = {name: self._publisher(name) for name in PUBLISHED}
        submit |= {"publish": self._publish, "workflows": self._start_run, "http": self._post}
        threads = [
            threading.Thread(target=self._produce, args=(name, submit[name]), daemon=True)
            for name in self._loads
            if name in submit
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _produce(self, load: str, submit: Callable[[str], None]) -> None:
        """Submits items while a window is open."""
        while True:
            window = self._journal.window
            if window == HOLD:
                self._journal.mark_idle(load)
                time.sleep(0.05)
                continue
            item = f"{window}.{os.getpid()}.{next(self._numbers)}"
            self._journal.write(ATTEMPTED, load, item)
            self._persist(submit, item)
            self._journal.write(ACCEPTED, load, item)
            time.sleep(self._interval * random.uniform(0.5, 1.5))

    def _persist(self, submit: Callable[[str], None], item: str) -> None:
        while True:
            try:
                return submit(item)
            except _UNAVAILABLE:
                time.sleep(random.uniform(0.1, 0.3))

    def _publisher(self, load: str) -> Callable[[str], None]:
        def publish(item: str) -> None:
            self._app.sync.publish(f"chaos.{load}", {"item": item}, conn=None, key=item)

        return publish

    def _publish(self, item: str) -> None:
        """In a transaction with a business row, after another one that is rolled back."""
        self._journal.write(ROLLED_BACK, "publish", f"{item}r")
        try:
            with transaction(self._dsn) as db:
                self._write_business(db, f"{item}r")
                raise _RolledBack
        except _RolledBack:
            pass
        with transaction(self._dsn) as db:
            # After a lost reply to COMMIT this looks before it repeats.
            if not db.execute(spelled(self._dsn, "select 1 from chaos_business where item = ?"), (item,)).fetchone():
                self._write_business(db, item)

    def _write_business(self, db: Any, item: str) -> None:
        db.execute(spelled(self._dsn, "insert into chaos_business (item) values (?)"), (item,))
        self._app.sync.publish("chaos.publish", {"item": item}, conn=db)

    def _start_run(self, item: str) -> None:
        self._workflow.using(key=item, conn=None).sync.start(item)

    def _post(self, item: str) -> None:
        """Repeats the request under its key until the response is final."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_HTTP_SECONDS)
        try:
            connection.request("POST", "/orders", item.encode(), {"Idempotency-Key": item})
            response = connection.getresponse()
            response.read()
        finally:
            connection.close()
        if response.status != 201:
            raise http.client.HTTPException(f"status {response.status}")


if __name__ == "__main__":
    Client(
        os.environ["HOLDFAST_DSN"],
        tuple(os.environ["CHAOS_LOADS"].split(",")),
        Journal.from_environment(),
        float(os.environ["CHAOS_INTERVAL"]),
    ).run()
