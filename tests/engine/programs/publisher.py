"""Publishes numbered events in every way there is, each in a transaction with a business row of the same number.

Usage: python -m tests.engine.programs.publisher FIRST COUNT SEED [PAUSE]

Pauses so many seconds after each `CHUNK`. After COUNT it continues slowly until the test allows `enough`.

The result of a number is known afterwards: its business row is there if and only if its event is. Numbers that
were published with `conn=None` have no such row; they are noted in the file `attempted` before and in `accepted` after.
Rolled back ones are noted in `rolled_back`.
"""

import itertools
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from holdfast import Holdfast
from holdfast.core.errors import StoreError
from tests.engine.programs import crash, shop

CHUNK, TRICKLE = 250, 10
_BATCH = 40
_DOWN = (StoreError, psycopg.OperationalError, psycopg.InterfaceError, sqlite3.OperationalError)


class Publisher:
    """One producer. Waits out what is down, and repeats only what it has looked up and not found."""

    def __init__(self, dsn: str, directory: Path, chance: random.Random) -> None:
        self._dsn, self._directory, self._chance = dsn, directory, chance
        self._app = Holdfast(dsn)

    def publish(self, first: int, number: int) -> None:
        """Publishes the numbers from `first` on; rolls some of them back, as chance will have it."""
        left = list(range(first, first + number))
        while left:
            kind = self._chance.random()
            if kind < 0.5:
                some, left = left[:_BATCH], left[_BATCH:]
                self._persist(lambda some=some: self._in_transaction(some))  # type: ignore[misc]
            elif kind < 0.8:
                n = left.pop()
                self._persist(lambda n=n: self._in_transaction([n]))  # type: ignore[misc]
            elif kind < 0.95:
                n = left.pop()
                self.note("attempted", n)
                self._persist(lambda n=n: self._alone(n))  # type: ignore[misc]
                self.note("accepted", n)
            else:
                n = left.pop()
                self.note("rolled_back", n)
                self._persist(lambda n=n: self._rolled_back(n))  # type: ignore[misc]

    def note(self, file: str, n: int) -> None:
        with (self._directory / file).open("a") as notes:
            notes.write(f"{n}\n")

    def _persist(self, act: Callable[[], None]) -> None:
        while True:
            try:
                return act()
            except _DOWN:
                time.sleep(self._chance.uniform(0.05, 0.2))

    def _in_transaction(self, numbers: list[int]) -> None:
        with shop.transaction(self._dsn) as db:
            # After a lost reply to COMMIT this looks before it repeats.
            if db.execute(shop.spelled(self._dsn, "select 1 from business where n = ?"), (numbers[0],)).fetchone():
                return
            for n in numbers:
                db.execute(shop.spelled(self._dsn, "insert into business (n) values (?)"), (n,))
            if len(numbers) == 1:
                self._app.sync.publish(shop.type_of(numbers[0]), {"n": numbers[0]}, conn=db)
            else:
                self._app.sync.publish_many([(shop.type_of(n), {"n": n}) for n in numbers], conn=db)
            crash.point("order.uncommitted")
        crash.point("order.committed")

    def _alone(self, n: int) -> None:
        # The key makes it safe to publish again what may already be there.
        self._app.sync.publish(shop.type_of(n), {"n": n}, conn=None, key=f"n:{n}")

    def _rolled_back(self, n: int) -> None:
        try:
            with shop.transaction(self._dsn) as db:
                db.execute(shop.spelled(self._dsn, "insert into business (n) values (?)"), (n,))
                self._app.sync.publish(shop.type_of(n), {"n": n}, conn=db)
                raise _ThoughtBetter
        except _ThoughtBetter:
            return


class _ThoughtBetter(Exception):
    """The caller rolls back."""


def main(first: int, number: int, seed: int, pause: float = 0.0) -> None:
    crash.install()
    publisher = Publisher(os.environ["HOLDFAST_DSN"], crash.directory(), random.Random(seed))
    for start in range(first, first + number, CHUNK):
        publisher.publish(start, CHUNK)
        time.sleep(pause)
    (crash.directory() / "markers" / "published").touch()
    for start in itertools.count(first + number, TRICKLE):
        if crash.allowed("enough"):
            return
        publisher.publish(start, TRICKLE)
        time.sleep(0.2)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
