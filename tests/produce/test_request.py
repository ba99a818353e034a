"""Storing a request's answer in the caller's own transaction, through every kind of connection that `conn=` takes."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, ReservationLost, UnsupportedConnection
from holdfast.idempotency.engine import IdempotencyEngine, IdempotencyOptions
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import ReadRecord, ReserveKey, StoreRecords
from holdfast.stores.integrations.idempotency import KeyStatus, Reservation, StoredRecord
from tests.produce.callers import EACH, POSTGRES, SQLITE, Caller
from tests.produce.place import Place

ALL = [*SQLITE, *POSTGRES]
LEASE, DAY = timedelta(seconds=10), timedelta(days=1)
BODY = {"id": 1, "note": "é\x1f"}
WRITTEN = '{"id":1,"note":"é\\u001f"}'.encode()


class Handling:
    """A request in the hands of its handler."""

    def __init__(self, hf: Holdfast) -> None:
        self.records = StoreRecords(hf)
        self.held = Reservation("tenant-1", str(uuid4()), "hash", "owner-1", "POST", "/orders")
        self.records.do_sync(ReserveKey(self.held, LEASE, DAY))
        self.idem = IdempotencyKey(IdempotencyEngine(self.records, IdempotencyOptions()), self.held)

    def complete(self, caller: Caller, status: int = 201) -> Any:
        if caller.awaits:
            return caller.runner.run(self.idem.complete(BODY, status=status, conn=caller.conn))
        return self.idem.sync.complete(BODY, status=status, conn=caller.conn)

    @property
    def found(self) -> StoredRecord:
        found: StoredRecord = self.records.do_sync(ReadRecord(self.held))
        return found


@pytest.fixture
def request_in_hand(hf: Holdfast) -> Handling:
    return Handling(hf)


def orders(place: Place) -> list[int]:
    return [row[0] for row in place.rows("select id from orders order by id")]


@pytest.mark.parametrize("way", ALL)
def test_the_answer_and_the_effect_commit_together(request_in_hand: Handling, caller: Caller, place: Place) -> None:
    caller.insert(1)
    assert request_in_hand.complete(caller) is BODY
    caller.commit()
    assert orders(place) == [1]
    found = request_in_hand.found
    assert found.progress is KeyStatus.COMPLETED
    assert found.response is not None
    assert (found.response.status, found.response.body) == (201, WRITTEN)
    assert found.response.headers == (("content-type", "application/json"),)


@pytest.mark.parametrize("way", ALL)
def test_or_neither_does(request_in_hand: Handling, caller: Caller, place: Place) -> None:
    caller.insert(1)
    request_in_hand.complete(caller)
    caller.rollback()
    assert orders(place) == []
    assert request_in_hand.found.progress is KeyStatus.STARTED


@pytest.mark.parametrize("way", ALL)
def test_a_late_finisher_is_refused_and_swallowing_it_commits_nothing(
    request_in_hand: Handling, caller: Caller, place: Place
) -> None:
    age = "10001" if place.database == "sqlite" else "interval '10.001 s'"
    place.rows(f"update {{hf}}idempotency set lease_until = lease_until - {age}")
    other = replace(request_in_hand.held, owner="owner-2")
    assert request_in_hand.records.do_sync(ReserveKey(other, LEASE, DAY)).owner == "owner-2"
    caller.insert(1)
    with pytest.raises(ReservationLost, match="tenant-1"):
        request_in_hand.complete(caller)
    assert request_in_hand.idem.lost
    # Some drivers refuse to commit what the database has undone, others say nothing.
    with contextlib.suppress(Exception):
        caller.commit()
    assert orders(place) == []
    found = request_in_hand.found
    assert (found.owner, found.progress) == ("owner-2", KeyStatus.STARTED)


@pytest.mark.parametrize("way", EACH)
def test_an_error_kept_on_purpose_is_failed(request_in_hand: Handling, caller: Caller) -> None:
    request_in_hand.complete(caller, 402)
    caller.commit()
    assert request_in_hand.found.progress is KeyStatus.FAILED


@pytest.mark.parametrize("way", ["sqlite3", "psycopg", "psycopg-async", "sqlalchemy-aiosqlite"])
def test_the_wrong_colour_names_the_right_call(request_in_hand: Handling, caller: Caller) -> None:
    def wrong() -> Any:
        if caller.awaits:
            return request_in_hand.idem.sync.complete(BODY, conn=caller.conn)
        return caller.runner.run(request_in_hand.idem.complete(BODY, conn=caller.conn))

    with pytest.raises(TypeError, match="idem.complete" if caller.awaits else "idem.sync.complete"):
        wrong()


@pytest.mark.parametrize("way", ["sqlite3"])
def test_a_connection_to_another_kind_of_database_is_refused(
    request_in_hand: Handling, caller: Caller, postgres_dsn: str, make_app: Callable[[Any], Holdfast]
) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn) as conn, pytest.raises(UnsupportedConnection, match="postgres"):
        request_in_hand.idem.sync.complete(BODY, conn=conn)


@pytest.mark.parametrize("way", ["sqlite3", "psycopg"])
def test_without_a_connection_it_commits_on_its_own(request_in_hand: Handling, caller: Caller) -> None:
    request_in_hand.idem.sync.complete(BODY, status=201, conn=None)
    assert request_in_hand.found.progress is KeyStatus.COMPLETED
    with pytest.raises(ReservationLost):
        request_in_hand.idem.sync.complete(BODY, conn=None)


@pytest.mark.parametrize("way", ["psycopg"])
def test_no_request_waits_for_a_transaction_that_completes(
    request_in_hand: Handling, caller: Caller, place: Place
) -> None:
    """A repetition, a renewal, a release and a take-over pass it by: a slow commit must not stop the gate."""
    from holdfast.idempotency.records import ReleaseKey, RenewKeys

    request_in_hand.complete(caller)
    records, held = request_in_hand.records, request_in_hand.held
    other = replace(held, owner="owner-2")
    assert records.do_sync(ReserveKey(other, LEASE, DAY)).progress is KeyStatus.STARTED
    assert records.do_sync(RenewKeys([held], LEASE)) == {held.owner}
    assert not records.do_sync(ReleaseKey(held))
    caller.commit()
    assert records.do_sync(ReserveKey(other, LEASE, DAY)).progress is KeyStatus.COMPLETED


@pytest.mark.parametrize("way", ["psycopg"])
def test_a_lapsed_lease_is_not_taken_from_a_transaction_that_completes(
    request_in_hand: Handling, caller: Caller, place: Place
) -> None:
    place.rows("update {hf}idempotency set lease_until = lease_until - interval '1 h'")
    request_in_hand.complete(caller)
    other = replace(request_in_hand.held, owner="owner-2")
    assert request_in_hand.records.do_sync(ReserveKey(other, LEASE, DAY)).owner == "owner-1"
    caller.commit()
    found = request_in_hand.records.do_sync(ReserveKey(other, LEASE, DAY))
    assert (found.owner, found.progress) == ("owner-1", KeyStatus.COMPLETED)


@pytest.mark.parametrize("way", ["psycopg", "psycopg-async", "sqlalchemy-asyncpg"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_renewal_does_not_disturb_a_transaction_with_an_older_snapshot(
    request_in_hand: Handling, caller: Caller, place: Place, level: str
) -> None:
    from holdfast.idempotency.records import RenewKeys

    caller.execute(f"set transaction isolation level {level}")
    caller.insert(1)
    assert request_in_hand.records.do_sync(RenewKeys([request_in_hand.held], LEASE)) == {"owner-1"}
    request_in_hand.complete(caller)
    caller.commit()
    assert orders(place) == [1]
    assert request_in_hand.found.progress is KeyStatus.COMPLETED
