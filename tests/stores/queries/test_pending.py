"""The pending deliveries of a queue: counted up to a bound, and from floors while an old snapshot keeps dead rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from holdfast.stores.deliveries.claim import Lane
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.lane_floors import LaneFloors
from holdfast.stores.queries.pending_count import pending_count
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.backlog import Heap, pile
from tests.stores.query_plans.explain import Session, session, sqlite_plan
from tests.support.builders import age, claim_all, job, put, register_consumers, sql

_ROWS = 40_000


def _at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


async def _mixed(store: Store) -> None:
    """In `default`: nine of `mail`, of three priorities and two generations, one of them a suspect, and two of `export`."""
    mails = [job("mail", priority=n % 3) for n in range(9)]
    await put(store, *[one._replace(generation=n % 2) for n, one in enumerate(mails)])
    first = (
        "(select min(id) from {hf}delivery)"
        if store.dialect.name == "sqlite"
        else ("(select id from {hf}delivery order by id limit 1)")
    )
    sql(store, f"update {{hf}}delivery set suspect = true where id = {first}")
    await put(store, job("export"), job("export"), job("mail", queue="slow"))


@pytest.mark.parametrize("known", [None, ()], ids=["without floors", "learning floors"])
async def test_every_lane_and_suspect_of_the_queue_is_counted(store: Store, known: tuple[()] | None) -> None:
    await _mixed(store)

    async def size(queue: str, consumer: str | None = None, most: int = 100) -> str:
        return f"{(await store.run(pending_count(queue, consumer, most, known))).size}"

    assert await size("default") == "11"
    assert await size("default", "mail") == "9"
    assert await size("slow") == "1"
    assert await size("slow", "export") == "0"
    assert await size("absent") == "0"
    assert await size("default", most=11) == "11", "not a lower bound: there are no more"
    assert await size("default", most=10) == "10+"
    assert await size("default", "mail", most=1) == "1+"
    await claim_all(store, generation=1)
    assert await size("default") == "1", "the suspect, which is claimed alone"


async def test_a_count_from_floors_finds_new_lanes_and_is_a_lower_bound(store: Store) -> None:
    await _mixed(store)
    floors = (await store.run(pending_count("default", None, 100, ()))).floors
    await put(store, job("mail", priority=3), job("alpha"), job("zeta"), job("mail"))
    counted = await store.run(pending_count("default", None, 100, floors))
    assert f"{counted.size}" == "15+"
    assert {lane[:4] for lane in counted.floors} >= {("default", "alpha", 0, 1), ("default", "zeta", 0, 1)}
    assert f"{(await store.run(pending_count('default', 'mail', 100, floors))).size}" == "11+"


async def test_a_declared_lane_has_a_floor_although_nothing_is_pending_in_it(store: Store) -> None:
    await register_consumers(store, {"mail": ["order.*"]})
    floors = (await store.run(pending_count("default", None, 100, ()))).floors
    assert [floor[:4] for floor in sorted(floors)] == [("default", "mail", 0, priority) for priority in range(4)]
    floor = sorted(floors)[1]
    await put(store, job("mail"))
    age(store, timedelta(hours=1), "delivery")
    *_, oldest = (await store.run(pending_count("default", None, 100, ()))).floors
    assert oldest[:4] == floor[:4]
    assert oldest.floor_at < floor.floor_at, "the oldest delivery comes after the declared lane and replaces it"


@pytest.fixture
def held(postgres18: PostgresServer) -> Iterator[tuple[PostgresStore, Session]]:
    """A lane whose first nine tenths were delivered while a snapshot is held that is older; a thousand deliveries remain,
    and another lane in which nothing is pending."""
    store = PostgresStore(postgres18.create_database("pending_held"))
    store.migrate()
    pile(store, Heap("mail", _ROWS), Heap("export", _ROWS))
    sql(store, "update {hf}delivery set priority = 1")
    sql(
        store,
        "insert into {hf}consumer (name, queue, priority, generation, retry, max_attempts) "
        "values ('export', 'default', 1, 0, '{}', 5)",
    )
    sql(store, "vacuum analyze {hf}delivery")
    with session(store) as asked, psycopg.connect(store.conninfo) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from holdfast.worker")
        last = "(select id from {hf}delivery where consumer = 'mail' order by run_at desc limit 1000)"
        sql(store, f"update {{hf}}delivery set status = 'delivered' where id not in {last}")
        yield store, asked
    store.close_sync()
    postgres18.drop_database("pending_held")


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_under_a_held_snapshot_a_count_from_floors_reads_no_dead_rows(
    held: tuple[PostgresStore, Session], mode: str
) -> None:
    _, asked = held
    asked.plan_mode(mode)
    assert f"{asked.run(pending_count('default', None, 5_000)).size}" == "1000"
    pages = {"start": asked.explain("pending_size").buffers}
    floors = asked.run(pending_count("default", None, 5_000, ())).floors
    for consumer, size in (("mail", "1000+"), ("export", "0+"), (None, "1000+")):
        assert f"{asked.run(pending_count('default', consumer, 5_000, floors)).size}" == size
        plan = asked.explain("pending_size_above")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_suspect"}
        assert plan.rows_read("delivery") < 1100
        pages[f"{consumer}"] = plan.buffers
    assert pages["start"] > 1000
    assert max(pages["mail"], pages["export"], pages["None"]) < pages["start"] / 10


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_a_count_reads_no_more_entries_than_its_bound(held: tuple[PostgresStore, Session], mode: str) -> None:
    _, asked = held
    asked.plan_mode(mode)
    floors = asked.run(pending_count("default", None, 100, ())).floors
    assert f"{asked.run(pending_count('default', None, 100, floors)).size}" == "100+"
    assert asked.explain("pending_size_above").rows_read("delivery") < 200
    for consumer in ("mail", None):
        assert f"{asked.run(pending_count('default', consumer, 100)).size}" == "100+"
        plan = asked.explain("pending_size")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_suspect"}
        assert plan.rows_read("delivery") <= 101


def test_a_delivery_that_appears_below_its_floor_is_found_from_the_start(held: tuple[PostgresStore, Session]) -> None:
    store, asked = held
    floors = asked.run(pending_count("default", None, 5_000, ())).floors
    # Published long ago, in a transaction that commits only now.
    late = "(select id from {hf}delivery where status = 'delivered' and consumer = 'export' order by id limit 1)"
    sql(store, f"update {{hf}}delivery set status = 'pending', run_at = now() - interval '9 days' where id = {late}")
    assert f"{asked.run(pending_count('default', None, 5_000, floors)).size}" == "1000+", "the plus sign covers it"
    assert f"{asked.run(pending_count('default', None, 5_000, ())).size}" == "1001"


async def test_sqlite_counts_by_index(sqlite_store: SqliteStore) -> None:
    await _mixed(sqlite_store)
    for consumer, probe in ((None, "(queue=?)"), ("mail", "(queue=? AND consumer=?)")):
        _, plan = sqlite_plan(sqlite_store, pending_count("default", consumer, 5))
        assert any(f"delivery_claim {probe}" in line for line in plan), plan
        assert any(f"delivery_suspect {probe}" in line for line in plan), plan


def test_floors_are_used_while_counts_are_expensive() -> None:
    floors = LaneFloors()
    assert floors.known(0.0) is None
    floors.round_trip = 0.003
    floors.counted(None, [], 5, 0.0, 0.002)
    assert floors.known(1.0) is None, "cheap"
    floors.counted(None, [], 5, 1.0, 1.013)
    assert floors.known(1.5) is None, "10 ms more than two round trips of 2 ms"
    floors.counted(None, [], 1_000_000, 1.0, 2.0)
    assert floors.known(3.0) is None, "it counted many deliveries, no dead rows"
    floors.counted(None, [], 5, 3.0, 3.2)
    assert floors.known(4.0) == [], "expensive: the next count learns the floors"
    lane = Lane("default", "mail", 0, 1, _at(100))
    floors.counted([], [lane], 5, 4.0, 4.2)
    known = lane._replace(floor_at=_at(90))
    assert floors.known(5.0) == [known]
    floors.counted([known], [lane._replace(floor_at=_at(200))], 5, 5.0, 5.2)
    assert floors.known(6.0) == [lane._replace(floor_at=_at(195))], "it was expensive: closer to the floor"
    floors.counted([known], [], 5, 6.0, 6.001)
    assert floors.known(24.1) == [lane._replace(floor_at=_at(195))], "a lane that is not found keeps its floor"
    assert floors.known(24.3) == [], "a hundred times its cost later, all lanes are read from their start"
    floors.counted([], [lane], 5, 24.3, 24.301)
    assert floors.known(25.0) is None, "that was cheap: the snapshot is gone"
    floors.counted(None, [], 5, 25.0, 26.0)
    floors.counted([], [lane], 5, 30.0, 90.0)
    assert floors.known(119.0) == [known]
    assert floors.known(120.1) == [], "the process was suspended: half a minute is enough"
