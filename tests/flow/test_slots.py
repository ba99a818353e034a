"""No slot leaks: after many kills the limits are reached again within one lease, and every delivery ends."""

import asyncio
import random
import time
from collections import Counter

import pytest

from holdfast import Holdfast
from tests.engine.programs.place import PATIENCE, until
from tests.flow import worker
from tests.flow.log import Database
from tests.flow.oracle import Oracle, Promise

KEYS = 4
BACKLOG = 80
LEASE = 2.0
PROMISES = {"held_all": Promise(limit=4), "held_key": Promise(limit=2, limit_by_key=True)}


@pytest.mark.timeout(560)
@pytest.mark.parametrize(
    "kills", [pytest.param(4, marks=pytest.mark.long), pytest.param(500, marks=pytest.mark.soak)], ids=str
)
async def test_limits_are_reached_again_within_one_lease(dsn: str, kills: int) -> None:
    database, hf = Database(dsn), worker.build(dsn)
    database.install()
    chance = random.Random(1)
    async with worker.Workers(dsn, lease=LEASE) as workers:
        await workers.registered(database)
        published = await publish(hf, 0, BACKLOG)
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.1, 0.3))
            await asyncio.to_thread(workers.replace, chance)
            ((left,),) = database.sql("select count(*) from {hf}delivery where status = 'pending'")
            if left < BACKLOG:
                published = await publish(hf, published, BACKLOG)
        alive = {process.pid for process in workers.processes}
        started = time.monotonic()
        missing = {("held_all", ""), *(("held_key", f"k{n}") for n in range(KEYS))}
        while still_missing(database, alive, missing):
            assert time.monotonic() < started + PATIENCE, f"limits that are not reached: {missing}"
            published = await refill(hf, database, published)
            await asyncio.sleep(0.01)
        took = time.monotonic() - started
        await asyncio.to_thread(until, lambda: not unfinished(database), "it does not end", 60 + kills / 5)
    await hf.close()
    oracle = Oracle(PROMISES).read(database.records())
    print(f"{kills} kills, {sum(oracle.claims.values())} claims, full again after {took:.2f} s")
    assert oracle.violations == []
    assert database.sql("select count(*) from {hf}delivery where locked_by is not null") == [(0,)]
    # The worker that takes over wakes up when the lease ends; two seconds are for the load of the machine.
    assert took < LEASE + 2


async def publish(hf: Holdfast, first: int, count: int) -> int:
    bodies = [{"k": f"k{n % KEYS}", "n": n, "seconds": 0.03} for n in range(first, first + count)]
    await hf.publish_many([(worker.HELD, body) for body in bodies], conn=None)
    return first + count


async def refill(hf: Holdfast, database: Database, published: int) -> int:
    """Publishes more when a key runs low: one free slot would empty it before the lease of the other slot ends."""
    rows = database.sql("select consumer, flow_key from {hf}delivery where status = 'pending'")
    waiting = Counter((consumer, key) for consumer, key in rows)
    low = min(waiting["held_key", f"k{n}"] for n in range(KEYS)) < BACKLOG / KEYS / 2
    return await publish(hf, published, BACKLOG) if low else published


def still_missing(database: Database, alive: set[int | None], missing: set[tuple[str, str]]) -> bool:
    """Removes the limits, with their keys, that deliveries of live workers use up at this moment."""
    rows = database.sql("select consumer, flow_key, locked_by from {hf}delivery where status = 'in_flight'")
    held = Counter((consumer, key) for consumer, own, by in rows for key in {"", own} if int(by.split("/")[1]) in alive)
    missing -= {limit for limit in missing if held[limit] >= (PROMISES[limit[0]].limit or 0)}
    return bool(missing)


def unfinished(database: Database) -> list[tuple[object, ...]]:
    return database.sql("select id from {hf}delivery where status in ('pending', 'in_flight') limit 1")
