"""Idempotency records on every place that keeps them: one suite for SQLite, PostgreSQL and Redis.

The blocking side is used here; the awaiting one runs the same steps and is covered by the middleware's tests.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from holdfast.core.errors import NotFound, Refused, ReservationLost
from holdfast.idempotency.records import ReadRecord, ReleaseKey, RenewKeys, ReserveKey, Step, StoreResponse
from holdfast.stores.admin.actions import audit
from holdfast.stores.connections.connection import adapt_connection, run_on
from holdfast.stores.integrations.idempotency import (
    KeyStatus,
    Reservation,
    StoredRecord,
    StoredResponse,
    complete,
    expired_requests,
    forget_requests,
    records,
    release_record,
)
from tests.idempotency.record_stores import RecordStore

LEASE = timedelta(seconds=10)
DAY = timedelta(days=1)
FIRST = Reservation("tenant-1", "k-1", "hash-1", "owner-1", "POST", "/orders")
SECOND = replace(FIRST, owner="owner-2")
CREATED = StoredResponse(201, (("content-type", "application/json"), ("x-note", "é")), b'{"id":1}\x00\xff')


def reserve(place: RecordStore, held: Reservation, lease: timedelta = LEASE) -> StoredRecord:
    found: StoredRecord = place.records.do_sync(ReserveKey(held, lease, DAY))
    return found


def test_a_new_key_is_reserved_for_its_owner(place: RecordStore) -> None:
    found = reserve(place, FIRST)
    assert found == StoredRecord("owner-1", "hash-1", KeyStatus.STARTED, False, None)
    assert place.records.do_sync(ReadRecord(FIRST)) == found
    assert place.records.do_sync(ReadRecord(replace(FIRST, key="other"))) is None


def test_a_key_that_is_held_stays_with_its_owner(place: RecordStore) -> None:
    reserve(place, FIRST)
    assert reserve(place, SECOND).owner == "owner-1"
    place.pass_time(LEASE - timedelta(seconds=2))
    assert reserve(place, SECOND).owner == "owner-1"


def test_a_stored_response_is_returned_byte_by_byte(place: RecordStore) -> None:
    reserve(place, FIRST)
    assert place.records.do_sync(StoreResponse(FIRST, CREATED))
    found = reserve(place, SECOND)
    assert found == StoredRecord("owner-1", "hash-1", KeyStatus.COMPLETED, False, CREATED)


def test_an_error_that_is_kept_is_failed_and_a_body_may_be_missing(place: RecordStore) -> None:
    reserve(place, FIRST)
    assert place.records.do_sync(StoreResponse(FIRST, StoredResponse(422, (), None)))
    found = reserve(place, SECOND)
    assert (found.progress, found.response) == (KeyStatus.FAILED, StoredResponse(422, (), None))


def test_scopes_and_keys_are_kept_apart(place: RecordStore) -> None:
    # The pairs would be the same text if they were merely joined.
    for scope, key in [("tenant-1", "k-1"), ("tenant-2", "k-1"), ("a:b", "c"), ("a", "b:c")]:
        held = Reservation(scope, key, "hash", f"owner of {scope} {key}")
        assert reserve(place, held).owner == held.owner
        place.records.do_sync(StoreResponse(held, replace(CREATED, body=scope.encode())))
    found = reserve(place, replace(SECOND, scope="tenant-2"))
    assert found.response is not None
    assert found.response.body == b"tenant-2"


def test_a_lease_that_ran_out_is_taken_over_and_the_late_owner_is_fenced(place: RecordStore) -> None:
    reserve(place, FIRST)
    place.pass_time(LEASE + timedelta(seconds=1))
    assert place.records.do_sync(ReadRecord(FIRST)).lapsed
    taken = reserve(place, SECOND)
    assert taken == StoredRecord("owner-2", "hash-1", KeyStatus.STARTED, False, None)
    assert not place.records.do_sync(StoreResponse(FIRST, CREATED))
    assert not place.records.do_sync(ReleaseKey(FIRST))
    assert place.records.do_sync(RenewKeys([FIRST], LEASE)) == frozenset()
    assert place.records.do_sync(ReadRecord(FIRST)) == taken
    assert place.records.do_sync(StoreResponse(SECOND, CREATED))


def test_an_owner_with_an_expired_lease_can_finish_if_no_request_took_over(place: RecordStore) -> None:
    reserve(place, FIRST)
    place.pass_time(LEASE + timedelta(seconds=1))
    assert place.records.do_sync(StoreResponse(FIRST, CREATED))
    assert reserve(place, SECOND).response == CREATED


def test_renewing_prolongs_every_lease_that_is_still_held(place: RecordStore) -> None:
    other = replace(FIRST, key="k-2", owner="owner-3")
    reserve(place, FIRST)
    reserve(place, other)
    place.records.do_sync(StoreResponse(other, CREATED))
    place.pass_time(LEASE - timedelta(seconds=1))
    gone = replace(FIRST, key="never", owner="unknown")
    assert place.records.do_sync(RenewKeys([FIRST, other, gone], LEASE)) == {"owner-1"}
    place.pass_time(LEASE - timedelta(seconds=2))
    assert reserve(place, SECOND).owner == "owner-1"


@pytest.mark.parametrize("end", ["released", "lapsed"])
def test_a_key_whose_request_failed_stays_with_that_request(place: RecordStore, end: str) -> None:
    reserve(place, FIRST)
    if end == "released":
        assert place.records.do_sync(ReleaseKey(FIRST))
        assert not place.records.do_sync(StoreResponse(FIRST, CREATED)), "a request that released its key cannot finish"
        assert place.records.do_sync(RenewKeys([FIRST], LEASE)) == frozenset()
    else:
        place.pass_time(LEASE + timedelta(seconds=1))
    other = replace(SECOND, request_hash="hash-2")
    found = reserve(place, other)
    assert (found.request_hash, found.progress, found.lapsed) == ("hash-1", KeyStatus.STARTED, True)
    assert reserve(place, SECOND) == StoredRecord("owner-2", "hash-1", KeyStatus.STARTED, False, None)


def test_any_request_may_take_over_where_that_was_chosen(place: RecordStore) -> None:
    other = replace(SECOND, request_hash="hash-2")
    reserve(place, FIRST)
    place.pass_time(LEASE + timedelta(seconds=1))
    assert place.records.do_sync(ReserveKey(other, LEASE, DAY, True)).owner == "owner-2"
    assert place.records.do_sync(ReleaseKey(other, True))
    assert place.records.do_sync(ReadRecord(FIRST)) is None


def test_a_record_of_a_failed_request_expires_as_any_other(place: RecordStore) -> None:
    reserve(place, FIRST)
    place.records.do_sync(ReleaseKey(FIRST))
    place.pass_time(DAY + timedelta(seconds=1))
    assert reserve(place, replace(SECOND, request_hash="hash-2")).owner == "owner-2"


def test_a_released_key_can_be_tried_again_and_a_completed_one_is_not_released(place: RecordStore) -> None:
    reserve(place, FIRST)
    assert place.records.do_sync(ReleaseKey(FIRST))
    reserve(place, SECOND)
    assert place.records.do_sync(StoreResponse(SECOND, CREATED))
    assert not place.records.do_sync(ReleaseKey(SECOND))
    assert not place.records.do_sync(StoreResponse(SECOND, StoredResponse(500)))
    assert place.records.do_sync(ReadRecord(FIRST)).response == CREATED


def test_an_expired_record_is_as_good_as_none(place: RecordStore) -> None:
    reserve(place, FIRST)
    place.records.do_sync(StoreResponse(FIRST, CREATED))
    place.pass_time(DAY + timedelta(seconds=1))
    assert reserve(place, SECOND) == StoredRecord("owner-2", "hash-1", KeyStatus.STARTED, False, None)


def test_of_many_at_once_exactly_one_owns_the_key(place: RecordStore) -> None:
    held = [replace(FIRST, owner=f"owner-{n}") for n in range(16)]
    for _ in range(3):  # new, lapsed, lapsed again
        barrier = threading.Barrier(8)

        def try_it(one: Reservation, barrier: threading.Barrier = barrier) -> StoredRecord | None:
            barrier.wait(10)
            found: StoredRecord | None = place.records.do_sync(ReserveKey(one, LEASE, DAY))
            return found

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(try_it, held[:8]))
        assert sum(f is not None and f.owner == one.owner for f, one in zip(found, held, strict=False)) == 1
        place.pass_time(LEASE + timedelta(seconds=1))
        held = held[8:] + held[:8]


def test_completing_in_a_transaction_is_fenced_by_the_database(sql_place: RecordStore) -> None:
    assert sql_place.hf is not None
    store = sql_place.hf.store
    reserve(sql_place, FIRST)
    sql_place.pass_time(LEASE + timedelta(seconds=1))
    reserve(sql_place, SECOND)
    with pytest.raises(ReservationLost, match="k-1"):
        store.run_sync(complete(FIRST, CREATED, LEASE))
    assert sql_place.records.do_sync(ReadRecord(FIRST)).progress is KeyStatus.STARTED
    store.run_sync(complete(SECOND, CREATED, LEASE))
    assert sql_place.records.do_sync(ReadRecord(FIRST)).response == CREATED
    with pytest.raises(ReservationLost):
        store.run_sync(complete(SECOND, CREATED, LEASE))


@pytest.mark.parametrize("sql_place", ["postgres18"], indirect=True)
def test_a_renewal_does_not_disturb_a_transaction_with_an_older_snapshot(sql_place: RecordStore) -> None:
    reserve(sql_place, FIRST)
    with psycopg.connect(sql_place.dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("select 1")
        assert sql_place.records.do_sync(RenewKeys([FIRST], LEASE)) == {"owner-1"}
        _complete_on(sql_place, conn)
        assert sql_place.records.do_sync(RenewKeys([FIRST], LEASE)) == {"owner-1"}  # nor does it wait for it
    assert sql_place.records.do_sync(ReadRecord(FIRST)).response == CREATED


@pytest.mark.parametrize("sql_place", ["postgres18"], indirect=True)
def test_no_request_waits_for_a_transaction_that_completes_a_record(sql_place: RecordStore) -> None:
    """Its lease expired, but it may still commit: no request takes, releases or removes its key, or waits for it."""
    assert sql_place.hf is not None
    sql_place.records.do_sync(ReserveKey(FIRST, timedelta(0), timedelta(0)))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(sql_place.dsn) as conn:
        _complete_on(sql_place, conn)
        steps: list[Step] = [ReserveKey(SECOND, LEASE, DAY), ReleaseKey(FIRST)]
        found, released = [pool.submit(sql_place.records.do_sync, step).result(5) for step in steps]
        assert (found.owner, found.lapsed, released) == ("owner-1", True, False)
        assert pool.submit(sql_place.hf.store.run_sync, forget_requests()).result(5) == (0, False)
    assert sql_place.records.do_sync(ReadRecord(FIRST)).response == CREATED


def _complete_on(place: RecordStore, conn: psycopg.Connection) -> None:
    assert place.hf is not None
    run_on(complete(FIRST, CREATED, LEASE), place.hf.store.dialect, adapt_connection(conn))  # type: ignore[arg-type]


def test_operators_list_records_and_release_them_audited(sql_place: RecordStore) -> None:
    assert sql_place.hf is not None
    store = sql_place.hf.store
    reserve(sql_place, FIRST)
    done = replace(FIRST, key="k-2", owner="owner-2")
    reserve(sql_place, done)
    sql_place.records.do_sync(StoreResponse(done, CREATED))
    assert {one.key for one in store.run_sync(records(scope="tenant-1"))} == {"k-1", "k-2"}
    assert store.run_sync(records(scope="tenant-2")) == []
    (one,) = store.run_sync(records(status=KeyStatus.COMPLETED))
    assert (one.key, one.method, one.path, one.response_status) == ("k-2", "POST", "/orders", 201)
    assert one.response_bytes == len(CREATED.body or b"")
    (newest,) = store.run_sync(records(limit=1))
    (older,) = store.run_sync(records(limit=1, before=newest))
    assert {newest.key, older.key} == {"k-1", "k-2"}
    assert store.run_sync(records(before=older)) == []
    assert store.run_sync(release_record("tenant-1", "k-1", "ada", "stuck")) is KeyStatus.STARTED
    assert not sql_place.records.do_sync(StoreResponse(FIRST, CREATED))
    with pytest.raises(Refused, match="completed"):
        store.run_sync(release_record("tenant-1", "k-2", "ada", None))
    assert store.run_sync(release_record("tenant-1", "k-2", "ada", None, force=True)) is KeyStatus.COMPLETED
    with pytest.raises(NotFound):
        store.run_sync(release_record("tenant-1", "k-2", "ada", None))
    assert [(e.actor, e.action, e.target) for e in store.run_sync(audit())] == [
        ("ada", "release", "tenant-1 k-2"),
        ("ada", "release", "tenant-1 k-1"),
    ]


def test_only_expired_records_are_forgotten(sql_place: RecordStore) -> None:
    assert sql_place.hf is not None
    store = sql_place.hf.store
    reserve(sql_place, FIRST)
    sql_place.pass_time(DAY + timedelta(seconds=1))
    reserve(sql_place, replace(SECOND, key="young"))
    assert store.run_sync(expired_requests()) == 1
    assert store.run_sync(forget_requests()) == (1, False)
    assert [one.key for one in store.run_sync(records())] == ["young"]
