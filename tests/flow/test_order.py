"""Order by key over many messages, with retries, kills and replays; a blocked key is seen by an operator at once."""

import asyncio
import os
import random
import time
from collections import defaultdict
from uuid import UUID

import pytest

from holdfast import Holdfast
from holdfast.ops.queries.flow_keys import KeyFilter
from tests.flow import worker
from tests.flow.log import Database, Record
from tests.flow.oracle import Oracle, Promise

KEYS = 500
POLL = 0.2
MESSAGES = int(os.environ.get("FLOW_MESSAGES", "100000"))


@pytest.mark.soak
@pytest.mark.timeout(570)
@pytest.mark.parametrize("on_dead", ["block", "skip"])
async def test_successes_of_a_key_are_in_the_order_of_publish(dsn: str, on_dead: str) -> None:
    database, hf, name = Database(dsn), worker.build(dsn), f"moved_{on_dead}"
    other = "moved_skip" if on_dead == "block" else "moved_block"
    database.install()
    chance, seen = random.Random(1), dict[UUID, float]()
    open = (
        f"select 1 from {{hf}}delivery where consumer = '{name}' and (status in ('pending', 'in_flight') "
        "or (status = 'failed' and discarded_at is null)) limit 1"
    )
    started, kills = time.monotonic(), 0
    async with worker.Workers(dsn, slots=100, lease=2, quarantine=True) as workers:
        await workers.registered(database)
        database.sql(f"delete from {{hf}}subscription where consumer = '{other}'")
        publishing = asyncio.create_task(publish(hf))
        operating = asyncio.create_task(operate(hf, name, seen, replays=on_dead == "block"))
        while not publishing.done() or database.sql(open):
            await asyncio.sleep(chance.uniform(1, 3))
            await asyncio.to_thread(workers.replace, chance)
            kills += 1
        await publishing
        operating.cancel()
    await hf.close()
    log = [record for record in database.records() if record.consumer == name]
    oracle = Oracle({name: Promise(order=on_dead)}).read(log)
    dead = [record for record in log if record.was == "in_flight" and record.now == "failed"]
    print(
        f"{on_dead}: {MESSAGES} messages, {oracle.claims[name]} claims, {len(dead)} dead letters, {kills} kills, "
        f"{time.monotonic() - started:.0f} s"
    )
    assert oracle.violations == []
    assert sum(record.now == "delivered" for record in log) == MESSAGES
    if on_dead == "block":
        assert out_of_order(log) == []
        assert late(log, seen) == []


async def publish(hf: Holdfast) -> None:
    for start in range(0, MESSAGES, 500):
        bodies = [{"k": f"k{n % KEYS}", "n": n} for n in range(start, min(MESSAGES, start + 500))]
        await hf.publish_many([(worker.MOVED, body) for body in bodies], conn=None)


async def operate(hf: Holdfast, name: str, seen: dict[UUID, float], *, replays: bool) -> None:
    """Looks at the blocked keys at every poll, and replays their dead letters a moment later."""
    while True:
        page = await hf.ops.keys(name, state=KeyFilter.BLOCKED, limit=200)
        now = time.time() * 1000
        blocking = [key.blocked_by for key in page.keys if key.blocked_by is not None]
        ready = [id for id in blocking if seen.setdefault(id, now) < now - 1000]
        if not replays:
            rows = await asyncio.to_thread(
                Database(hf.dsn).sql,
                f"select id from {{hf}}delivery where consumer = '{name}' and status = 'failed' limit 100",
            )
            ready = [UUID(str(id)) for (id,) in rows]
        if ready:
            await hf.ops.replay(ready[:100], actor="ada", reason="fixed")
        await asyncio.sleep(POLL)


def out_of_order(log: list[Record]) -> list[str]:
    """Keys whose successes are not in the order of their publish."""
    last: defaultdict[str, int] = defaultdict(lambda: -1)
    found = []
    for record in log:
        if record.now == "delivered":
            if record.number < last[record.key]:
                found.append(f"{record.key}: {record.number} after {last[record.key]}")
            last[record.key] = record.number
    return found


def late(log: list[Record], seen: dict[UUID, float]) -> list[str]:
    """Dead letters at the head of a key that an operator saw later than one poll and the time of the query."""
    deaths = {UUID(r.delivery): r.at for r in log if r.was == "in_flight" and r.now == "failed" and not r.discarded}
    return [
        f"{id} after {seen[id] - at:.0f} ms" if id in seen else f"{id} never"
        for id, at in deaths.items()
        if seen.get(id, float("inf")) > at + POLL * 1000 + 1000
    ]
