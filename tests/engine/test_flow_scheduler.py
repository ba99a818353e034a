"""Where a worker looks for deliveries with flow control, how much it claims, and when it looks again."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Limit, Rate
from holdfast.app.declaration.flow_options import flow_settings
from holdfast.engine.claims import flow_scheduler
from holdfast.engine.claims.flow_scheduler import FlowScheduler, flow_room, next_wait
from holdfast.stores.deliveries.claim import LOWEST_ID, Lane, LaneFlow
from holdfast.stores.deliveries.flow import Floors, FlowClaim, FlowScan

AT, ID = datetime(2026, 1, 1, tzinfo=UTC), UUID(int=7)
CLAIM: Any = object()
SECOND = timedelta(seconds=1)


def flow(queue: dict[str, Any] | None = None, **options: Any) -> LaneFlow:
    return LaneFlow(flow_settings(options), None if queue is None else flow_settings(queue))


def lane(name: str = "mail", priority: int = 1, **options: Any) -> Lane:
    return Lane("default", name, 0, priority, flow=flow(**options))


@pytest.mark.parametrize(
    ("given", "slots", "prefetch", "held", "others", "room"),
    [
        # A limit of each key: as much as plain deliveries.
        (flow(limit=Limit(2, by="k")), 10, 40, 5, 5, 40),
        (flow(order_by="k"), 10, 0, 3, 4, 3),
        (flow(fair_by="k"), 10, 0, 10, 5, 0),
        # A limit that all share: free slots, and ahead at most a quarter of it.
        (flow(limit=Limit(100)), 10, 0, 0, 0, 10),
        (flow(limit=Limit(100)), 10, 40, 0, 0, 35),
        (flow(limit=Limit(4)), 10, 40, 2, 2, 7),
        (flow(rate=Rate("8/1s")), 10, 40, 10, 0, 2),
        (flow(queue={"limit": Limit(8)}), 10, 40, 0, 0, 12),
        # Other deliveries wait for all slots: half of them anyway.
        (flow(limit=Limit(100)), 10, 40, 0, 50, 5),
        (flow(limit=Limit(100)), 10, 40, 5, 50, 0),
        (flow(limit=Limit(100)), 1, 40, 0, 50, 1),
    ],
)
def test_how_much_to_claim(given: LaneFlow, slots: int, prefetch: int, held: int, others: int, room: int) -> None:
    assert flow_room(given, slots=slots, prefetch=prefetch, held=held, others=others) == room


def test_a_window_comes_first_and_a_walk_only_if_it_is_full_of_what_cannot_run() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    found, scan = scheduler.first_scan(one, 100, 0.0)
    assert (found, scan) == (one, FlowScan(100))
    assert scheduler.claimed(one, scan, FlowClaim([CLAIM] * 100, left=500), 0.0, 0.1) is None
    assert scheduler.claimed(one, scan, FlowClaim([CLAIM] * 40, left=20), 0.0, 0.1) is None
    assert scheduler.claimed(one, scan, FlowClaim([CLAIM] * 40, left=300), 0.0, 0.1) == FlowScan(50, "", 1)
    # What has no key yet is adopted before anything else.
    assert scheduler.claimed(one, scan, FlowClaim([], left=300, unkeyed=1), 0.0, 0.1) is None
    # Without a key there is nothing to walk over.
    assert scheduler.claimed(lane(limit=Limit(2)), scan, FlowClaim([], left=300), 0.0, 0.1) is None


def test_a_fair_lane_is_walked_from_its_last_key_and_few_keys_share_a_claim() -> None:
    scheduler, one = FlowScheduler(), lane(fair_by="k")
    _, scan = scheduler.first_scan(one, 100, 0.0)
    assert scan == FlowScan(100, "", 1)
    assert scheduler.claimed(one, scan, FlowClaim([CLAIM], cursor="m", keys=5), 0.0, 0.001) is None
    assert scheduler.first_scan(one, 100, 1.0)[1] == FlowScan(100, "m", 20)


def test_with_a_fixed_share_few_keys_get_a_small_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_scheduler, "_share", lambda size, keys: 1)
    with pytest.raises(AssertionError):
        test_a_fair_lane_is_walked_from_its_last_key_and_few_keys_share_a_claim()


def test_a_floor_is_used_until_a_deeper_scan_is_due() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    _, scan = scheduler.first_scan(one, 10, 0.0)
    scheduler.claimed(one, scan, FlowClaim([CLAIM], floor=(AT, ID)), 0.0, 0.1)
    # The whole lane took 0.1 s and is due after 2 s; the shallow scan was never made.
    shallow, scan = scheduler.first_scan(one, 10, 0.2)
    assert shallow.floor_at < AT
    scheduler.claimed(one, scan, FlowClaim([CLAIM], floor=(AT, ID)), 0.2, 0.3)
    tight, _ = scheduler.first_scan(one, 10, 0.4)
    assert (tight.floor_at, tight.floor_id) == (AT, ID)
    assert scheduler.first_scan(one, 10, 2.2)[0] == one


def test_ticket_floors_are_read_again_and_forgotten_after_an_outage() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    assert scheduler.floors_due(one, 0.0)
    scheduler.floors_read(one, Floors(5, 6), 0.0, 0.2)
    assert (scheduler.floors_due(one, 3.0), scheduler.floors_due(one, 4.3)) == (False, True)
    assert scheduler.state(one).floors == Floors(5, 6)
    scheduler.floors_read(one, Floors(5, 6), 4.3, 64.3)  # the process was suspended
    assert (scheduler.floors_due(one, 69.2), scheduler.floors_due(one, 69.4)) == (False, True)
    scheduler.forget_floors()
    assert scheduler.state(one).floors == Floors()


def test_lanes_of_one_priority_take_turns() -> None:
    scheduler = FlowScheduler()
    scheduler.refreshed([lane("a"), lane("b"), lane("c", priority=0)])
    orders = {tuple(one.consumer for one in scheduler.order()) for _ in range(6)}
    assert orders == {("c", "a", "b"), ("c", "b", "a")}


def test_the_soonest_token_counts_and_no_wait_is_shorter_than_a_few_milliseconds() -> None:
    assert next_wait([None, 3.0, 0.5]) == 0.5
    assert next_wait([0.0]) == 0.005
    assert next_wait([None]) is None


def test_idle_lanes_are_checked_together_and_a_single_one_is_claimed_from() -> None:
    scheduler, names = FlowScheduler(), [lane(name, limit=Limit(2)) for name in "abc"]
    scheduler.refreshed(names)
    assert scheduler.to_check(0.0) == names
    busy, stuck, empty = names
    scan = FlowScan(10)
    scheduler.claimed(busy, scan, FlowClaim([CLAIM]), 0.0, 0.001)
    assert scheduler.to_check(0.0) == [stuck, empty]
    # Its limit may be reached, which the check finds out as well.
    scheduler.claimed(stuck, scan, FlowClaim([], left=3), 0.0, 0.001)
    assert scheduler.to_check(0.0) == [stuck, empty]
    scheduler.claimed(stuck, scan, FlowClaim([CLAIM], left=3), 0.0, 0.001)
    assert scheduler.to_check(0.0) == []
    scheduler.claimed(busy, scan, FlowClaim([]), 0.0, 0.001)
    assert scheduler.to_check(0.0) == [busy, empty]


def test_after_an_expensive_check_the_next_ones_start_below_the_floors() -> None:
    scheduler, names = FlowScheduler(), [lane(name, limit=Limit(2)) for name in "ab"]
    scheduler.refreshed(names)
    scheduler.claimed(names[0], FlowScan(10), FlowClaim([CLAIM], floor=(AT, ID)), 0.0, 0.001)
    scheduler.claimed(names[0], FlowScan(10), FlowClaim([]), 0.0, 0.001)
    scheduler.checked(0.0, 0.001)
    assert scheduler.to_check(0.01) == names
    scheduler.checked(0.01, 0.04)
    below, whole = scheduler.to_check(0.1)
    assert (below.floor_at < AT, whole) == (True, names[1])
    assert scheduler.to_check(0.7) == names


def test_a_walk_that_finds_nothing_continues_until_it_has_come_round() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    state = scheduler.state(one)
    due = []
    state.has_passed = True
    for before, after in (("k4", "k6"), ("k6", "k9"), ("k9", "k2"), ("k2", "k5"), ("k5", "k7")):
        scheduler.first_scan(one, 10, 0.0)
        scan = FlowScan(10, before, visits=1000)
        assert scheduler.claimed(one, scan, FlowClaim([], cursor=after, keys=1000), 0.0, 0.1) is None
        due.append(state.walk_due)
    assert [at is not None for at in due] == [True, True, True, False, True]
    assert due[0] == pytest.approx(0.9)
    # A claim, or a walk over fewer keys than it may visit, ends the pass.
    scheduler.first_scan(one, 10, 0.0)
    scheduler.claimed(one, FlowScan(10, "k7", visits=1000), FlowClaim([], cursor="k8", keys=999), 0.0, 0.1)
    assert (state.walk_due, state.pass_from) == (None, None)


def test_the_first_walk_over_all_keys_is_not_delayed_but_gives_other_lanes_their_turn() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    due = []
    for before, after in (("", "k4"), ("k4", "k9"), ("k9", "k2"), ("k2", "k4")):
        scheduler.first_scan(one, 10, 0.0)
        scan = FlowScan(10, before, visits=1000)
        assert scheduler.claimed(one, scan, FlowClaim([], cursor=after, keys=1000), 0.0, 0.1) is None
        due.append(scheduler.state(one).walk_due)
    assert due == [0.1, 0.1, None, pytest.approx(0.9)]


@pytest.mark.parametrize("options", [{"limit": Limit(2, by="k")}, {"limit": Limit(2, by="k"), "fair_by": "k"}], ids=str)
def test_the_first_walk_over_all_keys_visits_many_keys_in_every_round(options: dict[str, Any]) -> None:
    """A short walk per round, with a long one after every eighth of its time, took 75 s for 100,000 blocked keys."""
    scheduler, one = FlowScheduler(), lane(**options)
    state = scheduler.state(one)
    visits, cursor = [], 0
    for turn in range(4):
        state.has_passed = turn == 3
        scan: FlowScan | None = scheduler.first_scan(one, 10, float(turn))[1]
        while scan is not None:
            # Every key is blocked; the cost of a long walk delays the next one beyond this test.
            cursor += 0 if scan.cursor is None else 1
            found = FlowClaim([], left=120, cursor=f"k{cursor}", keys=scan.visits or scan.size)
            visits += [] if scan.cursor is None else [scan.visits]
            scan = scheduler.claimed(one, scan, found, float(turn), turn + 0.5)
    assert visits == [None, 1000, 1000, 1000, None]


def test_what_became_due_is_scanned_before_a_walk() -> None:
    scheduler, one = FlowScheduler(), lane(limit=Limit(2, by="k"))
    state, blocked = scheduler.state(one), FlowClaim([], left=300, at=AT)
    start = AT - SECOND, LOWEST_ID

    def first(now: float, found: FlowClaim = blocked) -> FlowScan | None:
        return scheduler.claimed(one, scheduler.first_scan(one, 100, now)[1], found, now, now)

    recent = FlowScan(100, since=start)
    assert first(0.0) == recent
    # A full window of what cannot run: the next scan starts behind it.
    assert scheduler.claimed(one, recent, FlowClaim([], left=300, floor=(AT, ID), at=AT), 0.0, 0.1) == FlowScan(100, "")
    assert (state.since, state.walk_due) == ((AT, ID), 0.1)
    recent = FlowScan(100, since=(AT, ID))
    assert first(0.1) == recent
    # Some were claimed: the window that SQLite returns is not the one that was claimed from.
    scheduler.claimed(one, recent, FlowClaim([CLAIM], left=299, floor=(AT + SECOND, ID), at=AT), 1.0, 1.0)
    assert state.since == (AT, ID)
    # All was read: a transaction may commit after it. The next scan waits for a multiple of the cost.
    assert scheduler.claimed(one, recent, FlowClaim([], left=2, at=AT + SECOND), 0.1, 0.2) == FlowScan(100, "")
    assert state.since == (AT, LOWEST_ID)
    assert first(0.5) == FlowScan(100, "")
    assert state.walk_due == pytest.approx(1.0)
    # After a full claim a walk has its turn.
    assert scheduler.claimed(one, recent, FlowClaim([CLAIM] * 100, left=9, at=AT), 1.0, 1.0) is None
    assert first(1.1) == FlowScan(100, "")
    assert first(1.2) == FlowScan(100, since=(AT, LOWEST_ID))
