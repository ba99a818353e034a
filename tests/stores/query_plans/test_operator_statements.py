"""The queries of operators find their rows by an index, for any amount of data."""

import pytest

from holdfast.core.delivery import Status
from holdfast.core.identity import uuid7
from holdfast.stores.admin.audit import AuditFilter, audit_page
from holdfast.stores.admin.plan_results import follow_plan
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.failure import failing_runs
from holdfast.stores.queries.field_values import field_values
from holdfast.stores.queries.health import at_history_bound
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.stores.queries.search import deliveries_by_prefix, search_stretch
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.backlog import Heap, pile
from tests.stores.query_plans.explain import session
from tests.support.builders import sql

_PLAN = uuid7(1_700_000_000_000, 1)


@pytest.fixture(scope="module")
def full(postgres18: PostgresServer) -> PostgresStore:
    store = PostgresStore(postgres18.create_database("operators"))
    store.migrate()
    pile(store, Heap("mail", 30_000, status="delivered"), Heap("export", 20_000, status="failed"))
    sql(
        store,
        "insert into {hf}audit (actor, action, kind, target, plan_id) "
        f"select 'ada', 'replay', 'delivery', id::text, '{_PLAN}' from {{hf}}delivery where status = 'failed'",
    )
    sql(store, f"insert into {{hf}}audit (actor, action, kind, target) values ('ada', 'finish', 'plan', '{_PLAN}')")
    sql(
        store,
        "insert into {hf}plan (id, action, state, preview, rerun, items, total, done, skipped, made_at, saved_by) "
        f"values ('{_PLAN}', 'replay', 'done', '{{}}', false, 20000, 20000, 20000, '{{}}', now(), 'ada')",
    )
    sql(
        store,
        "insert into {hf}plan_item (plan_id, n, delivery_id, outcome) "
        f"select '{_PLAN}', row_number() over (order by id), id, 'done' from {{hf}}delivery where status = 'failed'",
    )
    sql(store, "analyze")
    return store


def test_the_failing_runs_of_a_group_are_two_look_ups(full: PostgresStore) -> None:
    (one,) = full.run_sync(deliveries(Filter(statuses=(Status.FAILED,)), 1))
    with session(full) as asked:
        asked.run(failing_runs([(one.delivery.fingerprint, "export", one.delivery.id)]))
        plan = asked.explain("failing_runs")
        assert plan.scans("delivery") <= {"delivery_failure", "delivery_group", "delivery_dead_consumer"}
        assert plan.scans("run") == {"run_pkey"}


def test_the_audit_lists_a_plan_without_reading_its_deliveries(full: PostgresStore) -> None:
    with session(full) as asked:
        (entry,) = asked.run(audit_page(AuditFilter(), 50))
        assert (entry.kind, entry.target) == ("plan", str(_PLAN))
        plan = asked.explain("audit")
        assert "audit_listed" in plan.scans("audit")
        assert plan.rows_read("audit") + plan.rows_removed("audit") < 100


@pytest.mark.parametrize("dead", [True, False])
def test_a_search_scans_one_stretch(full: PostgresStore, dead: bool) -> None:
    with session(full) as asked:
        asked.run(search_stretch("nosuchthing", 50, None, dead=dead))
        plan = asked.explain("search_deliveries")
        assert "Seq Scan" not in plan.scans("delivery") | plan.scans("message")
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 2_000


@pytest.mark.parametrize("is_header", [True, False])
def test_the_values_of_a_field_are_read_from_a_sample(full: PostgresStore, is_header: bool) -> None:
    lanes = [(state, "default", "export") for state in ("pending", "in_flight", "failed")]
    with session(full) as asked:
        found = asked.run(field_values(["tenant"], lanes, 100, is_header=is_header))
        assert [(one.n, one.size) for one in found] == [(2, 100)]
        plan = asked.explain("field_values")
        assert "Seq Scan" not in plan.scans("delivery") | plan.scans("message")
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 200
        assert plan.rows_read("message") <= 100


def test_full_failure_histories_are_found_by_the_index_of_replayed_deliveries(full: PostgresStore) -> None:
    with session(full) as asked:
        assert asked.run(at_history_bound()) == []
        assert asked.explain("history_bound").scans("delivery") == {"delivery_replayed"}


def test_the_beginning_of_an_id_is_looked_up(full: PostgresStore) -> None:
    with session(full) as asked:
        asked.run(deliveries_by_prefix("01a1e13e", 50))
        assert asked.explain("deliveries_by_range").scans("delivery") == {"delivery_pkey"}


def test_a_plan_is_followed_by_its_unsettled_deliveries(full: PostgresStore) -> None:
    with session(full) as asked:
        asked.run(follow_plan(_PLAN))
        plan = asked.explain("unsettled_plan_items")
        assert "Seq Scan" not in plan.scans("plan_item") | plan.scans("delivery")
        assert plan.rows_read("plan_item") <= 500
