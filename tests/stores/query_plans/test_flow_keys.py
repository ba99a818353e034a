"""A page of keys reads as many index entries as it shows, for any number of keys."""

import pytest

from holdfast.core.flow import FlowSettings, key_rule
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.flow_keys import KeySource, flow_keys, key_counts
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.explain import session
from tests.support.builders import sql

pytestmark = pytest.mark.long

_KEYS = 20_000
_BY_TENANT = FlowSettings(key=key_rule("by", "tenant"), limit=2, limit_by_key=True)


@pytest.fixture(scope="module")
def full(postgres18: PostgresServer) -> PostgresStore:
    """The consumers `limited` and `ordered` with 20,000 keys; each key of `ordered` has a dead letter."""
    store = PostgresStore(postgres18.create_database("flow_keys"))
    store.migrate()
    for consumer, place, statuses in (("limited", "null::bigint", "pending"), ("ordered", "n", "failed")):
        for status in {"pending", statuses}:
            sql(
                store,
                "insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, run_at, status, "
                "completed_at, flow_key, flow_seq) select gen_random_uuid(), gen_random_uuid(), "
                f"'{consumer}', 'default', 1, 0, now(), '{status}', case when '{status}' = 'failed' then now() end, "
                f"'tenant-' || lpad((n % {_KEYS})::text, 6, '0'), {place} from generate_series(1, {3 * _KEYS}) n",
            )
    # Running deliveries, so that the planner knows that the index by queue does not find them by key.
    sql(
        store,
        "update {hf}delivery set status = 'in_flight', locked_by = 'w1', lease_until = now() + interval '1 h' "
        "where status = 'pending' and consumer = 'limited' and flow_key >= 'tenant-018000'",
    )
    sql(store, "vacuum analyze {hf}delivery")
    return store


@pytest.mark.parametrize(
    ("consumer", "source", "statement", "index"),
    [
        ("limited", KeySource.WAITING, "lane_keys", "delivery_flow"),
        ("ordered", KeySource.WAITING, "walk_keys", "delivery_order"),
        ("ordered", KeySource.DEAD, "walk_keys", "delivery_stuck"),
    ],
)
def test_keys_are_found_by_one_entry_each(
    full: PostgresStore, consumer: str, source: KeySource, statement: str, index: str
) -> None:
    with session(full) as asked:
        walk: Operation[list[str]] = flow_keys(consumer, [source], "tenant-010000", 50)
        assert len(asked.run(walk)) == 50
        plan = asked.explain(statement)
        assert plan.scans("delivery") == {index}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 50


@pytest.mark.parametrize("consumer", ["limited", "ordered"])
def test_keys_are_counted_by_their_own_entries(full: PostgresStore, consumer: str) -> None:
    with session(full) as asked:
        keys = [f"tenant-{n:06}" for n in range(50)]
        assert {row.waiting for row in asked.run(key_counts(consumer, _BY_TENANT, keys))} == {3}
        plan = asked.explain("key_counts")
        assert plan.scans("delivery") <= {"delivery_flow", "delivery_order", "delivery_stuck", "delivery_running"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 50 * 8
