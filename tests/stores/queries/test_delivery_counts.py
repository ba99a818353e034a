"""Counts within a budget: exact as long as it lasts, marked as lower bounds beyond it, and read from indexes alone."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from holdfast.core.change import DeadLetter
from holdfast.core.identity import delivery_id
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries import delivery_counts
from holdfast.stores.queries.delivery_counts import (
    counts,
    dead_letter_counts,
    failure_groups,
    group_size,
    minutes_until,
)
from holdfast.stores.queries.query import Count
from holdfast.stores.queries.throughput import died
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.backlog import Heap, pile, pile_sqlite
from tests.stores.query_plans.explain import Plan, session, sqlite_plan, sqlite_steps
from tests.support.builders import claim_all, failure, finish, job, put, sql

_LANES = 30
_HEAPS = (
    Heap("mail", 40_000, status="delivered"),
    Heap("mail", 25_000),
    Heap("export", 84_000, status="failed"),
    Heap("export", 300, status="in_flight"),
    *(Heap(f"c{n}", 3, queue=f"q{n % 3}") for n in range(_LANES)),
    *(Heap(f"c{n}", 20, queue=f"q{n % 3}", status="failed") for n in range(_LANES)),
)


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of 24, of which large ones get what the others leave."""
    monkeypatch.setattr(delivery_counts, "_FEW", 3)
    monkeypatch.setattr(delivery_counts, "BUDGET", 24)


@pytest.fixture(scope="module")
def full(postgres18: PostgresServer) -> PostgresStore:
    store = PostgresStore(postgres18.create_database("counting"))
    store.migrate()
    pile(store, *_HEAPS)
    return store


@pytest.fixture(scope="module")
def full_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path_factory.mktemp("counting") / "holdfast.db")
    store.migrate()
    pile_sqlite(store, *_HEAPS)
    yield store
    store.close_sync()


def shown(found: list[Count]) -> dict[tuple[str, str, str], str]:
    return {(one.queue, one.consumer, one.state): f"{one.count:,}" for one in found}


@pytest.mark.usefixtures("low")
async def test_a_count_that_the_budget_ended_says_so(store: Store) -> None:
    await put(store, *[job("few") for _ in range(2)], *[job("some", priority=n % 3) for n in range(9)])
    await put(store, *[job("many", queue="slow") for _ in range(40)])
    assert shown(await store.run(counts())) == {
        ("default", "few", "pending"): "2",
        ("default", "some", "pending"): "9",
        ("slow", "many", "pending"): "13+",
    }
    await put(store, *[job("another") for _ in range(7)], *[job("third") for _ in range(4)])
    among_many = shown(await store.run(counts()))
    assert among_many["default", "some", "pending"] == "6+", "three share what the small ones leave"
    assert among_many["default", "third", "pending"] == "4"
    exact = {(one.queue, one.consumer, one.state): one for one in await store.run(counts(exact=True))}
    bounded = {(one.queue, one.consumer, one.state): one for one in await store.run(counts())}
    assert {key: one.oldest_at for key, one in exact.items()} == {key: one.oldest_at for key, one in bounded.items()}
    assert f"{exact['slow', 'many', 'pending'].count}" == "40"


@pytest.mark.usefixtures("low")
async def test_a_group_beyond_the_budget_is_a_lower_bound(store: Store) -> None:
    # Several are made in one millisecond: which of them is the first, their ids say.
    mails = sorted([job("mail") for _ in range(30)], key=lambda one: delivery_id(one.id, "mail"))
    mails = [one._replace(generation=n) for n, one in enumerate(mails)]
    await put(store, *mails, *[job("export") for _ in range(5)])
    for claimed in await claim_all(store, generation=99, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    mail, export = await store.run(failure_groups())
    assert (f"{mail.count}", f"{export.count}") == ("19+", "5")
    assert mail.fingerprint is not None
    assert (await store.run(group_size("mail", mail.fingerprint))).or_more
    assert [one.consumer for one in await store.run(failure_groups(consumers=["export"]))] == ["export"]


async def test_of_very_many_groups_the_first_and_the_newest_are_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_counts, "_KINDS", 4)
    monkeypatch.setattr(delivery_counts, "_NEWEST", 3)
    await put(store, *[job("mail") for _ in range(12)])
    for claimed in await claim_all(store, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    sql(store, "update {hf}delivery set fingerprint = 'f' || substr(cast(id as text), 20)")
    ids = [str(row[0]) for row in sql(store, "select id from {hf}delivery order by id")]
    found = {str(one.example) for one in await store.run(failure_groups())}
    assert set(ids[-3:]) <= found
    assert 5 <= len(found) <= 8


async def test_one_count_of_dead_letters_gives_the_same_figures_as_separate_ones(store: Store) -> None:
    await put(store, *[job("mail") for _ in range(7)], *[job("mail", queue="slow") for _ in range(2)])
    await put(store, *[job("export") for _ in range(5)], *[job("search", queue="slow") for _ in range(3)])
    for claimed in await claim_all(store, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    ids = [row[0] for row in sql(store, "select id from {hf}delivery where consumer = 'export' order by id")]
    sql(store, f"update {{hf}}delivery set fingerprint = null where id = '{ids[0]}'")
    sql(store, f"update {{hf}}delivery set discarded_at = completed_at where id = '{ids[1]}'")
    dead = await store.run(dead_letter_counts())
    assert dead is not None
    assert shown(await store.run(counts(dead=dead))) == shown(await store.run(counts(exact=True)))
    assert await store.run(failure_groups(dead=dead)) == await store.run(failure_groups())
    assert {one.fingerprint for one in await store.run(failure_groups(dead=dead))} >= {None}
    assert sum(dead.died.values()) == 16
    assert dead.died == await store.run(died(minutes_until(dead.now), timedelta(minutes=1)))
    await put(store, job("new"))
    for claimed in await claim_all(store, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    assert shown(await store.run(counts(dead=dead)))["default", "new", "failed"] == "1", (
        "counted, since `dead` is older"
    )


@pytest.mark.usefixtures("low")
async def test_more_dead_letters_than_the_budget_are_not_counted_by_minute(store: Store) -> None:
    assert (await store.run(dead_letter_counts())) is not None
    await put(store, *[job("mail") for _ in range(25)])
    for claimed in await claim_all(store, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    assert await store.run(dead_letter_counts()) is None


def _index_only(plan: Plan, indexes: set[str], rows: int) -> None:
    assert plan.scans("delivery") == indexes
    assert plan.rows_removed("delivery") == 0
    assert plan.rows_read("delivery") <= rows
    assert not plan.has("Sort")
    scans = [node for node in plan.nodes if str(node.get("Index Name", "")) in indexes - {"delivery_lease"}]
    assert {node["Node Type"] for node in scans} == {"Index Only Scan"}
    assert not sum(node["Heap Fetches"] * node["Actual Loops"] for node in scans)


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_counting_reads_indexes_alone_and_each_entry_once(full: PostgresStore, mode: str) -> None:
    with session(full) as asked:
        asked.plan_mode(mode)
        for _ in range(6):
            asked.run(counts())
        found = shown(asked.run(counts()))
        assert found["default", "mail", "pending"] == "25,000"
        assert found["default", "export", "failed"] == "75,600"
        assert found["default", "export", "discarded"] == "8,400"
        assert found["default", "export", "in_flight"] == "300"
        assert found["q1", "c1", "pending"] == "3"
        assert len(found) == 4 + 3 * _LANES
        heads = asked.explain("load_heads")
        _index_only(
            heads,
            {"delivery_claim", "delivery_suspect", "delivery_lease", "delivery_failed_count"},
            300 + 4 * len(found) + 8,
        )
        sizes = asked.explain("load_sizes")
        _index_only(sizes, {"delivery_claim", "delivery_suspect", "delivery_failed_count"}, 25_000 + 84_000)


def test_under_a_held_snapshot_a_count_starts_at_the_oldest_delivery(postgres18: PostgresServer) -> None:
    """The dead rows before it have been read once, to find it."""
    store = PostgresStore(postgres18.create_database("counting_held"))
    store.migrate()
    pile(store, Heap("mail", 40_000))
    sql(store, "update {hf}delivery set priority = 1")
    sql(store, "vacuum analyze {hf}delivery")
    with session(store) as asked, psycopg.connect(store.conninfo) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from holdfast.worker")
        first = "(select id from {hf}delivery where status = 'pending' order by run_at limit 36000)"
        sql(store, f"update {{hf}}delivery set status = 'delivered' where id in {first}")
        assert shown(asked.run(counts()))["default", "mail", "pending"] == "4,000"
        heads, sizes = asked.explain("load_heads"), asked.explain("load_sizes")
        # Published long ago, in a transaction that commits only now.
        late = "(select id from {hf}delivery where status = 'pending' order by run_at desc limit 1)"
        sql(store, f"update {{hf}}delivery set run_at = now() - interval '3 days' where id = {late}")
        (pending,) = [one for one in asked.run(counts()) if one.state == "pending"]
        assert pending.count == 4000
        assert pending.oldest_at is not None
        assert pending.now - pending.oldest_at > timedelta(days=2)
    store.close_sync()
    assert heads.buffers > 500
    assert sizes.buffers < heads.buffers / 4


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_dead_letters_are_counted_by_minute_from_an_index_alone(
    full: PostgresStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_counts, "_MAX_KINDS_BY_MINUTE", 500)
    with session(full) as asked:
        asked.plan_mode(mode)
        for _ in range(6):
            asked.run(dead_letter_counts())
        dead = asked.run(dead_letter_counts())
        assert dead is not None
        assert sum(size for size, _ in dead.groups.values()) == 75_600 + 18 * _LANES
        _index_only(asked.explain("failures_beyond"), {"delivery_failed"}, 84_000 + 20 * _LANES)
        _index_only(asked.explain("failure_minutes"), {"delivery_failure"}, 75_600 + 18 * _LANES)


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_failure_groups_are_counted_from_an_index_alone(full: PostgresStore, mode: str) -> None:
    with session(full) as asked:
        asked.plan_mode(mode)
        for _ in range(6):
            asked.run(failure_groups())
        groups = asked.run(failure_groups())
        assert len(groups) == 50, "of 217 groups"
        assert {f"{one.count:,}" for one in groups[:7]} == {"10,800"}
        _index_only(asked.explain("failure_kinds"), {"delivery_failure"}, 7 * (_LANES + 1) + 1)
        _index_only(asked.explain("failure_sizes"), {"delivery_failure"}, 75_600)
        examples = asked.explain("failure_examples")
        assert examples.scans("delivery") == {"delivery_failure"}
        assert examples.rows_read("delivery") <= 10 * len(groups)


def test_sqlite_counts_by_index_too(full_sqlite: SqliteStore) -> None:
    found, plan = sqlite_plan(full_sqlite, counts())
    assert shown(found)["default", "mail", "pending"] == "25,000"
    assert shown(found)["default", "export", "failed"] == "84,000"
    dead, by_minute = sqlite_plan(full_sqlite, dead_letter_counts())
    assert dead is not None
    assert f"{sum(size for size, _ in dead.groups.values()):,}" == "84,600"
    assert any(
        "delivery_failure (fingerprint=? AND consumer=? AND completed_at>? AND completed_at<?)" in line
        for line in by_minute
    )
    groups, more = sqlite_plan(full_sqlite, failure_groups())
    assert f"{groups[0].count:,}" == "84,000"
    assert not [
        line for line in {*plan, *more} if line.startswith(("SCAN d", "SEARCH d")) and "INDEX holdfast" not in line
    ]
    probes = (
        "delivery_claim (queue=? AND consumer=? AND generation=? AND priority>?)",
        "delivery_claim (queue=? AND consumer>?)",
        "delivery_failed_count (consumer=? AND queue>?)",
        "delivery_failed_count (consumer=? AND queue=? AND discarded_at=?)",
        "delivery_claim (queue=? AND consumer=?)",
    )
    for probe in probes:
        assert any(probe in line for line in plan), probe
    for probe in ("(fingerprint=? AND consumer>?)", "(fingerprint>?)", "(fingerprint=? AND consumer=?)"):
        assert any(f"delivery_failure {probe}" in line for line in more), probe


def test_sqlite_counts_no_more_than_the_budget(full_sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_counts, "BUDGET", 10_000)
    assert sqlite_steps(full_sqlite, counts()) < sqlite_steps(full_sqlite, counts(exact=True)) / 3


def test_a_sum_keeps_that_it_is_a_lower_bound() -> None:
    total = BoundedCount(10_000, or_more=True) + BoundedCount(5) + 1
    assert (total, total.or_more, f"{total:,}") == (10_006, True, "10,006+")
    assert f"{BoundedCount(3) + 4:,}" == "7"
