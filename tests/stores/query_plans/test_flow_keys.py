"""A page of keys reads as many index entries as it shows, for any number of keys."""

import pytest

from holdfast.core.flow import FlowSettings, key_rule
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.flow_keys import KeySource, flow_keys, key_counts
from tests.stores.query_plans.explain import session

pytestmark = pytest.mark.long

_BY_TENANT = FlowSettings(key=key_rule("by", "tenant"), limit=2, limit_by_key=True)


@pytest.mark.parametrize(
    ("consumer", "source", "statement", "index"),
    [
        ("limited", KeySource.WAITING, "lane_keys", "delivery_flow"),
        ("ordered", KeySource.WAITING, "walk_keys", "delivery_order"),
        ("ordered", KeySource.DEAD, "walk_keys", "delivery_stuck"),
    ],
)
def test_keys_are_found_by_one_entry_each(
    flow_backlog: PostgresStore, consumer: str, source: KeySource, statement: str, index: str
) -> None:
    with session(flow_backlog) as asked:
        walk: Operation[list[str]] = flow_keys(consumer, [source], "tenant-010000", 50)
        assert len(asked.run(walk)) == 50
        plan = asked.explain(statement)
        assert plan.scans("delivery") == {index}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 50


@pytest.mark.parametrize("consumer", ["limited", "ordered"])
def test_keys_are_counted_by_their_own_entries(flow_backlog: PostgresStore, consumer: str) -> None:
    with session(flow_backlog) as asked:
        keys = [f"tenant-{n:06}" for n in range(50)]
        assert {row.waiting for row in asked.run(key_counts(consumer, _BY_TENANT, keys))} == {5}
        plan = asked.explain("key_counts")
        assert plan.scans("delivery") <= {"delivery_flow", "delivery_order", "delivery_stuck", "delivery_running"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 50 * 14
