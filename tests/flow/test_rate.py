"""A rate under load: never exceeded in any window, and at least 95 % of it is used."""

import asyncio

import pytest

from tests.engine.programs.place import until
from tests.flow import worker
from tests.flow.log import Database
from tests.flow.oracle import Oracle, Promise

COUNT, WINDOW = 100, 1000.0


@pytest.mark.parametrize(
    "messages", [pytest.param(300, marks=pytest.mark.long), pytest.param(6000, marks=pytest.mark.soak)], ids=str
)
async def test_a_rate_is_used_and_never_exceeded(dsn: str, messages: int) -> None:
    database, hf = Database(dsn), worker.build(dsn)
    database.install()
    async with worker.Workers(dsn) as workers:
        await workers.registered(database)
        await hf.publish_many([(worker.COUNTED, {"k": "", "n": n}) for n in range(messages)], conn=None)
        open = "select 1 from {hf}delivery where status <> 'delivered' limit 1"
        await asyncio.to_thread(until, lambda: not database.sql(open), "it does not end", 30 + 1.5 * messages / COUNT)
    await hf.close()
    log = list(database.records())
    assert Oracle({"counted": Promise(rate=(COUNT, WINDOW))}).read(log).violations == []
    claims = [record.at for record in log if record.is_claim]
    windows = messages // COUNT - 1
    used = sum(at < claims[0] + windows * WINDOW for at in claims) / (windows * COUNT)
    print(f"{messages} messages: {used:.1%} of the rate is used")
    assert used >= 0.95
