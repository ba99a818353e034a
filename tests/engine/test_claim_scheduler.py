"""When a pool claims, how much, from which lanes, and how long a worker waits: decided without a store or a clock."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast.engine.claims.scheduler import (
    ClaimScheduler,
    IdleWait,
    NextScan,
    claim_size,
    wait_after_round,
    wait_when_idle,
)
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.stores.deliveries.claim import Claimed, Lane, LaneList

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = 1000.0
NONE_HELD_BACK: Counter[str] = Counter()


def lane(consumer: str, priority: int = 1) -> Lane:
    return Lane("default", consumer, 0, priority)


def claimed(consumer: str, at: datetime = NOON, number: int = 1, priority: int = 1) -> Claimed:
    id = UUID(int=number)
    return Claimed(
        id, id, consumer, "default", priority, 0, 1, None, 1, 0, 0, False, at, None, "t", "app", None, "{}", "{}", at, 0
    )


def scheduler(*found: Lane, slots: int = 4) -> ClaimScheduler:
    made = ClaimScheduler(slots, NOW)
    if found:
        made.refreshed(LaneList(list(found)), NOW, NOW)
    return made


def order(scheduler: ClaimScheduler, now: float = NOW) -> list[Lane]:
    return scheduler.lanes(now, NONE_HELD_BACK)


def names(order: list[Lane]) -> list[str]:
    return [lane.consumer for lane in order]


def refresh_due(scheduler: ClaimScheduler, now: float) -> bool:
    return scheduler.next_scan(now, 1, woken=False).refresh


def test_urgent_lanes_come_first_and_every_eighth_time_last() -> None:
    made = scheduler(lane("urgent", 0), lane("usual", 1), lane("idle", 3))
    orders = [names(order(made)) for _ in range(16)]
    assert [n for n, found in enumerate(orders, start=1) if found == ["idle", "usual", "urgent"]] == [8, 16]
    assert orders.count(["urgent", "usual", "idle"]) == 14


def test_lanes_of_one_priority_take_turns() -> None:
    made = scheduler(lane("a"), lane("b"), lane("c"))
    assert {names(order(made))[0] for _ in range(7)} == {"a", "b", "c"}


def test_lanes_of_held_back_consumers_are_left_out() -> None:
    made = scheduler(lane("a"), lane("b"))
    assert names(made.lanes(NOW, Counter({"a": 1}))) == ["b"]
    assert made.lanes(NOW, Counter({"a": 1, "b": 1})) == []
    assert refresh_due(made, NOW)


def test_lanes_that_were_queried_before_a_change_are_not_used_after_it() -> None:
    made = scheduler(lane("a"))
    made.outdate(NOW + 1)
    made.refreshed(LaneList([lane("a")]), NOW, NOW + 2)
    assert order(made) == []
    assert refresh_due(made, NOW + 1)
    made.refreshed(LaneList([lane("b")]), NOW + 3, NOW + 4)
    assert names(order(made)) == ["b"]


def test_lanes_are_queried_again_after_a_multiple_of_the_cost() -> None:
    made = scheduler()
    made.refreshed(LaneList([lane("a")]), NOW, NOW + 0.125)
    assert not refresh_due(made, NOW + 0.125 + 20 * 0.125 - 0.001)
    assert refresh_due(made, NOW + 0.125 + 20 * 0.125)


def test_after_a_query_during_which_the_process_was_suspended_nothing_is_put_off_for_long() -> None:
    made, slow = scheduler(lane("a")), 60.0
    made.refreshed(LaneList([lane("a")]), NOW, NOW + slow)
    assert refresh_due(made, NOW + slow + 5.1)
    order(made)
    made.claimed([claimed("a", NOON, 1)], NOW, NOW + slow)
    assert order(made, NOW + slow)[0].floor_at != lane("a").floor_at
    assert order(made, NOW + slow + 30.1)[0].floor_at == lane("a").floor_at  # the whole lane


def test_the_floor_is_the_lowest_row_of_the_last_claim_and_deeper_scans_are_repeated() -> None:
    made = scheduler(lane("a"), lane("b"))
    assert {found.floor_at for found in order(made)} == {lane("a").floor_at}  # the whole lane
    rows = [claimed("a", NOON, 1), claimed("a", NOON + timedelta(seconds=5), 2)]
    assert made.claimed(rows, NOW, NOW + 0.1)
    shallow = {found.consumer: found for found in order(made)}
    assert shallow["a"].floor_at == NOON - timedelta(seconds=10)
    assert shallow["b"].floor_at == lane("b").floor_at  # no row of it was claimed
    made.claimed(rows, NOW, NOW + 0.1)
    tight = {found.consumer: found for found in order(made)}
    assert (tight["a"].floor_at, tight["a"].floor_id) == (NOON, UUID(int=1))
    assert {found.floor_at for found in order(made, NOW + 10)} == {lane("a").floor_at}


def test_a_floor_is_removed_with_its_lane() -> None:
    made = scheduler(lane("a"))
    order(made)
    made.claimed([claimed("a")], NOW, NOW + 1)
    made.refreshed(LaneList([lane("b")]), NOW, NOW)
    made.refreshed(LaneList([lane("a")]), NOW, NOW)
    assert order(made)[0].floor_at == lane("a").floor_at


EXPENSIVE = 0.1


def listed_with_floors() -> ClaimScheduler:
    """A scheduler whose last listing, of all lanes from their start, was expensive and returned floors."""
    made = scheduler(lane("a"))
    assert made.known(NOW) is None
    made.refreshed(LaneList([lane("a")]), NOW, NOW + EXPENSIVE)
    assert made.known(NOW) == [], "the next one reads the floors"
    floors = [lane("a")._replace(floor_at=NOON), lane("drained")._replace(floor_at=NOON)]
    made.refreshed(LaneList([lane("a")], floors), NOW, NOW + EXPENSIVE)
    return made


def test_known_lanes_are_listed_from_shortly_before_their_floors_while_listing_is_expensive() -> None:
    made = listed_with_floors()
    before = NOON - timedelta(seconds=10)
    assert made.known(NOW + 1) == [lane("a")._replace(floor_at=before), lane("drained")._replace(floor_at=before)]
    later = NOON + timedelta(seconds=60)
    made.refreshed(LaneList([], [lane("a")._replace(floor_at=later)]), NOW + 1, NOW + 1)
    known = made.known(NOW + 1) or []
    assert [one.floor_at for one in known] == [later - timedelta(seconds=10), before], "a lane keeps its floor"


def test_all_lanes_are_listed_from_their_start_after_a_multiple_of_the_cost_of_that() -> None:
    """A delivery that was committed late is found by that, also if it is below the floor of a drained lane."""
    made = listed_with_floors()
    due = NOW + EXPENSIVE + 40 * EXPENSIVE + 0.001
    assert made.known(due - 0.002)
    assert made.known(due) == []
    early = NOON - timedelta(hours=1)
    made.refreshed(LaneList([lane("drained")], [lane("drained")._replace(floor_at=early)]), due, due + EXPENSIVE)
    known = {one.consumer: one.floor_at for one in made.known(due + EXPENSIVE) or ()}
    assert known["drained"] == early - timedelta(seconds=10), "the floor is not above what is pending"
    # An idle pool lists them, too, instead of claiming above the floors without end.
    made.claimed([], NOW, NOW)
    again = due + EXPENSIVE + 40 * EXPENSIVE + 0.001
    assert made.next_scan(again, 1, woken=True) == NextScan(1, full=False, refresh=True, full_scan_in=None)


def test_all_lanes_are_listed_from_their_start_after_half_a_minute_even_if_that_takes_long() -> None:
    made, slow = listed_with_floors(), NOW + 100
    assert made.known(slow) == []
    made.refreshed(LaneList([lane("a")], [lane("a")._replace(floor_at=NOON)]), slow, slow + 10)
    assert made.known(slow + 10 + 29.9)
    assert made.known(slow + 10 + 30.1) == []


def test_a_worker_that_cannot_claim_what_is_due_lists_all_lanes_from_their_start() -> None:
    """What is due may be below the floor of a drained lane; a worker that runs until idle would stop before it."""
    made = listed_with_floors()
    assert made.known(NOW + 1)
    made.scan_again()
    assert made.next_scan(NOW + 1, 1, woken=False).refresh
    assert made.known(NOW + 1) == []


@pytest.mark.parametrize("is_distant", [True, False])
def test_a_distant_server_is_not_taken_for_dead_rows(is_distant: bool) -> None:
    """Floors would hide a delivery that was published in a transaction of a few seconds."""
    made = ClaimScheduler(4, NOW)
    if not is_distant:
        made.scanned(0, 1, NOW, NOW + 0.005)
    for n in range(8):
        started = NOW + 1 + n / 4
        floors = None if made.known(started) is None else [lane("a")._replace(floor_at=NOON)]
        made.refreshed(LaneList([lane("a")], floors), started, started + 0.12)
    assert (made.known(NOW + 4) is None) is is_distant
    made.scanned(0, 1, NOW + 4, NOW + 4.12)
    assert made.next_scan(NOW + 4.13, 1, woken=True).full is is_distant


def test_floors_are_not_used_any_more_when_listing_is_cheap_again() -> None:
    made = listed_with_floors()
    again = NOW + 100
    assert made.known(again) == []
    made.refreshed(LaneList([lane("a")], [lane("a")._replace(floor_at=NOON)]), again, again + 0.001)
    assert made.known(again + 1) is None


def test_a_shallow_scan_that_reads_many_rows_starts_nearer_to_its_floor_the_next_time() -> None:
    made = scheduler(lane("a"))
    distances = []
    for now in (NOW + 1000.0 * n for n in range(1, 8)):
        order(made, now)
        made.claimed([claimed("a")], now, now + 1.5)  # whole, and the next one is due much later
        (shallow,) = order(made, now + 20)
        distances.append((NOON - shallow.floor_at).total_seconds())
        made.claimed([claimed("a")], now, now + (1.0 if len(distances) < 6 else 0.0))
    assert distances == [10, 5, 2.5, 1.25, 1, 1, 2]


def test_a_pool_claims_for_its_slots_and_prefetches_only_short_work() -> None:
    made = scheduler(slots=4)
    assert made.room(running=0, waiting=0) == 4
    assert made.room(running=0, waiting=4) == 0
    for _ in range(500):
        made.finished(NOW)
    made.finished(NOW + 0.5)  # a thousand in a second
    assert made.room(running=0, waiting=0) > 4
    assert made.room(running=0, waiting=40) == 0


def test_a_pool_that_must_not_prefetch_claims_for_its_slots_only() -> None:
    made = ClaimScheduler(1, NOW, prefetch=False)
    for _ in range(500):
        made.finished(NOW)
    made.finished(NOW + 0.5)
    assert made.room(running=0, waiting=0) == 1


def test_a_pool_gives_back_all_or_one_consumers() -> None:
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


COSTS = {
    # seconds that each full scan took, one after another: seconds until the next one
    (0.001,): 0.0,
    (0.001, 0.011): 0.0,
    (0.001, 0.03): 0.6,
    (0.001, 0.5): 1.0,
    (0.001, 9.0): 1.0,
    (0.001, 9.0, 0.001): 0.0,
    (0.04, 0.05, 0.08): 0.0,  # a distant store is not an expensive scan
}


@pytest.mark.parametrize(("costs", "delay"), COSTS.items())
def test_an_expensive_full_scan_is_delayed(costs: tuple[float, ...], delay: float) -> None:
    """Under an old snapshot it reads all rows that were done since; the floors keep the next claims away from them."""
    made = scheduler()
    for cost in costs:
        made.scanned(0, 10, NOW - cost, NOW)
    later = NOW + 0.001
    scan = made.next_scan(later, 10, woken=True)
    assert scan.full == (delay == 0.0)
    assert scan.full_scan_in == (None if scan.full else pytest.approx(delay - 0.001))


def test_only_a_woken_idle_pool_scans_everything() -> None:
    made = scheduler(lane("a"))
    assert made.next_scan(NOW, 7, woken=True) == NextScan(5, full=False, refresh=False, full_scan_in=None)
    made.claimed([], NOW, NOW)
    assert made.next_scan(NOW, 7, woken=False) == NextScan(5, full=False, refresh=False, full_scan_in=None)
    assert made.next_scan(NOW, 7, woken=True) == NextScan(5, full=True, refresh=False, full_scan_in=None)


@pytest.mark.parametrize(("found", "more"), [(0, False), (4, False), (5, True)])
def test_a_full_scan_that_fills_its_limit_may_have_left_work(found: int, more: bool) -> None:
    made = scheduler(lane("a"))
    assert made.scanned(found, 5, NOW, NOW) is more
    assert made.next_scan(NOW + 1, 5, woken=True).full is not more


def test_lanes_are_queried_soon_after_a_claim_that_found_nothing() -> None:
    made = scheduler()
    made.refreshed(LaneList([lane("a")]), NOW - 1, NOW)
    order(made)
    made.claimed([], NOW, NOW)
    assert not refresh_due(made, NOW + 0.049)
    assert refresh_due(made, NOW + 0.05)


@pytest.mark.parametrize(
    ("more", "until_idle", "busy", "unsettled", "wait"),
    [
        (True, False, False, False, 0.0),
        (True, True, True, True, 0.0),
        (False, False, False, False, 0.2),
        (False, False, True, True, 0.2),
        (False, True, True, False, 0.2),
        (False, True, False, True, 0.02),
        (False, True, False, False, None),
    ],
)
def test_the_wait_after_a_round(more: bool, until_idle: bool, busy: bool, unsettled: bool, wait: float | None) -> None:
    assert wait_after_round(more=more, poll=0.2, until_idle=until_idle, busy=busy, unsettled=unsettled) == wait


@pytest.mark.parametrize(
    ("next_in", "since_claim", "woken", "receiving", "decision"),
    [
        (None, 0, False, False, IdleWait(0.0, stop=True)),
        (61, 0, False, False, IdleWait(0.0, stop=True)),
        (61, 0, True, False, IdleWait(0.0, stop=True)),
        (None, 0, False, True, IdleWait(0.2)),
        (60, 0, False, False, IdleWait(0.2)),
        (0.1, 0, False, False, IdleWait(0.1)),
        (0.1, 0, True, False, IdleWait(0.0)),
        (0.001, 0, False, False, IdleWait(0.02)),
        (0, 60, False, False, IdleWait(0.02)),
        (0, 61, True, False, IdleWait(0.0)),
        (-1, 61, False, False, IdleWait(0.02, stop=True, stalled=True)),
        (0.1, 61, False, False, IdleWait(0.1)),
    ],
)
def test_the_wait_of_a_worker_that_runs_until_idle(
    next_in: float | None, since_claim: float, woken: bool, receiving: bool, decision: IdleWait
) -> None:
    found = wait_when_idle(next_in, limit=60, poll=0.2, since_claim=since_claim, woken=woken, receiving=receiving)
    assert found == decision
