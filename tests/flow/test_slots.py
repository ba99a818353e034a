"""No slot leaks: after many kills the limits are reached again within one lease, and every delivery ends."""

import asyncio
import os
import random
import time
from collections import Counter

import pytest

from holdfast import Holdfast
from tests.engine.programs.place import until
from tests.flow import worker
from tests.flow.log import Database
from tests.flow.oracle import Oracle, Promise

KEYS = 6
BACKLOG = 120
LEASE = 2.0
KILLS = int(os.environ.get("FLOW_KILLS", "500"))
PROMISES = {"held_all": Promise(limit=4), "held_key": Promise(limit=2, limit_by_key=True)}
RENEWALS = 2
"""A worker renews its lease every quarter, and after half a lease of contact it takes over what has expired."""


@pytest.mark.timeout(570)
@pytest.mark.parametrize(
    "kills", [pytest.param(4, marks=pytest.mark.long), pytest.param(KILLS, marks=pytest.mark.soak)], ids=str
)
async def test_limits_are_reached_again_within_one_lease(dsn: str, kills: int) -> None:
    """In three parts that do not depend on the speed of the machine: the leases of the dead end within one lease, those
    who work on take them over before they have renewed their own a third time, and then every limit is reached."""
    database, hf = Database(dsn), worker.build(dsn)
    database.install()
    chance, dead, slots = random.Random(1), set[int | None](), Slots(database)
    async with worker.Workers(dsn, slots=6, lease=LEASE, quarantine=kills > 10) as workers:
        await workers.registered(database)
        published = await refill(hf, database, 0)
        for number in range(kills):
            if number == kills - 1:
                # A worker that has just started does not know whether the others are dead or out of contact.
                await Renewals(database, {process.pid for process in workers.processes}).more_than(RENEWALS)
            ends = time.monotonic() + 60
            # A worker that holds nothing leaves no slot behind.
            while not (holders := slots.holders() & {process.pid for process in workers.processes}):
                assert time.monotonic() < ends, "no worker holds a delivery"
                published = await refill(hf, database, published)
                await asyncio.sleep(0.01)
            dead.add(await asyncio.to_thread(workers.replace, chance, holders))
        started = time.monotonic()
        assert slots.longest_lease(dead) <= LEASE
        await slots.taken_over(dead, Renewals(database, {process.pid for process in workers.processes[:-1]}))
        freed = time.monotonic() - started
        missing = {("held_all", ""), *(("held_key", f"k{n}") for n in range(KEYS))}
        while slots.still_missing(dead, missing):
            assert time.monotonic() < started + freed + 60, f"limits that are not reached: {missing}"
            published = await refill(hf, database, published)
            await asyncio.sleep(0.01)
        took = time.monotonic() - started
        await asyncio.to_thread(until, lambda: not unfinished(database), "it does not end", 60 + kills / 5)
    await hf.close()
    oracle = Oracle(PROMISES).read(database.records())
    print(f"{kills} kills, {sum(oracle.claims.values())} claims, free after {freed:.2f} s, full after {took:.2f} s")
    assert oracle.violations == []
    assert database.sql("select count(*) from {hf}delivery where locked_by is not null") == [(0,)]


class Slots:
    """The deliveries in flight, by the process that holds them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now = "(julianday('now') - 2440587.5) * 86400000" if database.on_sqlite else "clock_timestamp()"
        self._seconds = "({}) / 1000.0" if database.on_sqlite else "extract(epoch from {})"

    def holders(self) -> set[int | None]:
        return {pid for pid, _, _ in self._running()}

    def longest_lease(self, dead: set[int | None]) -> float:
        """The seconds until the last delivery of dead workers can be taken over."""
        return max((left for pid, _, left in self._running() if pid in dead), default=0.0)

    async def taken_over(self, dead: set[int | None], renewed: "Renewals") -> None:
        """Waits until dead workers hold nothing; fails if the others renewed their leases too often in the meantime."""
        while held := [(key, left) for pid, key, left in self._running() if pid in dead]:
            if max(left for _, left in held) < 0:
                assert renewed.least() <= RENEWALS, f"not taken over: {held}"
            await asyncio.sleep(0.01)

    def still_missing(self, dead: set[int | None], missing: set[tuple[str, str]]) -> bool:
        """Removes the limits, with their keys, that deliveries of other workers than the dead use up at this moment."""
        running = [(consumer, own) for pid, (consumer, own), _ in self._running() if pid not in dead]
        held = Counter((consumer, key) for consumer, own in running for key in {"", own})
        missing -= {limit for limit in missing if held[limit] >= (PROMISES[limit[0]].limit or 0)}
        return bool(missing)

    def _running(self) -> list[tuple[int, tuple[str, str], float]]:
        """The process, the consumer with the key, and the seconds that the later of the two leases is valid."""
        later = "max(d.lease_until, coalesce(w.alive_until, 0))"
        if not self._database.on_sqlite:
            later = "greatest(d.lease_until, w.alive_until)"
        rows = self._database.sql(
            f"select d.locked_by, d.consumer, d.flow_key, {self._seconds.format(f'{later} - {self._now}')} "
            "from {hf}delivery d left join {hf}worker w on w.id = d.locked_by where d.status = 'in_flight'"
        )
        return [(int(by.split("/")[1]), (consumer, key), float(left)) for by, consumer, key, left in rows]


class Renewals:
    """Counts how often workers renewed their leases, which measures time by their own progress."""

    def __init__(self, database: Database, pids: set[int | None]) -> None:
        self._database, self._last, self._counts = database, dict[int, object](), dict.fromkeys(pids, 0)

    def least(self) -> int:
        """The renewals of the one with the fewest that were seen since the first call."""
        for id, alive_until in self._database.sql("select id, alive_until from {hf}worker"):
            pid = int(id.split("/")[1])
            if pid in self._counts:
                self._counts[pid] += self._last.get(pid, alive_until) != alive_until
                self._last[pid] = alive_until
        return min(self._counts.values())

    async def more_than(self, count: int) -> None:
        await asyncio.to_thread(until, lambda: self.least() > count, "the workers do not renew their leases")


async def refill(hf: Holdfast, database: Database, published: int) -> int:
    """Publishes more when a key runs low: one free slot would empty it before the lease of the other slot ends."""
    rows = database.sql("select consumer, flow_key from {hf}delivery where status = 'pending'")
    waiting = Counter((consumer, key) for consumer, key in rows)
    if min(waiting["held_key", f"k{n}"] for n in range(KEYS)) >= BACKLOG / KEYS / 2:
        return published
    bodies = [{"k": f"k{n % KEYS}", "n": n, "seconds": 0.03} for n in range(published, published + BACKLOG)]
    await hf.publish_many([(worker.HELD, body) for body in bodies], conn=None)
    return published + BACKLOG


def unfinished(database: Database) -> list[tuple[object, ...]]:
    return database.sql("select id from {hf}delivery where status in ('pending', 'in_flight') limit 1")
