"""Claims with flow control do not read the whole table, also when the user has made statistics with `analyze`."""

import pytest

from holdfast.stores.deliveries.flow import Floors, FlowScan, claim_flow
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.query_plans.explain import sqlite_plan
from tests.stores.query_plans.test_flow_claim import LANES
from tests.support.builders import LEASE, sql
from tests.support.stores import copy_migrated


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """Keyed deliveries of two consumers with more keys than a walk visits."""
    path = tmp_path_factory.mktemp("analyzed") / "holdfast.db"
    copy_migrated(path)
    store = SqliteStore(path)
    series = "with recursive s (n) as (select 0 union all select n + 1 from s where n < 999)"
    sql(
        store,
        f"""insert into {{hf}}message (id, type, source, payload, headers, occurred_at, generation, sub_epoch)
        {series} select 'm' || n, 'job', 'test', '{{}}', '{{}}', 0, 0, 0 from s""",
    )
    for consumer, place in (("limited", "null"), ("ordered", "n")):
        sql(
            store,
            f"""insert into {{hf}}delivery (id, message_id, consumer, queue, priority, generation, run_at, flow_key,
              flow_seq)
            {series} select '{consumer}' || n, 'm' || n, '{consumer}', 'default', 1, 0, n, 'tenant-' || (n % 200), {place}
            from s""",
        )
    sql(store, "analyze")
    return store


@pytest.mark.parametrize("scan", [FlowScan(0), FlowScan(0, "tenant-1")], ids=["window", "walk"])
@pytest.mark.parametrize("name", [name for name, lane in LANES.items() if lane.consumer in ("limited", "ordered")])
def test_a_claim_builds_no_index_and_no_filter_of_all_deliveries(
    analyzed: SqliteStore, name: str, scan: FlowScan
) -> None:
    _, plan = sqlite_plan(analyzed, claim_flow(LANES[name], "w1", LEASE, scan, Floors()))
    assert [line for line in plan if "BLOOM" in line or "AUTOMATIC" in line] == []
    assert [line for line in plan if "SCAN d" in line or "SCAN x" in line or "SCAN u" in line] == []
