"""1,000 tenants, one of them a thousand times heavier: with `fair_by` the others wait as long as without it."""

import asyncio
import os
import time

import pytest

from holdfast import Holdfast
from tests.engine.programs.place import until
from tests.flow import worker
from tests.flow.log import Database

TENANTS = int(os.environ.get("FLOW_TENANTS", "1000"))
EACH, WEIGHT = 3, 1000
SECONDS, PARTS = 15.0, 150
HANDLER = 0.02


async def waits(dsn: str, event: str, *, heavy: bool) -> list[float]:
    """The longest time from publish to success of each light tenant in milliseconds, sorted."""
    database, hf = Database(dsn), worker.build(dsn)
    for table in ("delivery", "message", "worker"):
        database.sql(f"delete from {{hf}}{table}")
    heavy_ids = f"select id from {{hf}}message where {tenant_of(database)} = 'heavy'"
    light = f"message_id not in ({heavy_ids})"
    open = f"select 1 from {{hf}}delivery where status <> 'delivered' and {light} limit 1"
    async with worker.Workers(dsn, 2, slots=8, lease=10) as workers:
        await workers.registered(database)
        for _ in range(4 if heavy else 0):
            await publish(hf, event, ["heavy"] * EACH * WEIGHT)
        started = time.monotonic()
        for part in range(PARTS):
            await publish(hf, event, [f"t{n % TENANTS:04}" for n in range(part, TENANTS * EACH, PARTS)])
            await asyncio.sleep(max(0.0, started + (part + 1) * SECONDS / PARTS - time.monotonic()))
        waited = not heavy or bool(database.sql("select 1 from {hf}delivery where status = 'pending' limit 1"))
        await asyncio.to_thread(until, lambda: not database.sql(open), "the light tenants are not served", 400)
    await hf.close()
    assert waited, "the heavy tenant ended before the light ones; give it more"
    took = "d.completed_at - d.created_at" if database.on_sqlite else (
        "extract(epoch from d.completed_at - d.created_at) * 1000"
    )  # fmt: skip
    rows = database.sql(
        f"select {tenant_of(database)}, max({took}) from {{hf}}delivery d join {{hf}}message m on m.id = d.message_id "
        f"where {light} group by 1"
    )
    assert len(rows) == TENANTS
    longest = sorted(float(longest) for _, longest in rows)
    print(f"{event}, {heavy=}: p99 {longest[int(len(longest) * 0.99)]:.0f} ms, longest {longest[-1]:.0f} ms")
    return longest


def tenant_of(database: Database) -> str:
    return "json_extract(payload, '$.k')" if database.on_sqlite else "payload->>'k'"


async def publish(hf: Holdfast, event: str, tenants: list[str]) -> None:
    await hf.publish_many([(event, {"k": tenant, "n": 0, "seconds": HANDLER}) for tenant in tenants], conn=None)


@pytest.mark.soak
@pytest.mark.timeout(570)
async def test_light_tenants_do_not_wait_for_a_heavy_one(dsn: str) -> None:
    alone = await waits(dsn, worker.SHARED, heavy=False)
    fair = await waits(dsn, worker.SHARED, heavy=True)
    plain = await waits(dsn, worker.QUEUED, heavy=True)
    p99 = {name: times[int(len(times) * 0.99)] for name, times in (("alone", alone), ("fair", fair), ("plain", plain))}
    # A slot is free after one handler; the heavy tenant may hold all of them when a light message comes.
    assert p99["fair"] < p99["alone"] + 5 * HANDLER * 1000 + 100
    assert p99["fair"] < p99["plain"] / 5
