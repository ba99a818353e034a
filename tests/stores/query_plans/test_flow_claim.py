"""Claims with flow control read what they claim and a few entries of each key, with 100,000 deliveries of 20,000 keys."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Limit, Rate
from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.flow import FlowSettings
from holdfast.stores.deliveries.claim import Lane, LaneFlow
from holdfast.stores.deliveries.debounce import claim_debounced
from holdfast.stores.deliveries.flow import (
    Floors,
    FlowScan,
    KeyFloor,
    claim_flow,
    due_lanes,
    flow_floors,
    unkeyed_deliveries,
)
from holdfast.stores.postgres.store import PostgresStore
from tests.stores.mutation import applied, postgres
from tests.stores.query_plans.backlog import FLOW_KEYS
from tests.stores.query_plans.explain import Plan, Session, session
from tests.support.builders import LEASE

pytestmark = pytest.mark.long

MODES = ["auto", "force_generic_plan", "force_custom_plan"]
SIZE = 20
WINDOW = 2 * SIZE + 100
WALK = "tenant-010000"
FEW_KEYS = (
    """insert into holdfast.message (id, type, source, payload, headers, generation, sub_epoch)
    values ('01890000-0000-7000-8000-000000000000', 'order.placed', 'shop', '{}', '{}', 0, 1)""",
    """insert into holdfast.delivery (id, message_id, consumer, queue, priority, generation, run_at, flow_key)
    select gen_random_uuid(), '01890000-0000-7000-8000-000000000000', 'fair', 'default', 1, 0,
           now() - interval '1 s' * (case when n < 10000 then 7200 else 60 end) + n * interval '1 ms', 'k' || n % 10
    from generate_series(0, 10999) n""",
    "vacuum analyze holdfast.delivery",
)
RUNNING = FLOW_KEYS // 10
INDEXES = {
    "delivery_claim", "delivery_flow", "delivery_order", "delivery_stuck", "delivery_running", "delivery_queue_running",
    "delivery_pkey",
}  # fmt: skip


def lane(consumer: str, queue: FlowSettings | None = None, **options: Any) -> Lane:
    return Lane("default", consumer, 0, 1, flow=LaneFlow(flow_settings(options) if options else None, queue))


LANES = {
    "limit": lane("limited", limit=Limit(10)),
    "limit by key": lane("limited", limit=Limit(2, by="tenant")),
    "rate": lane("limited", rate=Rate("1000/10s")),
    "rate by key": lane("limited", rate=Rate("10/10s", by="tenant")),
    "fair": lane("limited", fair_by="tenant"),
    "order, block": lane("ordered", order_by="tenant", on_dead="block"),
    "order, skip": lane("ordered", order_by="tenant", on_dead="skip"),
    "order and limit": lane("ordered", order_by="tenant", on_dead="skip", limit=Limit(50)),
    "hot": lane("hot", limit=Limit(2, by="tenant")),
    "busy": lane("busy", limit=Limit(SIZE, by="tenant")),
    "queue": lane("limited", FlowSettings(limit=50, rate_count=1000, rate_window=timedelta(seconds=10))),
}


def claimed(asked: Session, name: str, scan: FlowScan, floors: Floors | None = None) -> Plan:
    asked.try_out(claim_flow(LANES[name], "w1", LEASE, scan, floors or Floors()))
    return asked.explain("flow_claim")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LANES)
def test_a_claim_reads_its_window_or_its_keys(flow_backlog: PostgresStore, name: str, mode: str) -> None:
    flow = LANES[name].flow
    assert flow is not None
    is_keyed = flow.consumer is not None and flow.consumer.key is not None
    with session(flow_backlog) as asked:
        asked.plan_mode(mode)
        for scan in (FlowScan(SIZE), FlowScan(SIZE, WALK)) if is_keyed else (FlowScan(SIZE),):
            plan = claimed(asked, name, scan)
            assert plan.scans("delivery") <= INDEXES
            read = plan.rows_read("delivery") + plan.rows_removed("delivery")
            # Each candidate, for its key up to three entries, and each claimed delivery twice.
            assert read <= (4 * WINDOW if scan.cursor is None else 4 * SIZE) + 2 * SIZE, (scan, read)
            assert plan.buffers < 10 * WINDOW + 30 * SIZE


@pytest.mark.parametrize("mode", MODES)
def test_a_debounced_claim_reads_what_is_due_up_to_its_bound(flow_backlog: PostgresStore, mode: str) -> None:
    debounced = lane("ordered", debounce="5s", max_wait="1m", by="tenant")
    with session(flow_backlog) as asked:
        asked.plan_mode(mode)
        found = asked.try_out(claim_debounced(debounced, "w1", LEASE, SIZE))
        assert (len(found.claims), found.changed) == (SIZE, SIZE * 4)
        plan = asked.explain("claim_debounced")
        assert plan.scans("delivery") <= INDEXES
        # 1,000 due ones, all that is in flight once, and the five of each key a few times.
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 1000 + RUNNING + SIZE * 25
        assert plan.buffers < 1000 * 8 + SIZE * 5 * 30


@pytest.mark.parametrize("mode", MODES)
def test_the_other_statements_of_flow_control_read_few_entries(flow_backlog: PostgresStore, mode: str) -> None:
    ordered, limited = LANES["order, block"], LANES["limit by key"]
    with session(flow_backlog) as asked:
        asked.plan_mode(mode)
        # The third has reached its limit.
        assert asked.try_out(due_lanes([ordered, limited, LANES["limit"]])) == [ordered, limited]
        plan = asked.explain("due_lanes")
        assert plan.scans("delivery") == {"delivery_claim", "delivery_running"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 3 + 10

        asked.try_out(flow_floors(limited))
        plan = asked.explain("flow_floor")
        assert plan.scans("delivery") <= {"delivery_running", "delivery_queue_running"}
        assert plan.rows_read("delivery") <= RUNNING + 1

        assert asked.try_out(unkeyed_deliveries(limited, 100, ordered=False, scanned=500)).found == []
        plan = asked.explain("flow_unkeyed")
        assert plan.scans("delivery") == {"delivery_claim"}
        assert plan.rows_read("delivery") + plan.rows_removed("delivery") <= 1000


WRONG = postgres(
    "flow_walk",
    "where {walked} and d.flow_key > p.key\n       order by d.flow_key, {first} limit 1)",
    "where {walked} and d.flow_key > p.key\n       order by d.flow_key || '', {first} limit 1)",
)
"""The attack on the planner: the walk asks for the next key in an order that is not the index's."""


@pytest.mark.parametrize("mode", MODES)
def test_the_planner_takes_the_index_by_key_although_one_key_has_nearly_all_rows(
    flow_backlog: PostgresStore, mode: str
) -> None:
    def read(store: PostgresStore) -> int:
        with session(store) as asked:
            asked.plan_mode(mode)
            plan = claimed(asked, "hot", FlowScan(SIZE, "tenant-000000"))
            return plan.rows_read("delivery") + plan.rows_removed("delivery")

    assert read(flow_backlog) <= 6 * SIZE
    store = PostgresStore(flow_backlog.conninfo)
    with applied(store, WRONG):
        assert read(store) > SIZE * SIZE
    store.close_sync()


TWICE = postgres("flow_walk_rows", "(p.key, p.first)", "(p.key, timestamptz '-infinity')")
"""A key that the walk has found is read from its beginning again."""


def test_under_a_held_snapshot_a_claim_starts_at_its_floors(flow_backlog: PostgresStore) -> None:
    """Deliveries that ran leave entries behind that no vacuum removes; floors keep the scan and the count away from them."""
    store, busy = flow_backlog, LANES["busy"]
    with psycopg.connect(store.conninfo) as other, session(store) as asked:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from holdfast.message")
        for change in (
            "status = 'in_flight', locked_by = 'w1', flow_ticket = nextval('holdfast.flow_ticket')",
            "status = 'delivered', locked_by = null, completed_at = now()",
        ):
            asked.connection.execute(
                f"update holdfast.delivery set {change} where id = any (array(select id from holdfast.delivery "
                f"where consumer = 'busy' order by run_at limit {FLOW_KEYS * 3 // 8}))".encode()
            )
        floors = asked.run(flow_floors(busy))
        found = asked.try_out(claim_flow(busy, "w1", LEASE, FlowScan(SIZE), floors))
        assert (len(found.claims), found.floor is not None) == (SIZE, True)
        assert found.floor is not None
        high = busy._replace(floor_at=found.floor[0], floor_id=found.floor[1])

        def pages(lane: Lane, floors: Floors) -> int:
            asked.try_out(claim_flow(lane, "w1", LEASE, FlowScan(SIZE), floors))
            return asked.explain("flow_claim").buffers

        kept = pages(high, floors)
        assert kept < WINDOW * 4 + SIZE * 30
        assert pages(busy, floors) > kept + 100, "without the floor of the lane"
        assert pages(high, Floors()) > kept + 100, "without the lowest ticket"


@pytest.mark.parametrize("place", ["postgres16", "postgres18"], indirect=True)
async def test_under_a_held_snapshot_a_walk_reads_the_dead_rows_of_known_keys_once(store: PostgresStore) -> None:
    """10 keys with 100 deliveries, after 1,000 of each ran: without floors a walk reads 1,000 entries of each key."""
    with psycopg.connect(store.conninfo, autocommit=True) as filling:
        for text in FEW_KEYS:
            filling.execute(text)
    fair = Lane("default", "fair", 0, 1, flow=LaneFlow(flow_settings({"fair_by": "k"}), None))
    with psycopg.connect(store.conninfo) as other, session(store) as asked:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from holdfast.message")
        asked.connection.execute(
            "update holdfast.delivery set status = 'delivered' where run_at < now() - interval '1 h'"
        )
        found = asked.try_out(claim_flow(fair, "w1", LEASE, FlowScan(10, "", known=()), Floors()))
        known = tuple((key, first) for key, first in found.visited if first is not None)
        assert len(known) == 10

        def pages(asked: Session, keys: tuple[KeyFloor, ...] | None) -> int:
            scan = FlowScan(10, "", known=keys)
            assert len(asked.try_out(claim_flow(fair, "w1", LEASE, scan, Floors())).claims) == 10
            return asked.explain("flow_claim").buffers

        whole, floored = pages(asked, None), pages(asked, known)
        assert floored < 500
        assert 5 * floored < whole < 4_000
        mutated = PostgresStore(store.conninfo)
        with applied(mutated, TWICE), session(mutated) as wrong:
            assert pages(wrong, None) > 4_000
        await mutated.close()
