"""Lists of runs at 100,000 runs."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.stores.workflows.run_page import RunFilter
from tests.support.worker import query
from tests.workflows.test_operating import order

RUNS = 100_000
LIMIT = 0.1
_MESSAGE = "insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch) "
_RUN = "insert into {hf}workflow_run (id, name, version, status, waiting, generation, started_at, ended_at) "
_POSTGRES = f"""
select (lpad(to_hex(1700000000000 + g), 12, '0') || '70008' || lpad(to_hex(g), 15, '0'))::uuid, {{}}
from generate_series(1, {RUNS}) g"""
_SQLITE = f"""
with recursive s (g) as (select 1 union all select g + 1 from s where g < {RUNS})
select substr(printf('%012x', 1700000000000 + g), 1, 8) || '-' || substr(printf('%012x', 1700000000000 + g), 9, 4)
       || '-7000-8000-' || printf('%012x', g), {{}}
from s"""


async def fill(hf: Holdfast, dsn: str) -> None:
    """Ended runs, of which only one of the oldest has failed."""
    rows, at = (_SQLITE, "1700000000000") if dsn.startswith("sqlite") else (_POSTGRES, "now() - interval '9 days'")
    await query(hf, _MESSAGE + rows.format(f"'workflow.start.order', 'app', '{{}}', '{{}}', 0, {at}, 0"))
    state = "case when g = 17 then 'failed' else 'done' end"
    await query(hf, _RUN + rows.format(f"'order', 1, {state}, 0, 0, {at}, {at}"))
    # As autovacuum would have done by then.
    await query(hf, "analyze")


@pytest.mark.long
async def test_lists_and_counts_take_less_than_100_ms(hf: Holdfast, dsn: str) -> None:
    run = await order(hf).using(key="k").start("lamp")
    await fill(hf, dsn)
    now = await hf.ops.now()
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "all": lambda: hf.ops.workflow_runs(),
        "workflow": lambda: hf.ops.workflow_runs(RunFilter(workflow="order")),
        "common state": lambda: hf.ops.workflow_runs(RunFilter(state="done")),
        "rare state": lambda: hf.ops.workflow_runs(RunFilter(workflow="order", state="failed")),
        "blocked": lambda: hf.ops.workflow_runs(RunFilter(state="blocked")),
        "key": lambda: hf.ops.workflow_runs(RunFilter(key="k")),
        "since": lambda: hf.ops.workflow_runs(RunFilter(since=now - timedelta(hours=1))),
        "counts": lambda: hf.ops.workflows(),
        "show": lambda: hf.ops.workflow_run(run.id),
    }
    slow = {}
    for name, call in calls.items():
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            await call()
            times.append(time.perf_counter() - begin)
        if min(times) > LIMIT:
            slow[name] = min(times)
        print(name, round(min(times) * 1000, 1), "ms")
    assert slow == {}
    before, found = None, []
    for _ in range(100):
        page = await hf.ops.workflow_runs(RunFilter(workflow="order", state="failed"), before=before)
        found += page.items
        if (before := page.next) is None:
            break
    assert len(found) == 1
    (counted,) = await hf.ops.workflows()
    assert counted.done.or_more
