"""The capture of a response, without a server: each case lists what happens and what it must decide."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.errors import ReservationLost, StoreUnavailable
from holdfast.idempotency.capture import CaptureAction, ResponseCapture
from holdfast.idempotency.engine import IdempotencyEngine, IdempotencyOptions
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import ReadRecord, ReleaseKey, Step, StoreResponse, run_flow_sync
from holdfast.stores.integrations.idempotency import KeyStatus, Reservation, StoredRecord, StoredResponse
from tests.support.apps import log
from tests.support.worker import Log, logged

__all__ = ["log"]

HOLD, SETTLE, FORWARD = CaptureAction.HOLD, CaptureAction.SETTLE, CaptureAction.FORWARD
RESERVATION = Reservation("tenant", "key", "hash", "owner")


class Records:
    """Records the steps, and returns `record` for each read."""

    store = None

    def __init__(self, record: StoredRecord | Exception | None = None) -> None:
        self.record = record
        self.steps: list[Step] = []

    async def do(self, step: Step) -> Any:
        raise NotImplementedError

    def do_sync(self, step: Step) -> Any:
        self.steps.append(step)
        if isinstance(step, ReadRecord):
            if isinstance(self.record, Exception):
                raise self.record
            return self.record
        return True

    @property
    def stored(self) -> list[StoredResponse]:
        return [step.response for step in self.steps if isinstance(step, StoreResponse)]

    @property
    def is_released(self) -> bool:
        return any(isinstance(step, ReleaseKey) for step in self.steps)


def record(status: KeyStatus, owner: str = "owner") -> StoredRecord:
    response = None if status is KeyStatus.STARTED else StoredResponse(201, (), b"theirs")
    return StoredRecord(owner, "hash", status, False, response)


class Case:
    def __init__(self, records: Records, completed: StoredResponse | None = None, *, lost: bool = False) -> None:
        options = IdempotencyOptions(max_response=10, lease=timedelta(seconds=60))
        self.records = records
        engine = IdempotencyEngine(records, options)
        self.key = IdempotencyKey(engine, RESERVATION)
        self.key.completed, self.key.lost = completed, lost
        self.capture = ResponseCapture(engine, self.key, RESERVATION)

    def write(self, *chunks: bytes, ended: bool = True) -> list[CaptureAction]:
        return [self.capture.write(chunk, more=not ended or at < len(chunks) - 1) for at, chunk in enumerate(chunks)]

    def settle(self, *, has_returned: bool = True) -> bool:
        return run_flow_sync(self.capture.settle(has_returned=has_returned), self.records)


def started(case: Case, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Case:
    case.capture.start(status, headers)
    return case


def test_a_whole_response_is_held_and_stored_with_its_body() -> None:
    case = started(Case(Records()), 201, [("X-Id", "7"), ("Set-Cookie", "s=1")])
    assert case.write(b"one", b"two") == [HOLD, HOLD]
    assert case.settle()
    assert case.records.stored == [StoredResponse(201, (("x-id", "7"),), b"onetwo")]
    assert case.capture.replacement is None
    assert case.capture.forward(more=False) == b"onetwo"
    assert case.write(b"late") == [HOLD]


def test_a_response_over_the_limit_is_stored_without_its_body_and_then_forwarded() -> None:
    case = started(Case(Records()))
    assert case.write(b"12345", b"678901", ended=False) == [HOLD, SETTLE]
    assert case.settle(has_returned=False)
    assert case.records.stored == [StoredResponse(200, (), None)]
    assert case.capture.forward(more=True) == b"12345678901"
    assert case.write(b"more", b"end") == [FORWARD, FORWARD]


def test_an_event_stream_is_forwarded_from_its_first_chunk() -> None:
    case = started(Case(Records()), headers=[("Content-Type", "text/event-stream; charset=utf-8")])
    assert case.write(b"e", ended=False) == [SETTLE]


def test_a_response_that_ends_early_is_stored_without_its_body() -> None:
    case = started(Case(Records()))
    assert case.write(b"part", ended=False) == [HOLD]
    assert case.settle()
    assert case.records.stored == [StoredResponse(200, (), None)]
    assert not case.capture.is_whole


def test_a_second_start_replaces_what_was_held() -> None:
    case = started(started(Case(Records())))
    case.write(b"first")
    started(case, 202)
    case.write(b"second")
    assert case.settle()
    assert case.records.stored == [StoredResponse(202, (), b"second")]


@pytest.mark.parametrize("status", [404, 500])
def test_an_uncached_status_releases_the_key_and_is_sent(status: int) -> None:
    case = started(Case(Records()), status)
    case.write(b"no")
    assert case.settle()
    assert case.records.is_released
    assert case.capture.replacement is None


def test_without_a_response_the_key_is_released_and_nothing_is_sent() -> None:
    case = Case(Records())
    assert not case.settle()
    assert case.records.is_released


def test_a_completed_response_replaces_the_body_once_it_is_committed() -> None:
    case = started(Case(Records(record(KeyStatus.STARTED)), StoredResponse(402, (), b"pay")), headers=[("X-Id", "7")])
    assert case.write(b"ignored", b"end") == [HOLD, SETTLE]
    assert not case.settle(has_returned=False), "its transaction is still open"
    assert case.write(b"late") == [HOLD]
    case.records.record = record(KeyStatus.FAILED)
    assert case.settle()
    assert case.capture.replacement == StoredResponse(402, (("X-Id", "7"), ("content-length", "3")), b"pay")
    assert not case.records.stored


def test_a_completed_response_that_was_not_committed_releases_the_key_and_is_logged(log: Log) -> None:
    case = started(Case(Records(record(KeyStatus.STARTED)), StoredResponse(200, (), b"done")))
    assert case.settle()
    (warning,) = logged(log, "request not committed")
    assert (warning["log_level"], warning["scope"], warning["key"]) == ("warning", "tenant", "key")
    assert "commit it before the request ends" in warning["hint"]
    assert case.records.is_released
    assert case.capture.replacement is not None
    assert case.capture.replacement.status == 500
    assert b"was not committed" in (case.capture.replacement.body or b"")
    assert b"did not run" not in (case.capture.replacement.body or b"")


def test_whether_it_was_committed_is_unknown_without_the_records() -> None:
    case = started(Case(Records(StoreUnavailable("redis", "down")), StoredResponse(200, (), b"done")))
    assert case.settle()
    assert not case.records.is_released
    assert case.capture.replacement is not None
    assert case.capture.replacement.status == 503


def test_an_error_after_a_completed_response_is_sent() -> None:
    case = started(Case(Records(record(KeyStatus.COMPLETED)), StoredResponse(200, (), b"done")), 500)
    case.write(b"oops")
    assert case.settle()
    assert case.capture.replacement is None
    assert case.capture.forward(more=False) == b"oops"


def test_a_request_that_lost_its_key_sends_the_response_of_the_owner() -> None:
    case = started(Case(Records(record(KeyStatus.COMPLETED, "other")), lost=True))
    case.write(b"mine")
    assert case.settle()
    assert case.capture.replacement is not None
    assert case.capture.replacement.body == b"theirs"


@pytest.mark.parametrize(
    ("error", "lost", "sent", "released"),
    [
        (ValueError(), False, None, True),
        (ReservationLost("tenant", "key"), True, b"theirs", False),
        (ReservationLost("tenant", "another key"), False, None, False),
    ],
)
def test_an_exception_releases_the_key_unless_it_was_lost(
    error: Exception, lost: bool, sent: bytes | None, released: bool
) -> None:
    case = Case(Records(record(KeyStatus.COMPLETED, "other")), lost=lost)
    response = run_flow_sync(case.capture.fail(error), case.records)
    assert (None if response is None else response.body) == sent
    assert case.records.is_released is released
