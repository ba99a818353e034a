"""Pages that look back over a bounded stretch: together they hold everything once, and none reads more."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.delivery import Status
from holdfast.core.message import Address
from holdfast.stores.admin.actions import cancel
from holdfast.stores.deliveries.settle import Settlement
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.intake import take_in_settled
from holdfast.stores.messages.prune import fill_failed_types
from holdfast.stores.operation import Operation, Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries import filter_index, pagination
from holdfast.stores.queries.pagination import Slice, delivery_page, message_page
from holdfast.stores.queries.query import DeliverySummary, Filter, deliveries
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.stores.concurrency.query_hook import before_each_query
from tests.stores.query_plans.backlog import Heap, pile, pile_sqlite
from tests.stores.query_plans.explain import session, sqlite_plan
from tests.support.builders import (
    all_deliveries,
    claim_all,
    failure,
    finish,
    job,
    message,
    put,
    register_consumers,
    sql,
)

T = TypeVar("T")
_NOW, _DAY = datetime.now(UTC), timedelta(days=1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of three rows."""
    monkeypatch.setattr(pagination, "STRETCH", 3)


async def in_pages(store: Store, page: Callable[..., Operation[Slice[T]]], *given: Any, **more: Any) -> list[list[T]]:
    """What every page holds, from the first to the last."""
    found: list[list[T]] = []
    before: UUID | None = None
    while True:
        items, following = await store.run(page(*given, before=before, **more))
        found.append(items)
        if following is None:
            return found
        assert before is None or following < before, "each begins further down"
        before = following


async def mixed(store: Store) -> None:
    """Forty deliveries of two consumers and three types, in every state."""
    await register_consumers(store, {"mail": [], "export": []})
    for n in range(20):
        to = [Address(consumer="mail"), Address(consumer="export", queue="slow")]
        await put(store, message(type=f"order.t{n % 3}", key=f"k{n}", source=f"s{n % 2}", addressed=to))
    for n, claimed in enumerate(await claim_all(store, limit=32)):
        if n % 4 != 3:
            await finish(store, claimed, (Deliver(), DeadLetter())[n % 2], error=failure() if n % 2 else None)
    # Errors of two modules with the same short name.
    name = "case when consumer = 'export' then 'shop.Refused' else 'bank.Refused' end"
    sql(store, f"update {{hf}}delivery set error_type = {name} where failed_type in ('order.t1', 'order.t2')")


FILTERS = [
    Filter(),
    Filter(dead=True),
    Filter(dead=True, consumers=("export",)),
    Filter(dead=True, type="order.t1"),
    Filter(dead=True, type="order.*"),
    Filter(dead=True, type="order.*", consumers=("mail", "export", "mail")),
    Filter(dead=True, type="order.t1", consumers=("export",)),
    Filter(dead=True, type="other.*"),
    Filter(dead=True, error_type="nothing"),
    Filter(dead=True, error_type="Refused"),
    Filter(dead=True, error_type="shop.Refused", type="order.*", queue="slow"),
    Filter(statuses=(Status.FAILED,), error_type="RuntimeError"),
    Filter(statuses=(Status.FAILED,), type="order.*", error_type="Refused"),
    Filter(discarded=False, dead=True, error_type="builtins.RuntimeError"),
    Filter(statuses=(Status.PENDING,)),
    Filter(statuses=(Status.PENDING,), type="order.t1"),
    Filter(statuses=(Status.PENDING, Status.IN_FLIGHT), queue="slow"),
    Filter(statuses=(Status.DELIVERED,)),
    Filter(statuses=(Status.DELIVERED, Status.FAILED), type="order.*"),
    Filter(consumers=("mail",), type="order.t2"),
    Filter(consumers=("nobody",)),
    Filter(discarded=True),
]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_the_pages_together_hold_exactly_what_the_list_does(store: Store, limit: int) -> None:
    await mixed(store)
    for wanted in FILTERS:
        pages = await in_pages(store, delivery_page, wanted, limit)
        expected: list[DeliverySummary] = await store.run(deliveries(wanted, 1000))
        assert [one for page in pages for one in page] == expected, wanted
        assert max(map(len, pages)) <= limit


@pytest.mark.usefixtures("short")
async def test_a_page_is_the_same_if_an_index_has_too_many_entries_or_values(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mixed(store)
    failed = [wanted for wanted in FILTERS if wanted.only_failed]
    expected = [await store.run(deliveries(wanted)) for wanted in failed]
    for bound in ("_FEW", "_PARTS", "_VALUES"):
        with monkeypatch.context() as patch:
            patch.setattr(filter_index, bound, 1)
            assert [(await store.run(delivery_page(wanted))).items for wanted in failed] == expected


@pytest.mark.usefixtures("short")
async def test_a_page_may_be_empty_and_not_the_last(store: Store) -> None:
    await mixed(store)
    pages = await in_pages(store, delivery_page, Filter(consumers=("nobody",)), 10)
    assert pages == [[]] * len(pages)
    assert len(pages) == 7, "forty rows in two stretches of three a page"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "wanted",
    [
        Filter(dead=True, consumers=("rare",)),
        Filter(dead=True, consumers=("rare",), queue="default"),
        Filter(dead=True, queue="rare"),
        Filter(dead=True, error_type="KeyError"),
        Filter(dead=True, error_type="KeyError", since=_NOW - _DAY, until=_NOW + _DAY),
        Filter(dead=True, type="job.rare"),
        Filter(dead=True, type="job.rare", queue="default", since=_NOW - _DAY),
        Filter(dead=True, type="job.rare.*"),
        Filter(dead=True, type="job.rare", consumers=("rare", "mail")),
        Filter(statuses=(Status.FAILED,), type="job.rare"),
        Filter(statuses=(Status.PENDING,), consumers=("rare",)),
        Filter(statuses=(Status.PENDING, Status.IN_FLIGHT), queue="rare"),
    ],
)
async def test_a_list_with_a_count_never_begins_with_an_empty_page(store: Store, wanted: Filter) -> None:
    """The three that match are the oldest, behind many stretches of others."""
    failed = wanted.only_failed
    rare = (job("rare", queue=wanted.queue or "default") for _ in range(3))
    await put(store, *(one._replace(type="job.rare.one") if wanted.type == "job.rare.*" else one for one in rare))
    if failed:
        for claimed in await claim_all(store):
            await finish(store, claimed, DeadLetter(), error=failure("no", KeyError))
    await put(store, *(job("mail") for _ in range(100)))
    if failed:
        for claimed in await claim_all(store):
            await finish(store, claimed, DeadLetter(), error=failure())
    found = await store.run(delivery_page(wanted, 2))
    assert [one.delivery.consumer for one in found.items] == ["rare", "rare"]
    rest = await store.run(delivery_page(wanted, 2, found.next))
    assert (len(rest.items), rest.next) == (1, None)
    assert (await store.run(delivery_page(wanted, 3))).next is None, "a full page without another has no next"


@pytest.mark.usefixtures("short")
async def test_failed_deliveries_of_an_older_version_are_found_by_their_type(store: Store) -> None:
    await put(store, *(job("rare") for _ in range(3)), *(job("mail") for _ in range(100)))
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    sql(store, "update {hf}delivery set failed_type = null where consumer = 'rare'")
    rare = Filter(dead=True, type="job.rare")
    assert len((await store.run(delivery_page(rare, 5))).items) == 3
    assert len(await store.run(deliveries(rare))) == 3
    assert await store.run(fill_failed_types()) == 3
    assert await store.run(fill_failed_types()) == 0
    assert len((await store.run(delivery_page(rare, 5))).items) == 3


@pytest.mark.parametrize("way", ["settled", "cancelled", "taken in"])
async def test_a_delivery_that_fails_stores_its_type(store: Store, way: str) -> None:
    if way == "taken in":
        settlement = Settlement(UUID(int=1), 0, DeadLetter(), "failed", error=failure())
        await store.run(take_in_settled(job(), settlement, "w1", Fanout()))
    else:
        await put(store, job(), job("other"))
        if way == "cancelled":
            ids = [one.id for one in await all_deliveries(store, Filter(consumers=("mail",)))]
            await store.run(cancel(ids, "ada", None))
        else:
            (claimed,) = await claim_all(store, consumers=["mail"])
            await finish(store, claimed, DeadLetter(), error=failure())
    assert sql(store, "select failed_type from {hf}delivery where status = 'failed'") == [("job.mail",)]
    assert sql(store, "select 1 from {hf}delivery where status <> 'failed' and failed_type is not null") == []


@pytest.mark.usefixtures("short")
async def test_messages_come_in_pages_likewise_and_a_key_is_looked_up(store: Store) -> None:
    await mixed(store)
    for given, count in (({"type": "order.t1"}, 7), ({"type": "order.*"}, 20), ({"source": "s1"}, 10), ({}, 20)):
        pages = await in_pages(store, message_page, limit=5, **given)
        assert len({one.id for page in pages for one in page}) == sum(map(len, pages)) == count
    ((found,),) = await in_pages(store, message_page, key="k7")
    assert (found.key, found.source) == ("k7", "s1")
    assert await in_pages(store, message_page, key="k7", source="s0") == [[]]
    assert (await store.run(message_page(limit=20))).next is None, "a full page without another has no next"


_HEAPS = (Heap("mail", 40_000, status="delivered"), Heap("export", 8_000, status="failed"))


@pytest.fixture(scope="module")
def full(postgres18: PostgresServer) -> PostgresStore:
    store = PostgresStore(postgres18.create_database("lookback"))
    store.migrate()
    pile(store, *_HEAPS)
    return store


def test_the_dead_letters_of_one_consumer_are_read_in_order_by_an_index(full: PostgresStore) -> None:
    with session(full) as asked:
        asked.run(delivery_page(Filter(dead=True, consumers=("nobody",)), 50))
        plan = asked.explain("list_deliveries")
        assert plan.scans("delivery") == {"delivery_dead_consumer"}
        assert plan.rows_removed("delivery") == 0


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_the_dead_letters_of_one_type_are_read_in_order_by_an_index(full: PostgresStore, mode: str) -> None:
    with session(full) as asked:
        asked.plan_mode(mode)
        asked.run(delivery_page(Filter(dead=True, type="nothing.such"), 50))
        plan = asked.explain("list_deliveries")
        assert plan.scans("delivery") == {"delivery_type"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") == 0
        assert asked.explain("untyped_failures").scans("delivery") == {"delivery_type"}


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Filter(consumers=("nobody",)), "delivery_pkey"),
        (Filter(queue="nowhere", statuses=(Status.DELIVERED,)), "delivery_pkey"),
        (Filter(type="nothing.such"), "delivery_pkey"),
        (Filter(dead=True, queue="nowhere"), "delivery_failed"),
        (Filter(dead=True, error_type="ValueError", queue="nowhere"), "delivery_error"),
    ],
    ids=["consumer", "queue", "type", "dead queue", "dead error"],
)
def test_a_filter_that_matches_nothing_reads_one_stretch_after_the_other(
    full: PostgresStore, wanted: Filter, index: str, mode: str
) -> None:
    with session(full) as asked:
        asked.plan_mode(mode)
        asked.run(delivery_page(wanted, 50))
        plan = asked.explain("list_deliveries")
        assert "Seq Scan" not in plan.scans("delivery") | plan.scans("message")
        looked_at = plan.rows_read("delivery") + plan.rows_removed("delivery")
        assert looked_at <= 2 * pagination.STRETCH, "a bounded stretch of 48,000"
        # Any index of failed deliveries, but not all deliveries of the range.
        assert not wanted.dead or "delivery_pkey" not in plan.scans("delivery")
        far = asked.explain("far_delivery")
        assert far.scans("delivery") == {index}
        assert far.rows_read("delivery") <= pagination.STRETCH


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
@pytest.mark.parametrize(
    ("wanted", "statement", "index"),
    [
        (Filter(dead=True, type="nothing.*"), "failed_types", "delivery_type"),
        (Filter(dead=True, error_type="NoSuchError"), "failed_error_types", "delivery_error"),
    ],
    ids=["types", "error"],
)
def test_a_value_that_no_dead_letter_has_is_found_missing_by_a_loose_scan(
    full: PostgresStore, wanted: Filter, statement: str, index: str, mode: str
) -> None:
    with session(full) as asked:
        asked.plan_mode(mode)
        assert asked.run(delivery_page(wanted, 50)) == ([], None)
        plan = asked.explain(statement)
        assert plan.scans("delivery") == {index}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 2, "of 8,000"


def test_of_two_indexes_the_one_with_fewer_dead_letters_is_read(full: PostgresStore) -> None:
    with session(full) as asked:
        asked.run(delivery_page(Filter(dead=True, consumers=("export",), type="nothing.such"), 50))
        plan = asked.explain("list_deliveries")
        assert plan.scans("delivery") == {"delivery_type"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") == 0


async def test_a_page_of_pending_deliveries_of_which_one_ends_concurrently_is_not_the_last(store: Store) -> None:
    await put(store, *(job() for _ in range(5)))
    *others, newest = sorted(one.id for one in await all_deliveries(store))

    def end_newest(query: Query) -> None:
        if query.name == "list_deliveries":
            sql(store, f"update {{hf}}delivery set status = 'delivered' where id = '{newest}'")

    wanted = Filter(statuses=(Status.PENDING,))
    page = await store.run(before_each_query(delivery_page(wanted, 2), end_newest))
    rest = await store.run(delivery_page(wanted, 5, page.next))
    assert {one.delivery.id for one in (*page.items, *rest.items)} >= set(others)
    assert rest.next is None


def test_sqlite_reads_by_index_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("lookback") / "holdfast.db")
    store.migrate()
    pile_sqlite(store, *_HEAPS)
    _, plan = sqlite_plan(store, delivery_page(Filter(dead=True, type="no.such"), 50))
    assert any("delivery_type (failed_type=?" in line for line in plan)
    _, plan = sqlite_plan(store, delivery_page(Filter(dead=True, error_type="None"), 50))
    assert [line for line in plan if "delivery_error (error_type>?)" in line]
    for wanted in (Filter(consumers=("nobody",)), Filter(type="no.such"), Filter(dead=True, queue="None")):
        (items, following), plan = sqlite_plan(store, delivery_page(wanted, 50))
        assert items == []
        assert (following is None) is wanted.dead, "two stretches hold all dead letters there are"
        assert not [line for line in plan if line.startswith("SCAN d") and "INDEX" not in line]
    sql(store, "delete from {hf}delivery")
    store.close_sync()
