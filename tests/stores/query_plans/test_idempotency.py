"""Idempotency records are found by their index, in any number."""

from dataclasses import replace
from datetime import timedelta

from holdfast.stores.integrations.idempotency import (
    Reservation,
    StoredResponse,
    forget_requests,
    read_record,
    records,
    renew,
    reserve,
    store_response,
)
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.query_plans.explain import session, sqlite_plan
from tests.support.builders import sql

MANY = 20_000
LEASE, DAY = timedelta(seconds=10), timedelta(days=1)
HELD = Reservation("tenant-7", "key-7", "hash", "owner-7", "POST", "/orders")
NEW = replace(HELD, key="new", owner="new")


def test_postgresql_reads_a_record_by_its_key(postgres_store: PostgresStore) -> None:
    sql(
        postgres_store,
        "insert into {hf}idempotency (scope, key, request_hash, owner, method, path, lease_until, expires_at) "
        "select 'tenant-' || n % 100, 'key-' || n, 'hash', 'owner-' || n, 'POST', '/', now() + interval '1 h', "
        f"now() + n * interval '1 s' from generate_series(1, {MANY}) n",
    )
    sql(postgres_store, "analyze {hf}idempotency")
    steps = {
        "reserve_request": reserve(NEW, LEASE, DAY),
        "read_request": read_record("tenant-7", "key-7"),
        "finish_request": store_response(HELD, StoredResponse(201)),
        "renew_requests": renew([HELD], LEASE),
        "forget_requests": forget_requests(),
        "list_requests": records(limit=20),
    }
    with session(postgres_store) as postgres:
        for name, step in steps.items():
            for _ in range(6):
                postgres.try_out(step)
            plan = postgres.explain(name)
            assert "Seq Scan" not in plan.scans("idempotency"), (name, plan.scans("idempotency"))
            assert plan.rows_read("idempotency") <= 25, name


def test_sqlite_reads_a_record_by_its_key(sqlite_store: SqliteStore) -> None:
    for step in (reserve(NEW, LEASE, DAY), read_record("tenant-7", "key-7"), store_response(HELD, StoredResponse(201))):
        _, plan = sqlite_plan(sqlite_store, step)
        assert not any(line.startswith(("SCAN holdfast_idempotency", "SCAN i")) for line in plan), plan
    for listing in (forget_requests(), records(limit=20)):
        _, plan = sqlite_plan(sqlite_store, listing)
        assert any("holdfast_idempotency_expiry" in line for line in plan), plan
