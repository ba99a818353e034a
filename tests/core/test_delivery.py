"""Deliveries and their failure cycles, whose stored form only ever grows."""

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.delivery import (
    Claim,
    Delivery,
    FailureCycle,
    Status,
    read_history,
)

ID = UUID("01890000-0000-7000-8000-000000000001")
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

texts = st.none() | st.text()
times = st.none() | st.datetimes(timezones=st.just(UTC))
cycles = st.builds(
    FailureCycle,
    attempts=st.integers(0, 100),
    last_error=texts,
    error_type=texts,
    fingerprint=texts,
    first_failed_at=times,
    failed_at=times,
    generation=st.integers(0, 100),
    replayed_at=times,
    replayed_by=texts,
    reason=texts,
)


def test_there_are_four_states() -> None:
    assert list(Status) == ["pending", "in_flight", "delivered", "failed"]


@given(cycles)
def test_a_failure_cycle_survives_the_database(cycle: FailureCycle) -> None:
    assert FailureCycle.from_json(json.loads(json.dumps(cycle.to_json()))) == cycle


def test_the_stored_fields_of_a_failure_cycle_are_these() -> None:
    cycle = FailureCycle(attempts=5, last_error="x", failed_at=AT, generation=3, replayed_by="ada")
    assert cycle.to_json() == {
        "attempts": 5,
        "last_error": "x",
        "error_type": None,
        "fingerprint": None,
        "first_failed_at": None,
        "failed_at": "2026-01-02T03:04:05.678901+00:00",
        "generation": 3,
        "replayed_at": None,
        "replayed_by": "ada",
        "reason": None,
    }


def test_a_time_is_stored_in_utc() -> None:
    local = AT.astimezone(timezone(timedelta(hours=5)))
    assert FailureCycle(failed_at=local).to_json()["failed_at"] == "2026-01-02T03:04:05.678901+00:00"


def test_a_cycle_of_a_later_release_is_read() -> None:
    assert FailureCycle.from_json({"attempts": 2, "weather": "rain"}) == FailureCycle(attempts=2)


def test_a_cycle_of_an_earlier_release_is_read() -> None:
    assert FailureCycle.from_json({}) == FailureCycle()


@pytest.mark.parametrize("value", [True, "3", None, 1.5, [], {}])
def test_a_number_that_is_none_is_read_as_zero(value: object) -> None:
    assert FailureCycle.from_json({"attempts": value, "generation": value}) == FailureCycle()


@pytest.mark.parametrize("value", [7, True, [], {}])
def test_a_text_that_is_none_is_left_out(value: object) -> None:
    assert FailureCycle.from_json({"last_error": value, "reason": value}) == FailureCycle()


def test_a_time_without_an_offset_does_not_depend_on_where_the_worker_runs(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert FailureCycle.from_json({"failed_at": "2026-01-02 03:04:05.678901"}).failed_at == AT
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("value", ["yesterday", 7, [], ""])
def test_a_time_that_is_none_is_left_out(value: object) -> None:
    assert FailureCycle.from_json({"failed_at": value}).failed_at is None


@pytest.mark.parametrize(
    "text",
    ["2026-01-02T03:04:05.678901+00:00", "2026-01-02 03:04:05.678901", "2026-01-02T04:04:05.678901+01:00"],
)
def test_a_time_written_by_either_database_is_read_as_utc(text: str) -> None:
    read = FailureCycle.from_json({"failed_at": text}).failed_at
    assert read == AT
    assert read is not None
    assert read.tzinfo is UTC


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_reading_a_history_never_fails(stored: object) -> None:
    assert isinstance(read_history(stored), tuple)


def test_a_history_is_read_in_order_without_what_is_no_cycle() -> None:
    assert read_history([{"attempts": 1}, "junk", {"attempts": 2}]) == (
        FailureCycle(attempts=1),
        FailureCycle(attempts=2),
    )


def test_a_dead_letter_is_failed_and_not_discarded() -> None:
    def delivery(status: Status, discarded_at: datetime | None = None) -> Delivery:
        return Delivery(
            id=ID, message_id=ID, consumer="a", status=status, run_at=AT, created_at=AT, discarded_at=discarded_at
        )

    assert delivery(Status.FAILED).dead
    assert not delivery(Status.FAILED, AT).dead
    assert not delivery(Status.PENDING).dead
    assert not delivery(Status.DELIVERED).dead


def test_a_claim_is_worker_delivery_and_fence() -> None:
    assert Claim(ID, "worker-1", 3) == Claim(delivery_id=ID, worker="worker-1", fence=3)
    assert Claim(ID, "worker-1", 3) != Claim(ID, "worker-1", 4)
