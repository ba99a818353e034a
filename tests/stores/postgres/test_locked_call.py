"""Statements under advisory locks are prepared once in a session, and again after the driver removed them."""

import pytest

from holdfast import Limit
from holdfast.stores.deliveries.claim import lanes
from holdfast.stores.deliveries.flow import flow_floors
from holdfast.stores.operation import Operation, Query, Steps
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.watchdog import CancellableConnection
from tests.stores.flow_cases import declare, lane_of, numbers, send, settings, take


@pytest.mark.parametrize("hot", [True, False])
async def test_a_claim_works_after_another_operation_was_rolled_back(postgres_store: PostgresStore, hot: bool) -> None:
    """psycopg removes all prepared statements of a session when it rolls back a transaction."""
    store, flow = postgres_store, settings(limit=Limit(1, by="k"))
    await declare(store, flow)
    await send(store, flow, "a", "b")
    lane = await lane_of(store)
    assert numbers((await take(store, 1)).claims) == [0]
    await store.run(flow_floors(lane))

    def fails() -> Steps[None]:
        for _ in range(6):  # The driver prepares a statement when it has run five times.
            yield Query("flow_messages", {"ids": []})
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        await store.run(Operation(fails, hot=hot))
    await store.run(flow_floors(lane))
    assert numbers((await take(store, 1)).claims) == [1]
    assert len(await store.run(lanes(["mail"], 0))) == 0


async def test_a_claim_works_after_a_caller_was_cancelled_while_it_prepared_the_statement(
    postgres_store: PostgresStore,
) -> None:
    """The statement exists in the session and is not noted."""
    store, flow = postgres_store, settings(limit=Limit(1, by="k"))
    await declare(store, flow)
    await send(store, flow, "a", "b")
    assert numbers((await take(store, 1)).claims) == [0]
    async with store._hot_pool.connection() as connection:
        assert isinstance(connection, CancellableConnection)
        assert connection.prepared_calls
        connection.prepared_calls.clear()
    assert numbers((await take(store, 1)).claims) == [1]
