"""When batches are checked and from which lanes they are claimed; pure."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast.engine.batches.options import BatchOptions
from holdfast.engine.batches.scheduler import BatchScheduler
from holdfast.stores.deliveries.batch import BatchLane
from holdfast.stores.deliveries.claim import Claimed, Lane

SECOND = timedelta(seconds=1)
BATCHES = {"a": BatchOptions(3, SECOND), "b": BatchOptions(3, SECOND * 5)}
A, B, LATE = Lane("default", "a", 0, 1), Lane("default", "b", 0, 1), Lane("default", "a", 0, 2)


def scheduler(*found: BatchLane) -> BatchScheduler:
    made = BatchScheduler(BATCHES)
    assert made.check_due(100.0)
    made.checked(found, 100.0, 100.0)
    return made


def ready(made: BatchScheduler, *held_back: str) -> list[Lane]:
    return made.ready(lambda name: name in held_back)


def claims(count: int) -> list[Claimed]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Claimed(
            *(UUID(int=n), UUID(int=n), "a", "default", 1, 0, 1, None, 1, 0, 0, False, at, None),
            *("t", "s", None, "{}", "{}", at, 0),
        )
        for n in range(count, 0, -1)
    ]


def test_a_lane_is_ready_when_its_batch_is_complete_or_old_enough() -> None:
    assert ready(scheduler(BatchLane(A, 3, SECOND * 0), BatchLane(B, 2, SECOND * 4))) == [A]
    assert ready(scheduler(BatchLane(A, 1, SECOND), BatchLane(B, 2, SECOND * 4))) == [A]
    assert ready(scheduler(BatchLane(A, 2, SECOND / 2))) == []


def test_it_waits_until_the_next_batch_is_old_enough() -> None:
    made = scheduler(BatchLane(A, 2, SECOND / 4), BatchLane(B, 2, SECOND))
    wait = made.wait(100.0)
    assert wait is not None
    assert 0.75 <= wait < 0.76
    assert made.wait(200.0) == 0.0
    assert scheduler().wait(100.0) is None


def test_after_a_check_during_which_the_process_was_suspended_the_next_one_is_not_put_off_for_long() -> None:
    made = scheduler()
    made.checked([], 100.0, 160.0)
    assert not made.check_due(160.1)
    assert made.wait(160.1) == pytest.approx(4.9)
    assert made.check_due(165.1)


def test_a_request_that_comes_too_early_is_remembered() -> None:
    made = scheduler(BatchLane(A, 1, SECOND * 0))
    assert not made.check_due(100.01)
    wait = made.wait(100.01)
    assert wait is not None
    assert 0.03 < wait < 0.05
    assert made.check_due(100.06)


def test_an_expensive_check_is_repeated_less_often() -> None:
    made = BatchScheduler(BATCHES)
    made.checked([], 100.0, 100.1)
    assert not made.check_due(102.0)
    assert made.check_due(102.2)


def test_a_full_batch_keeps_its_lane_and_an_incomplete_one_ends_it() -> None:
    made = scheduler(BatchLane(A, 3, SECOND * 0))
    made.claimed(A, claims(3))
    (lane,) = ready(made)
    assert (lane[:4], lane.floor_id) == (A[:4], UUID(int=1))
    made.claimed(lane, claims(1))
    assert ready(made) == []


def test_lanes_of_one_priority_take_turns_and_held_back_consumers_are_left_out() -> None:
    made = scheduler(*(BatchLane(lane, 3, SECOND * 0) for lane in (LATE, A, B)))
    assert ready(made)[2] == LATE
    firsts = set()
    for _ in range(4):
        made.checked([BatchLane(lane, 3, SECOND * 0) for lane in (A, B)], 100.0, 100.0)
        firsts.add(ready(made)[0])
    assert firsts == {A, B}
    assert ready(made, "a") == [B]
