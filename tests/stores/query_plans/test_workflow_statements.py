"""Statements of workflows read through indexes only, also with a plan that was made in empty tables."""

from datetime import timedelta

import pytest

from holdfast.core.workflows.names import name_array
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.workflows.advance import advance
from holdfast.stores.workflows.run import StepRequest, load_steps
from holdfast.stores.workflows.wait import Suspension, suspend
from tests.stores.query_plans.explain import session, sqlite_plan
from tests.stores.workflows.run_steps import claim_steps, end, events, finish_steps, started

TABLES = ("delivery", "workflow_run", "workflow_step")
BATCH = 50


async def steps(store: Store) -> list[Claimed]:
    """Claimed steps of runs of which the first step is done."""
    await started(store, BATCH)
    await finish_steps(store, await claim_steps(store))
    return await claim_steps(store)


def operations(claims: list[Claimed]) -> dict[str, Operation[object]]:
    first, *rest = claims
    wait = Suspension(first.message_id, "b/wait:go", 0, first.id, first.fence, 0, "go", timedelta(hours=1))
    wanted = [StepRequest(c.message_id, c.consumer.rpartition("/")[2], name_array(["a"]), c.id) for c in claims]
    return {
        "load_steps": load_steps(wanted),
        "suspend": suspend("w1", [wait]),
        "advance": advance("w1", [end(c) for c in rest], events()),
    }


async def test_sqlite_scans_no_table_of_workflows(sqlite_store: SqliteStore) -> None:
    for name, operation in operations(await steps(sqlite_store)).items():
        found, plan = sqlite_plan(sqlite_store, operation)
        assert found, name
        # The aliases of the three tables; json_each and what is derived from it are scanned, which is the batch.
        assert [line for line in plan if line in ("SCAN d", "SCAN r", "SCAN t")] == [], (name, plan)


async def test_sqlite_reads_one_row_of_a_map_for_each_item(sqlite_store: SqliteStore) -> None:
    """A search by the run alone reads all items for each item of a batch: 420 items a second instead of thousands."""
    claims = await steps(sqlite_store)
    join = f'[{{"name":"a/map:b#0","id":"{claims[0].id}","joins":2}}]'
    found, plan = sqlite_plan(sqlite_store, advance("w1", [end(c)._replace(next=join) for c in claims], events()))
    assert found
    searches = [line for line in plan if line.startswith("SEARCH t ")]
    assert len(searches) == 3
    assert [line for line in searches if "run_id=? AND name=? AND occurrence=?" not in line] == []


@pytest.mark.long
async def test_postgres_scans_no_table_of_workflows_with_a_plan_from_empty_tables(
    postgres_store: PostgresStore,
) -> None:
    with session(postgres_store, hot=True) as postgres:
        for operation in operations(await steps(postgres_store)).values():
            postgres.try_out(operation)
        for _ in range(20):
            await started(postgres_store, 100)
        claims = await steps(postgres_store)
        for name, operation in operations(claims).items():
            for _ in range(6):
                postgres.try_out(operation)
            plan = postgres.explain(name)
            for table in TABLES:
                assert "Seq Scan" not in plan.scans(table), (name, table)
                assert plan.rows_read(table) <= 8 * len(claims), (name, table)


async def test_postgres_reads_one_consumer_for_each_step_that_becomes_due(postgres_store: PostgresStore) -> None:
    """Also with a plan from a time with few consumers; the first step of each run makes two steps due."""
    await started(postgres_store, BATCH)
    with session(postgres_store, hot=True) as postgres:
        claims = await claim_steps(postgres_store)
        postgres.try_out(advance("w1", [end(c) for c in claims], events()))
        await postgres_store.run(register([Declaration(f"other{n:04}") for n in range(2000)], [], 0))
        for _ in range(6):
            postgres.try_out(advance("w1", [end(c) for c in claims], events()))
        plan = postgres.explain("advance")
    assert plan.scans("consumer") == {"consumer_pkey"}
    assert plan.rows_read("consumer") + plan.rows_removed("consumer") <= 2 * len(claims)
