"""Which lanes a claim looks at, in which order and how deep: hints, learned from what the last claims found."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast.engine.lanes import Lanes
from holdfast.engine.options import claim_size
from holdfast.engine.slot_pool import SlotPool
from holdfast.stores.deliveries.claim import Claimed, Lane

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lane(consumer: str, priority: int = 1) -> Lane:
    return Lane("default", consumer, 0, priority)


def claimed(consumer: str, at: datetime = NOON, number: int = 1, priority: int = 1) -> Claimed:
    id = UUID(int=number)
    return Claimed(
        id, id, consumer, "default", priority, 0, 1, None, 1, 0, 0, False, at, None, "t", "app", None, "{}", "{}", at, 0
    )


class Clock:
    """The local clock, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("holdfast.engine.lanes.time", clock)
    return clock


def known(lanes: Lanes, clock: Clock, *found: Lane) -> Lanes:
    lanes.refreshed(found, clock.now, clock.now)
    return lanes


def names(order: list[Lane]) -> list[str]:
    return [lane.consumer for lane in order]


def test_urgent_lanes_come_first_and_every_eighth_time_last(clock: Clock) -> None:
    lanes = known(Lanes(), clock, lane("urgent", 0), lane("usual", 1), lane("idle", 3))
    orders = [names(lanes.order()) for _ in range(16)]
    assert [n for n, order in enumerate(orders, start=1) if order == ["idle", "usual", "urgent"]] == [8, 16]
    assert orders.count(["urgent", "usual", "idle"]) == 14


def test_lanes_of_one_priority_take_turns(clock: Clock) -> None:
    lanes = known(Lanes(), clock, lane("a"), lane("b"), lane("c"))
    assert {names(lanes.order())[0] for _ in range(7)} == {"a", "b", "c"}


def test_what_was_asked_before_a_change_is_not_believed_after_it(clock: Clock) -> None:
    lanes = known(Lanes(), clock, lane("a"))
    asked_at = clock.now
    clock.now += 1
    lanes.outdate()
    assert not lanes
    lanes.refreshed([lane("a")], asked_at, clock.now + 1)
    assert lanes.order() == []
    assert lanes.refresh_due <= clock.now
    lanes.refreshed([lane("b")], clock.now + 2, clock.now + 3)
    assert names(lanes.order()) == ["b"]


def test_a_look_is_due_again_after_a_multiple_of_what_it_cost(clock: Clock) -> None:
    lanes = Lanes()
    lanes.refreshed([lane("a")], clock.now, clock.now + 0.5)
    assert lanes.refresh_due == clock.now + 0.5 + 20 * 0.5


def test_the_floor_is_the_lowest_row_of_the_last_claim_and_deeper_looks_come_round(clock: Clock) -> None:
    lanes = known(Lanes(), clock, lane("a"), lane("b"))
    assert {found.floor_at for found in lanes.order()} == {lane("a").floor_at}  # the whole lane
    rows = [claimed("a", NOON, 1), claimed("a", NOON + timedelta(seconds=5), 2)]
    lanes.claimed(rows, clock.now, clock.now + 0.1)
    shallow = {found.consumer: found for found in lanes.order()}
    assert shallow["a"].floor_at == NOON - timedelta(seconds=10)
    assert shallow["b"].floor_at == lane("b").floor_at  # nothing was learned of it
    lanes.claimed(rows, clock.now, clock.now + 0.1)
    tight = {found.consumer: found for found in lanes.order()}
    assert (tight["a"].floor_at, tight["a"].floor_id) == (NOON, UUID(int=1))
    clock.now += 10
    assert {found.floor_at for found in lanes.order()} == {lane("a").floor_at}


def test_a_floor_goes_with_its_lane(clock: Clock) -> None:
    lanes = known(Lanes(), clock, lane("a"))
    lanes.order()
    lanes.claimed([claimed("a")], clock.now, clock.now + 1)
    known(lanes, clock, lane("b"))
    known(lanes, clock, lane("a"))
    assert lanes.order()[0].floor_at == lane("a").floor_at


def test_a_pool_claims_for_its_slots_and_ahead_only_when_work_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("holdfast.engine.slot_pool.time", clock)
    pool = SlotPool(None, 4)
    assert pool.room() == 4
    pool.accept([claimed("a", number=n) for n in range(4)])
    assert pool.room() == 0
    for _ in range(500):
        pool.waiting.clear()
        pool.finished()
    clock.now += 0.5  # a thousand in a second
    pool.finished()
    assert pool.room() > 4
    pool.accept([claimed("a", number=n) for n in range(40)])
    assert pool.room() == 0


def test_a_pool_gives_back_all_or_one_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SlotPool(None, 4)
    pool.accept([claimed("a", number=1), claimed("b", number=2), claimed("a", number=3)])
    assert [found.id.int for found in pool.take_back("a")] == [1, 3]
    assert [found.id.int for found in pool.waiting] == [2]
    assert [found.id.int for found in pool.take_back()] == [2]
    assert not pool.busy


def test_a_pool_starts_what_is_most_urgent_first() -> None:
    pool = SlotPool(None, 4)
    later = NOON + timedelta(seconds=1)
    pool.accept([claimed("low", priority=3), claimed("late", later), claimed("early"), claimed("urgent", priority=0)])
    assert [found.consumer for found in pool.waiting] == ["urgent", "early", "late", "low"]


@pytest.mark.parametrize(("free", "size"), [(1, 1), (3, 2), (7, 5), (50, 50), (199, 100), (10_000, 500)])
def test_a_claim_has_one_of_few_sizes(free: int, size: int) -> None:
    """The limit is written into the statement, and each size has its plan."""
    assert claim_size(free) == size


def test_a_dear_look_at_everything_is_not_repeated_soon(clock: Clock) -> None:
    """Under an old snapshot it walks over all that was done since; the floors keep the next claims off that."""
    lanes = Lanes()
    for cost, put_off in ((0.001, 0.0), (0.011, 0.0), (0.03, 0.6), (0.5, 1.0), (9.0, 1.0), (0.001, 0.0)):
        lanes.scanned(clock.now - cost, clock.now)
        assert lanes.full_scan_due - clock.now == pytest.approx(put_off), cost


def test_what_a_far_away_store_takes_is_not_dear(clock: Clock) -> None:
    lanes = Lanes()
    for cost in (0.04, 0.05, 0.08):
        lanes.scanned(clock.now - cost, clock.now)
        assert lanes.full_scan_due == clock.now
