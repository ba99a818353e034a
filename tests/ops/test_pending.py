"""`hf.ops.pending`: a bounded count, from floors while counts are expensive."""

import pytest

from holdfast.core.errors import ConfigurationError, InvalidName
from holdfast.ops.queries.pending_count import MOST_PENDING
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries import lane_floors
from holdfast.stores.queries.lane_floors import LaneFloors
from tests.support.builders import job, put, sql


async def test_pending_counts_a_queue_up_to_a_bound(store: Store, ops: Operations) -> None:
    await put(store, *[job("mail") for _ in range(3)], job("export"), job("mail", queue="slow"))
    assert f"{await ops.pending('default')}" == "4"
    assert f"{await ops.pending('default', consumer='mail')}" == "3"
    assert f"{await ops.pending('default', most=2)}" == "2+"
    assert (await ops.pending("default", most=MOST_PENDING)).or_more is False
    assert await ops.pending("nothing") == 0


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_pending_refuses_what_it_cannot_count(ops: Operations) -> None:
    for most in (0, -1, MOST_PENDING + 1):
        with pytest.raises(ConfigurationError, match="most is"):
            await ops.pending("default", most=most)
    with pytest.raises(InvalidName, match="queue name 'a b'"):
        await ops.pending("a b")
    with pytest.raises(InvalidName, match="consumer name 'a b'"):
        await ops.pending("default", consumer="a b")


async def test_an_expensive_count_is_repeated_from_floors_and_from_the_start(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_CHEAP", -1.0), ("_COST_FACTOR", 1e9)):
        monkeypatch.setattr(lane_floors, name, value)
    store, ops = postgres_store, Operations(postgres_store)
    store.lane_floors = LaneFloors()
    await put(store, *[job("mail") for _ in range(3)])
    counted = [f"{await ops.pending('default')}" for _ in range(3)]
    assert counted == ["3", "3", "3+"], "the second one learns the floors"
    await put(store, job("mail"))
    newest = "(select id from {hf}delivery order by id desc limit 1)"
    sql(store, f"update {{hf}}delivery set run_at = now() - interval '1 hour' where id = {newest}")
    await put(store, job("mail"))
    assert f"{await ops.pending('default')}" == "4+", "one of the five is below the floor"
    monkeypatch.setattr(lane_floors, "_CHEAP", 60.0)
    store.lane_floors = LaneFloors()
    assert [f"{await ops.pending('default')}" for _ in range(3)] == ["5"] * 3
