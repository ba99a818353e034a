"""What the tasks of operators read, by the plans of their statements."""

import pytest

from holdfast.core.drive import drive
from holdfast.ops.queries.stats import stats
from holdfast.ops.resources.consumers import consumers
from holdfast.ops.resources.queues import queues
from holdfast.ops.steps import StoreCall
from holdfast.stores.postgres.store import PostgresStore
from tests.stores.query_plans.explain import session
from tests.support.builders import claim_one, start


@pytest.mark.parametrize("task", [stats, queues, consumers])
async def test_the_deliveries_in_flight_are_read_once(postgres_store: PostgresStore, task: object) -> None:
    """Their index keeps an entry of every delivery that ended since the oldest snapshot."""
    await start(postgres_store, "w1", ["mail"])
    await claim_one(postgres_store)
    with session(postgres_store) as asked:
        asked.connection.execute("set enable_seqscan = off")  # the table is small
        drive(task(), lambda step: step.call(postgres_store) if isinstance(step, StoreCall) else asked.run(step))  # type: ignore[operator]
        read = [name for name in asked.names if "delivery_lease" in asked.explain(name).scans("delivery")]
    assert read == ["load_heads"]
