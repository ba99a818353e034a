"""Hot statements keep their plans: with a backlog, behind a paused consumer's rows, under a held snapshot.

Nothing here looks at a clock. A plan is judged by the indexes it uses and the pages it touches.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg
import pytest

from holdfast.core.change import Deliver, Retry
from holdfast.core.delivery import Claim, Status
from holdfast.core.identity import first_id, uuid7
from holdfast.stores.admin.actions import pause_consumer, replay
from holdfast.stores.deliveries.batch import batch_lanes, claim_batch
from holdfast.stores.deliveries.claim import (
    Claimed,
    Lane,
    claim,
    discover_and_claim,
    lanes,
    list_lanes,
    next_expiry,
    rescue,
)
from holdfast.stores.deliveries.settle import Settlement, claim_states, settle
from holdfast.stores.messages.fanout import Fanout, Subscriptions
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries, prune_messages
from holdfast.stores.messages.publish import publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, register
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries import query
from holdfast.stores.queries.delivery_counts import counts, failure_groups
from holdfast.stores.queries.field_values import field_values
from holdfast.stores.queries.health import at_history_bound
from holdfast.stores.queries.query import Filter, clock, deliveries, deliveries_of
from holdfast.stores.queries.request_trace import request_messages, trail_audit, trail_deliveries, trail_runs
from holdfast.stores.queries.throughput import accepted_counts, accepted_samples, died, position_gaps, retrying
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.backlog import Heap, pile, pile_sqlite
from tests.stores.query_plans.explain import Plan, Session, session, sqlite_plan
from tests.support.builders import LEASE, SECOND, failure, fresh_id, job, message, outcome, sql

pytestmark = pytest.mark.long

CONSUMERS = ("billing", "shipping", "mail")
MODES = ["auto", "force_generic_plan", "force_custom_plan"]
TIMES = 100
# A claim or a settle of one row descends into a few indexes and writes into each: 15 to 20 pages, at any position.
PAGES_PER_ROW = 30

_numbers = count(1)

# 200,000 rows that can run, behind 100,000 of a paused consumer, before some that are not due.
_BUSY = (
    Heap("mail", 100_000, due="-2 days"),
    Heap("billing", 100_000),
    Heap("shipping", 100_000),
    Heap("billing", 20_000, queue="later", due="1 day"),
    Heap("billing", 20_000, status="delivered", queue="done"),
    Heap("mail", 4_000, status="in_flight", queue="running"),
)
_QUIET = (
    Heap("billing", 100_000, status="delivered"),
    Heap("shipping", 1_000, status="failed"),
    Heap("mail", 1_000, status="in_flight"),
    Heap("mail", 2_000, queue="due"),
)

_VERSIONS = [
    pytest.param(("postgres16", 1), id="postgres16"),
    pytest.param(("postgres18", 1), id="postgres18"),
    pytest.param(("postgres16", 8), id="postgres16-large", marks=pytest.mark.soak),
    pytest.param(("postgres18", 8), id="postgres18-large", marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=_VERSIONS)
def size(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Which server, and how many times the usual rows."""
    return request.param


@pytest.fixture(scope="module")
def make(request: pytest.FixtureRequest, size: tuple[str, int]) -> Iterator[Callable[[], PostgresStore]]:
    """Makes stores, each in a separate database."""
    server: PostgresServer = request.getfixturevalue(size[0])
    made: list[PostgresStore] = []

    def store() -> PostgresStore:
        opened = PostgresStore(server.create_database(f"plans_{next(_numbers)}"))
        made.append(opened)
        opened.migrate()
        opened.run_sync(
            register([Declaration(c) for c in CONSUMERS], [EventSubscription("order.*", c) for c in CONSUMERS], 0)
        )
        opened.run_sync(pause_consumer("mail", "ada", None))
        return opened

    yield store
    for opened in made:
        opened.close_sync()
        sql(opened, "truncate {hf}delivery, {hf}message, {hf}run")  # the rest goes with the server


@pytest.fixture(scope="module")
def busy(make: Callable[[], PostgresStore], size: tuple[str, int]) -> PostgresStore:
    """A store with a backlog."""
    store = make()
    pile(store, *(heap * size[1] for heap in _BUSY))
    return store


@pytest.fixture(scope="module")
def quiet(make: Callable[[], PostgresStore], size: tuple[str, int]) -> PostgresStore:
    """A store that has done nearly all of its work."""
    store = make()
    pile(store, *(heap * size[1] for heap in _QUIET))
    return store


@pytest.mark.parametrize("mode", MODES)
def test_claim_and_settle_keep_their_plans_after_a_hundred_executions(busy: PostgresStore, mode: str) -> None:
    error = failure()
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        found = postgres.run(lanes(CONSUMERS, 0))
        assert {lane.consumer for lane in found} == {"billing", "shipping"}
        for _ in range(TIMES // 2):
            for change, report in ((Deliver(), None), (Retry(SECOND), error)):
                claimed = postgres.run(claim(found, "w1", LEASE, 20))
                settled = postgres.run(settle("w1", [outcome(c, change, error=report) for c in claimed]))
                assert len(settled) == 20

        plan = postgres.explain("claim")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_pkey"}
        assert plan.scans("message") == {"message_pkey"}
        assert plan.rows_read("delivery") == 40, "20 to choose and 20 to write: nothing of the paused consumer"
        assert plan.rows_removed("delivery") == 0
        # Rows that were claimed a moment ago leave entries behind that a scan passes over until they are cleaned up.
        assert plan.buffers < 20 * PAGES_PER_ROW + 400

        postgres.try_out(discover_and_claim(CONSUMERS, 0, "w1", LEASE, 20))
        plan = postgres.explain("discover_and_claim")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_pkey"}
        assert plan.rows_read("delivery") < 100, "20 to choose, 20 to write, and some for each lane"
        assert plan.rows_removed("delivery") == 0

        for name in ("settle", "settle_delivered"):
            claimed = postgres.run(claim(found, "w1", LEASE, 20))
            change, report = (Deliver(), None) if name == "settle_delivered" else (Retry(SECOND), error)
            postgres.try_out(settle("w1", [outcome(c, change, error=report) for c in claimed]))
            plan = postgres.explain(name)
            assert plan.scans("delivery") == {"delivery_pkey"}
            assert plan.rows_read("delivery") == 20
            assert plan.buffers < 20 * PAGES_PER_ROW


@pytest.mark.parametrize("mode", MODES)
def test_lanes_are_found_by_as_many_probes_as_there_are_lanes(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            assert len(postgres.run(lanes(CONSUMERS, 0))) == 12
        plan = postgres.explain("lanes")
    assert plan.scans("delivery") == {"delivery_claim"}
    # 12 that can run and 4 of the paused consumer; PostgreSQL 16 counts whole rows a loop.
    assert plan.rows_read("delivery") <= 17
    assert plan.buffers < 16 * 20 + 400


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_counted_and_claimed_by_the_index_of_its_lane(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        found = postgres.run(batch_lanes(["billing"], 0, 100))
        assert {one.due for one in found} == {100}
        for _ in range(7):
            postgres.run(batch_lanes(["billing"], 0, 100))
            claims = postgres.run(claim_batch(found[0].lane, 100, SECOND, 5, "w1", LEASE))
            assert len(postgres.run(settle("w1", [outcome(c, Deliver()) for c in claims]))) == 100
        plan = postgres.explain("batch_lanes")
        assert plan.scans("delivery") == {"delivery_claim"}
        assert plan.rows_read("delivery") <= 17 + 100 * len(found)
        postgres.try_out(claim_batch(found[0].lane, 100, SECOND, 5, "w1", LEASE))
        plan = postgres.explain("claim_batch")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_pkey"}
        assert plan.rows_read("delivery") == 200, "100 to choose and 100 to write"
        assert plan.rows_removed("delivery") == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_take_over_looks_at_what_is_in_flight_and_at_nothing_else(quiet: PostgresStore, mode: str) -> None:
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            assert postgres.run(rescue("reaper", LEASE, 100)) == []
            assert postgres.run(next_expiry("reaper")) is not None
        plan = postgres.explain("rescue")
        assert plan.scans("delivery") == {"delivery_lease", "delivery_pkey"}
        assert plan.buffers < _rows_in_flight(quiet)
        plan = postgres.explain("next_expiry")
        assert plan.scans("delivery") == {"delivery_lease"}
        assert plan.buffers < _rows_in_flight(quiet)

        with psycopg.connect(quiet.conninfo) as connection:
            connection.execute(
                "update holdfast.delivery set lease_until = now() - interval '1 s' where status = 'in_flight'"
            )
            connection.commit()
        assert len(postgres.try_out(rescue("reaper", LEASE, 100))) == 100
        plan = postgres.explain("rescue")
        assert plan.scans("delivery") == {"delivery_lease", "delivery_pkey"}
        with psycopg.connect(quiet.conninfo) as connection:
            connection.execute(
                "update holdfast.delivery set lease_until = now() + interval '1 h' where status = 'in_flight'"
            )
            connection.commit()
            connection.autocommit = True
            connection.execute("vacuum holdfast.delivery")


@pytest.mark.parametrize("mode", MODES)
def test_deliveries_are_looked_up_by_the_key(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        listed = postgres.run(deliveries(Filter(), limit=100))
        (some,) = listed[:1]
        for _ in range(7):
            postgres.run(claim_states([Claim(found.delivery.id, "w1", 1) for found in listed]))
            assert len(postgres.run(deliveries_of(some.delivery.message_id))) >= 3
        owned, of_message = postgres.explain("claim_states"), postgres.explain("message_deliveries")
    assert owned.scans("delivery") == {"delivery_pkey"}
    assert owned.buffers < 100 * 8
    assert of_message.scans("delivery") == {"delivery_pkey"}
    assert of_message.scans("message") == {"message_pkey"}
    assert of_message.buffers < 100


@pytest.mark.parametrize("mode", MODES)
def test_pruning_walks_the_key_one_batch_at_a_time(busy: PostgresStore, mode: str) -> None:
    """The rows to remove are few and lie among many that stay; yet no batch looks at more than a thousand."""
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            removed, cursor = postgres.try_out(prune_deliveries(FROM_THE_START, fresh_id(), timedelta(days=7)))
            assert removed > 100
            assert cursor is not None
            postgres.try_out(prune_messages(FROM_THE_START, fresh_id(), timedelta(days=-1)))
        for table in ("delivery", "message"):
            plan = postgres.explain(f"{table}_window")
            assert plan.scans(table) == {f"{table}_pkey"}
            assert plan.rows_read(table) == 1001
            assert not plan.has("Sort")
        plan = postgres.explain("prune_deliveries")
        assert plan.scans("delivery") == {"delivery_pkey"}
        assert plan.scans("run") == {"run_pkey"}
        assert plan.rows_removed("delivery") < 1000
        assert plan.scans("message") == {"message_pkey", "message_log"}
        assert plan.buffers < 1000 * 8
        plan = postgres.explain("prune_messages")
        assert plan.scans("message") == {"message_pkey"}
        assert plan.scans("delivery") == {"delivery_pkey"}
        assert plan.buffers < 1000 * 8


@pytest.mark.parametrize("mode", MODES)
def test_failures_are_listed_from_indexes_that_hold_nothing_else(quiet: PostgresStore, mode: str) -> None:
    lists = {
        "dead letters": Filter(dead=True),
        "dead letters of a consumer": Filter(dead=True, consumers=("shipping",)),
        "dead letters of another": Filter(dead=True, consumers=("billing",)),
        "a group": Filter(dead=True, group="fingerprint-3"),
        "all that failed": Filter(statuses=(Status.FAILED,)),
        "discarded": Filter(discarded=True),
    }
    partial = {"delivery_failed", "delivery_failed_count", "delivery_group", "delivery_dead_consumer"}
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for name, wanted in lists.items():
            for _ in range(7):
                postgres.run(deliveries(wanted))
            plan = postgres.explain("list_deliveries")
            assert plan.scans("delivery") <= partial, name
            assert plan.buffers < 5 * _rows_failed(quiet), name
        for _ in range(7):
            postgres.run(deliveries(Filter(dead=True)))
            assert len(postgres.run(failure_groups())) == 7
        # The first page costs a page, for any number of rows.
        assert postgres.explain("list_deliveries").rows_read("delivery") == 50


@pytest.mark.parametrize("mode", MODES)
def test_activity_reads_ranges_of_two_indexes(quiet: PostgresStore, mode: str) -> None:
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            now = postgres.run(clock())
            postgres.run(query.following_deliveries(Filter(consumers=("mail",)), first_id(now)))
            postgres.run(query.recent_runs(now))
        assert postgres.explain("following_deliveries").scans("delivery") == {"delivery_pkey"}
        assert postgres.explain("recent_runs").scans("run") <= {"run_consumer"}


@pytest.mark.parametrize("mode", MODES)
def test_counting_never_reads_what_is_delivered(quiet: PostgresStore, mode: str) -> None:
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            counted = {(c.consumer, c.state): c.count for c in postgres.run(counts(exact=True))}
            assert counted["mail", "in_flight"] == _rows_in_flight(quiet)
        heads, sizes = postgres.explain("load_heads"), postgres.explain("load_sizes")
    assert heads.scans("delivery") == {"delivery_claim", "delivery_suspect", "delivery_lease", "delivery_failed_count"}
    assert sizes.scans("delivery") == {"delivery_claim", "delivery_suspect", "delivery_failed_count"}
    assert heads.buffers + sizes.buffers < 2 * _rows_in_flight(quiet)


@pytest.mark.parametrize("mode", MODES)
def test_catching_up_reads_the_log_by_its_index(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(7):
            with postgres.undone():
                postgres.continue_with(register([Declaration("audit")], [EventSubscription("*", "audit")], 0))
                assert postgres.continue_with(catch_up()) == (1000, True)
        plan = postgres.explain("catch_up_scan")
    assert plan.scans("message") == {"message_log"}
    assert plan.rows_read("message") == 1000
    assert plan.buffers < 1000


@pytest.mark.parametrize("mode", MODES)
def test_a_trend_reads_a_sample_of_each_slot_and_no_more(busy: PostgresStore, mode: str) -> None:
    edges = [uuid7(1700000000000 + n * 5000, 0) for n in range(11)]
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(6):
            postgres.run(accepted_samples(edges, 15))
            assert postgres.run(position_gaps(edges, 100)) == dict.fromkeys(range(10), 100)
        samples = postgres.run(accepted_samples(edges, 15))
        assert not any(sample.whole for sample in samples)
        plan, gaps = postgres.explain("accepted_samples"), postgres.explain("position_gaps")
    assert plan.scans("delivery") == {"delivery_pkey"}
    # The range of a message in the index may hold deliveries of another message of the same millisecond.
    assert plan.rows_read("delivery") <= 1.1 * sum(sample.made for sample in samples)
    assert plan.scans("message") == gaps.scans("message") == {"message_pkey"}
    assert plan.rows_read("message") <= 10 * (1 + 16 + 1)
    assert gaps.rows_read("message") <= 10 * (1 + 101 + 1)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_accepted_and_what_failed_of_it_is_counted_from_indexes_alone(quiet: PostgresStore, mode: str) -> None:
    edges = [uuid7(1700000000000 + n * 5000, 0) for n in range(11)]
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for _ in range(6):
            postgres.run(accepted_counts(edges, exact=True))
        counted = postgres.run(accepted_counts(edges, exact=True))
        plan = postgres.explain("accepted_counts")
    assert plan.scans("delivery") == {"delivery_pkey", "delivery_failed"}
    assert plan.rows_removed("delivery") == 0
    assert 0 < plan.rows_read("delivery") <= sum((one.made or 0) + one.failed for one in counted) + 10


@pytest.mark.parametrize("mode", MODES)
def test_deaths_are_counted_per_minute_from_an_index_alone(quiet: PostgresStore, mode: str) -> None:
    now = quiet.run_sync(clock()).replace(second=0, microsecond=0)
    long_ago, lately = [now - timedelta(days=40)], [now - timedelta(minutes=59)]
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        for _ in range(6):
            postgres.run(died(long_ago, timedelta(minutes=1)))
        everything = sum(postgres.run(died(long_ago, timedelta(minutes=1))).values())
        plan = postgres.explain("died")
        assert postgres.run(died(lately, timedelta(minutes=1))) == {}
        nothing = postgres.explain("died")
    assert plan.scans("delivery") == nothing.scans("delivery") == {"delivery_failed_count"}
    assert 0 < plan.rows_read("delivery") <= everything + 10
    assert nothing.rows_read("delivery") <= 10


@pytest.mark.parametrize("mode", MODES)
def test_what_is_retried_is_looked_for_at_the_end_of_a_lane(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(6):
            assert postgres.run(retrying([("default", "billing")], 500)) == []
        plan = postgres.explain("retrying")
    assert plan.scans("delivery") == {"delivery_claim"}
    assert plan.rows_read("delivery") <= 500


@pytest.mark.parametrize("mode", MODES)
def test_the_messages_of_a_request_are_found_by_its_id(busy: PostgresStore, mode: str) -> None:
    with session(busy) as postgres:
        postgres.plan_mode(mode)
        for _ in range(6):
            assert postgres.run(request_messages("r-1", 31)) == []
        assert postgres.explain("request_messages").scans("message") == {"message_request"}


@pytest.mark.parametrize("mode", MODES)
def test_a_trail_reads_the_deliveries_and_runs_of_its_messages_alone(quiet: PostgresStore, mode: str) -> None:
    with session(quiet) as postgres:
        postgres.plan_mode(mode)
        messages = [one.id for one in postgres.run(query.messages(limit=20))]
        found = postgres.run(trail_deliveries(messages, 51))
        ids = [one.delivery.id for several in found.values() for one in several]
        for _ in range(6):
            postgres.run(trail_deliveries(messages, 51))
            postgres.run(trail_runs(ids, 20))
        assert len(ids) > 0
        plan = postgres.explain("trail_deliveries")
        assert plan.scans("delivery") == {"delivery_pkey"}
        assert plan.rows_read("delivery") <= len(ids) + 10
        runs = postgres.explain("trail_runs")
        assert runs.scans("run") == {"run_pkey"}


def test_a_plan_made_while_the_tables_were_empty_is_not_kept(make: Callable[[], PostgresStore]) -> None:
    """A worker that waited for its first job must not read a table from end to end when the jobs come."""
    store = make()
    nothing = [Claim(fresh_id(), "w1", 1)]
    lane = Lane("default", "billing", 0, 1)
    with session(store) as postgres:
        for _ in range(20):
            postgres.run(claim([lane], "w1", LEASE, 20))
            postgres.run(rescue("reaper", LEASE, 20))
            postgres.run(claim_states(nothing))
            for change in (Deliver(), Retry(SECOND)):
                lost = Settlement(delivery_id=fresh_id(), fence=1, change=change, outcome=change.name)
                assert not postgres.run(settle("w1", [lost]))
        pile(store, Heap("mail", 20_000), Heap("billing", 20_000), analyze=False)

        claimed = postgres.run(claim([lane], "w1", LEASE, 20))
        assert len(claimed) == 20
        postgres.try_out(settle("w1", [outcome(c, Deliver()) for c in claimed]))
        postgres.try_out(settle("w1", [outcome(c, Retry(SECOND)) for c in claimed]))
        plans = {n: postgres.explain(n) for n in ("claim", "settle", "settle_delivered", "claim_states", "rescue")}
    assert all("Seq Scan" not in plan.scans("delivery") for plan in plans.values()), plans


@pytest.mark.parametrize("counted", [False, True], ids=["never counted", "counted"])
def test_what_is_hot_keeps_its_plan_from_an_empty_table_and_it_is_the_right_one(
    make: Callable[[], PostgresStore], counted: bool
) -> None:
    """A worker asks for the same few things all the time; planning is half of each answer to one that was idle."""
    store = make()
    if counted:
        with psycopg.connect(store.conninfo, autocommit=True) as connection:
            connection.execute("vacuum analyze")
    lane, error = Lane("default", "billing", 0, 1), failure()

    def ask(postgres: Session) -> list[Claimed]:
        postgres.run(lanes(CONSUMERS, 0))
        postgres.run(list_lanes(CONSUMERS, 0, known=[lane]))
        postgres.try_out(discover_and_claim(CONSUMERS, 0, "w1", LEASE, 500))
        claimed = postgres.run(claim([lane], "w1", LEASE, 500))
        for change, report in ((Deliver(), None), (Retry(SECOND), error)):
            lost = Settlement(fresh_id(), 1, change, change.name, report)
            settled = [outcome(c, change, error=report) for c in claimed] or [lost]
            assert len(postgres.try_out(settle("w1", settled))) == len(claimed)
        return claimed

    with session(store, hot=True) as postgres:
        for _ in range(3):
            assert not ask(postgres)
        pile(store, Heap("mail", 20_000), Heap("billing", 20_000), analyze=False)
        assert len(ask(postgres)) == 500

        plans = {
            n: postgres.explain(n)
            for n in ("lanes", "lanes_above", "claim", "discover_and_claim", "settle", "settle_delivered")
        }
        replanned = postgres.connection.execute("select sum(custom_plans) from pg_prepared_statements").fetchone()
    assert replanned == (0,), "each was planned once"
    for name, plan in plans.items():
        assert plan.scans("delivery") <= {"delivery_claim", "delivery_pkey"}, name
        assert plan.scans("message") <= {"message_pkey"}, name
        assert plan.rows_read("delivery") <= 1030, name
        assert plan.rows_removed("delivery") == 0, name
        assert _compared(plan) < 100, name


def test_a_settlement_joins_its_rows_although_none_were_held_when_they_were_counted(
    make: Callable[[], PostgresStore],
) -> None:
    """In a store of middling size the planner may read it whole, but must not compare each row with each."""
    store = make()
    pile(store, Heap("billing", 40_000))
    with session(store) as postgres:
        claimed = postgres.run(claim([Lane("default", "billing", 0, 1)], "w1", LEASE, 500))
        for change, name in ((Deliver(), "settle_delivered"), (Retry(SECOND), "settle")):
            postgres.try_out(settle("w1", [outcome(c, change) for c in claimed]))
            assert _compared(postgres.explain(name)) < 1000, name


def test_under_a_held_snapshot_a_claim_from_a_tight_floor_stays_flat(make: Callable[[], PostgresStore]) -> None:
    """What was claimed cannot be cleaned up while a transaction holds an old snapshot; a floor keeps the scan off it."""
    store = make()
    pile(store, Heap("shipping", 60_000), Heap("mail", 10_000))
    whole = [Lane("default", "shipping", 0, priority) for priority in range(4)]
    with session(store) as postgres, psycopg.connect(store.conninfo) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from holdfast.worker")
        first = postgres.run(claim(whole, "w1", LEASE, 100))
        before = _claim_plan(postgres, whole)
        floors, done = whole, len(first)
        postgres.run(settle("w1", [outcome(c, Deliver()) for c in first]))
        while done < 50_000:
            claimed = postgres.run(claim(floors, "w1", LEASE, 500))
            assert claimed, "a floor must not hide what waits"
            assert len(postgres.run(settle("w1", [outcome(c, Deliver()) for c in claimed]))) == len(claimed)
            done += len(claimed)
            floors = _floors(floors, claimed)
        tight, all_of_it = _claim_plan(postgres, floors), _claim_plan(postgres, whole)
    assert tight.buffers < 2 * before.buffers
    assert tight.scans("delivery") == all_of_it.scans("delivery") == {"delivery_claim", "delivery_pkey"}
    assert tight.buffers < all_of_it.buffers / 2, "the whole lane pays for the dead rows; it is rarely scanned"


def test_under_a_held_snapshot_lanes_are_listed_and_claimed_from_their_floors(
    make: Callable[[], PostgresStore],
) -> None:
    """What was claimed stays at the head of its lane; a listing that starts there reads all of it, also of
    a lane in which nothing is pending any more."""
    store = make()
    pile(store, Heap("shipping", 40_000), Heap("billing", 10_000))
    with session(store, hot=True) as postgres, psycopg.connect(store.conninfo) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from holdfast.worker")
        known = postgres.run(list_lanes(CONSUMERS, 0, known=())).floors
        for change in ("status = 'in_flight', locked_by = 'w1'", "status = 'delivered', locked_by = null"):
            sql(store, f"update {{hf}}delivery set {change} where consumer = 'shipping' and priority < 3")
        known = postgres.run(list_lanes(CONSUMERS, 0, known=known)).floors
        assert known is not None
        assert len(known) == 8
        pages = {}
        for name, floors in (("start", []), ("floors", known)):
            assert len(postgres.run(list_lanes(CONSUMERS, 0, known=floors)).lanes) == 5
            pages["lanes_above", name] = postgres.explain("lanes_above").buffers
            claimed = postgres.try_out(discover_and_claim(CONSUMERS, 0, "w1", LEASE, 20, known=floors))
            assert len(claimed) == 20
            plan = postgres.explain("discover_and_claim")
            assert plan.scans("delivery") == {"delivery_claim", "delivery_pkey"}
            pages["discover_and_claim", name] = plan.buffers
    assert pages["lanes_above", "start"] > 1000
    assert pages["lanes_above", "floors"] < 100
    assert pages["discover_and_claim", "floors"] < min(600, pages["discover_and_claim", "start"] / 2)


def test_a_publish_does_not_read_every_subscription(make: Callable[[], PostgresStore]) -> None:
    """Each endpoint of a tenant is one of them, and each publish asks for the newest."""
    store = make()
    sql(
        store,
        "insert into {hf}subscription (pattern, consumer, epoch, since_epoch, from_start, mark_tx) "
        "select 'tenant.' || n, 'billing', 1, 1, false, '0' from generate_series(1, 20000) n",
    )
    sql(store, "analyze {hf}subscription")
    fanout = Fanout()
    with session(store) as postgres:
        postgres.try_out(publish([job("mail")], fanout))
        postgres.try_out(publish([job("mail"), job("mail")], fanout))
        postgres.try_out(publish([message(key="k")], fanout))
        for name in ("publish_one", "publish_alike", "publish_keyed"):
            plan = postgres.explain(name)
            assert plan.scans("subscription") == {"subscription_epoch"}, name
            assert plan.rows_read("subscription") <= 1, name


def test_the_first_holder_of_a_key_is_found_by_indexes(make: Callable[[], PostgresStore]) -> None:
    store = make()
    sql(
        store,
        "insert into {hf}message (id, type, source, key, key_scope, payload, headers, generation, sub_epoch) "
        "select gen_random_uuid(), 'job.mail', 'web', n::text, case when n % 2 = 0 then 'job.mail' end, '{}', '{}', 0, 0 "
        "from generate_series(1, 20000) n",
    )
    sql(store, "analyze {hf}message")
    with session(store) as postgres, postgres.undone():
        for _ in range(6):
            (found,) = postgres.continue_with(publish([job("mail", {}, key="20000", source="jobs")], Fanout()))
            assert not found.created
        plan = postgres.explain("find_keyed")
    assert plan.scans("message") == {"message_key", "message_key_scope"}
    assert plan.rows_read("message") == 1


def test_a_replay_of_many_reads_only_what_it_replays(quiet: PostgresStore) -> None:
    """It runs inside a function of the database, so the pages are counted by the server's statistics."""
    with session(quiet) as postgres:
        ids = [found.delivery.id for found in postgres.run(deliveries(Filter(dead=True), limit=100))]
        with postgres.undone():
            before = _rows_fetched(postgres)
            assert len(postgres.continue_with(replay(ids, "ada", None))) == 100
            assert _rows_fetched(postgres) - before < 100 * 10


@pytest.fixture(scope="module")
def piled_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path_factory.mktemp("plans") / "holdfast.db")
    store.migrate()
    declared = [Declaration(consumer) for consumer in CONSUMERS]
    store.run_sync(register(declared, [EventSubscription("order.*", consumer) for consumer in CONSUMERS], 0))
    pile_sqlite(
        store,
        Heap("mail", 2_000),
        Heap("billing", 2_000),
        Heap("billing", 2_000, status="delivered", queue="done"),
        Heap("shipping", 200, status="failed"),
        Heap("shipping", 100, status="in_flight", queue="running"),
    )
    yield store
    store.close_sync()


def test_sqlite_uses_the_same_indexes(piled_sqlite: SqliteStore) -> None:
    def indexes(operation: Any) -> set[str]:
        _, plan = sqlite_plan(piled_sqlite, operation)
        assert not [
            line
            for line in plan
            if line.startswith(("SCAN d", "SCAN holdfast_delivery", "SCAN holdfast_message")) and "INDEX" not in line
        ], plan
        return {
            word.removeprefix("holdfast_") for line in plan for word in line.split() if word.startswith("holdfast_")
        }

    found, plan = sqlite_plan(piled_sqlite, lanes(CONSUMERS, 0))
    assert len(found) == 8
    for probe in ("consumer=? AND generation=? AND priority>?", "consumer=? AND generation>?", "consumer>?"):
        assert any(f"INDEX holdfast_delivery_claim (queue=? AND {probe})" in line for line in plan), plan
    claimed, plan = sqlite_plan(piled_sqlite, claim(found, "w1", LEASE, 20))
    assert any(
        "INDEX holdfast_delivery_claim (queue=? AND consumer=? AND generation=? AND priority=? AND run_at<?)" in line
        for line in plan
    ), plan
    assert not any("TEMP B-TREE" in line for line in plan), "the index has the order already"
    assert "delivery_claim" in indexes(claim(found, "w1", LEASE, 20))
    assert len(claimed) == 20
    for change in (Deliver(), Retry(SECOND)):
        assert "sqlite_autoindex_holdfast_delivery_1" in str(
            sqlite_plan(piled_sqlite, settle("w1", [outcome(c, change) for c in claimed]))[1]
        )
    assert "delivery_lease" in indexes(rescue("reaper", LEASE, 20))
    assert "delivery_lease" in indexes(next_expiry("reaper"))
    assert indexes(deliveries(Filter(dead=True))) & {"delivery_failed", "delivery_group"}
    assert "delivery_failed" in indexes(deliveries(Filter(statuses=(Status.FAILED,))))
    assert indexes(counts()) >= {"delivery_claim", "delivery_suspect", "delivery_lease", "delivery_failed_count"}
    indexes(failure_groups())
    slots = [uuid7(n, 0) for n in range(3)]
    indexes(accepted_samples(slots, 10))
    states = [(state, "default", "billing") for state in ("pending", "in_flight", "failed")]
    sampled = indexes(field_values(["tenant"], states, 10, is_header=True))
    assert sampled >= {"delivery_claim", "delivery_failed_count"}
    indexes(position_gaps(slots, 10))
    assert "delivery_failed" in indexes(accepted_counts(slots, exact=True))
    assert "delivery_failed_count" in indexes(died([datetime.now(UTC)], timedelta(minutes=1)))
    assert "delivery_claim" in indexes(retrying([("default", "billing")], 10))
    assert "message_request" in indexes(request_messages("r-1", 10))
    assert "delivery_replayed" in indexes(at_history_bound())
    indexes(trail_deliveries([fresh_id(), fresh_id()], 10))
    indexes(trail_runs([fresh_id(), fresh_id()], 10))
    assert "audit_target" in str(sqlite_plan(piled_sqlite, trail_audit([fresh_id()], 10))[1])
    indexes(prune_deliveries(FROM_THE_START, fresh_id(), timedelta(days=7)))
    indexes(catch_up())
    assert "subscription_epoch" in indexes(publish([job("mail")], Fanout(Subscriptions(1, {}))))


def _claim_plan(postgres: Session, wanted: list[Lane]) -> Plan:
    postgres.try_out(claim(wanted, "w1", LEASE, 100))
    return postgres.explain("claim")


def _compared(plan: Plan) -> int:
    """How many pairs of rows were looked at in vain."""
    return round(sum(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in plan.nodes))


def _floors(floors: list[Lane], claimed: list[Claimed]) -> list[Lane]:
    """Each lane's floor raised to the lowest of this claim; a lane that gave nothing keeps its own."""
    raised = []
    for lane in floors:
        mine = [(c.run_at, c.id) for c in claimed if c.priority == lane.priority]
        at, id = min(mine, default=(lane.floor_at, lane.floor_id))
        raised.append(lane._replace(floor_at=at, floor_id=id))
    return raised


def _rows_in_flight(store: PostgresStore) -> int:
    return _count(store, "status = 'in_flight'")


def _rows_failed(store: PostgresStore) -> int:
    return _count(store, "status = 'failed'")


def _count(store: PostgresStore, where: str) -> int:
    with psycopg.connect(store.conninfo) as connection:
        row = connection.execute(f"select count(*) from holdfast.delivery where {where}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _rows_fetched(postgres: Session) -> int:
    """How many rows of deliveries this transaction has read, by any way."""
    row = postgres.connection.execute(
        "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'delivery'"
    ).fetchone()
    assert row is not None
    return int(row[0])
