"""The rule of circuits alone: times are given, nothing waits."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.circuit import Circuit, CircuitState, Entry, Limits, Result, enter, leave, reset, trip
from holdfast.core.errors import ConfigurationError

START = datetime(2026, 11, 15, tzinfo=UTC)
LIMITS = Limits(threshold=3, cooldown=timedelta(seconds=60), jitter=0.5, probe_timeout=timedelta(seconds=10))


class Held:
    """A circuit that is kept, and a time that is moved."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits, self.circuit, self.now = limits, Circuit(), START

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def enter(self) -> Entry | timedelta:
        self.circuit, answer = enter(self.limits)(self.circuit, self.now)
        return answer

    def passes(self) -> Entry:
        entry = self.enter()
        assert isinstance(entry, Entry)
        return entry

    def leave(self, entry: Entry, result: Result, random: float = 0.0) -> bool:
        self.circuit, changed = leave(entry, result, self.limits, random, "why")(self.circuit, self.now)
        return changed

    def call(self, result: Result) -> None:
        self.leave(self.passes(), result)

    def state(self) -> CircuitState:
        return self.circuit.state(self.now)


def opened(limits: Limits = LIMITS) -> Held:
    held = Held(limits)
    for _ in range(limits.threshold):
        held.call(Result.FAILED)
    assert held.state() is CircuitState.OPEN
    return held


def test_failures_in_a_row_open_it_and_a_success_restarts_the_count() -> None:
    held = Held()
    for result in (Result.FAILED, Result.FAILED, Result.SUCCEEDED, Result.FAILED, Result.ABANDONED, Result.FAILED):
        held.call(result)
    assert (held.state(), held.circuit.failures) == (CircuitState.CLOSED, 2)
    held.call(Result.FAILED)
    assert (held.state(), held.circuit.why) == (CircuitState.OPEN, "why")


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 60), (0.5, 75), (0.999, 89.97)])
def test_the_cooldown_is_made_longer_by_jitter(random: float, seconds: float) -> None:
    held = Held()
    for _ in range(3):
        held.leave(held.passes(), Result.FAILED, random)
    assert held.enter() == timedelta(seconds=seconds)


def test_after_the_cooldown_one_may_look_and_all_others_wait_for_its_deadline() -> None:
    held = opened()
    held.later(60)
    assert held.state() is CircuitState.HALF_OPEN
    probe = held.passes()
    assert probe.probe
    assert held.state() is CircuitState.PROBING
    held.later(4)
    assert [held.enter() for _ in range(3)] == [timedelta(seconds=6)] * 3


def test_a_caller_during_a_probe_retries_soon_and_rarely() -> None:
    held = opened(Limits(threshold=3, cooldown=timedelta(seconds=60), probe_timeout=timedelta(seconds=30)))
    held.later(70)
    held.passes()
    waits = []
    while isinstance(wait := held.enter(), timedelta):
        waits.append(wait.total_seconds())
        held.later(wait.total_seconds())
    assert waits == [2, 4, 12, 12]
    assert wait.probe


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Result.SUCCEEDED, CircuitState.CLOSED),
        (Result.FAILED, CircuitState.OPEN),
        (Result.ABANDONED, CircuitState.HALF_OPEN),
    ],
)
def test_the_probe_decides(result: Result, state: CircuitState) -> None:
    held = opened()
    held.later(60)
    assert held.leave(held.passes(), result)
    assert held.state() is state
    if state is CircuitState.HALF_OPEN:
        assert held.passes().probe


def test_a_probe_that_never_came_back_is_replaced_and_decides_nothing_later() -> None:
    held = opened()
    held.later(60)
    lost = held.passes()
    held.later(10)
    second = held.passes()
    assert second.probe
    for result in Result:
        assert not held.leave(lost, result)
    assert held.state() is CircuitState.PROBING
    assert held.leave(second, Result.SUCCEEDED)
    assert held.state() is CircuitState.CLOSED


def test_calls_from_before_it_opened_decide_nothing_after() -> None:
    held = Held()
    early = [held.passes() for _ in range(5)]
    for entry in early[:3]:
        held.leave(entry, Result.FAILED)
    until = held.circuit.open_until
    held.leave(early[3], Result.SUCCEEDED)
    held.later(30)
    held.leave(early[4], Result.FAILED)
    assert (held.state(), held.circuit.open_until) == (CircuitState.OPEN, until)


def test_a_fence_does_not_come_back_when_what_was_kept_is_gone() -> None:
    held = opened()
    held.later(60)
    lost = held.passes()
    held.circuit = Circuit()
    for _ in range(3):
        held.call(Result.FAILED)
    held.later(60)
    assert held.passes().fence > lost.fence
    assert not held.leave(lost, Result.SUCCEEDED)


RATE = Limits(threshold=100, rate=0.5, min_calls=10, window=timedelta(seconds=60))


def test_a_rate_opens_it_once_there_were_enough_calls() -> None:
    held = Held(RATE)
    for _ in range(4):
        held.call(Result.SUCCEEDED)
        held.call(Result.FAILED)
    assert held.state() is CircuitState.CLOSED  # eight calls are too few to tell
    held.call(Result.SUCCEEDED)
    held.call(Result.FAILED)
    assert held.state() is CircuitState.OPEN


def test_the_window_slides_and_forgets() -> None:
    held = Held(RATE)
    for _ in range(30):
        held.call(Result.SUCCEEDED)
    held.later(90)  # half of that window is still covered
    for _ in range(14):
        held.call(Result.FAILED)
    assert held.state() is CircuitState.CLOSED
    held.call(Result.FAILED)
    assert held.state() is CircuitState.OPEN
    held = Held(RATE)
    for _ in range(30):
        held.call(Result.SUCCEEDED)
    held.later(120)
    for _ in range(10):
        held.call(Result.FAILED)
    assert held.state() is CircuitState.OPEN


def test_successes_that_were_reported_late_count() -> None:
    held = Held(RATE)
    held.circuit, _ = enter(RATE, succeeded=100)(held.circuit, held.now)
    for _ in range(60):
        held.call(Result.FAILED)
    assert held.state() is CircuitState.CLOSED


def test_operators_open_and_close_it_in_any_state() -> None:
    held = Held()
    before = held.passes()
    held.circuit, _ = trip(timedelta(hours=1), "maintenance")(held.circuit, held.now)
    assert held.enter() == timedelta(hours=1)
    held.leave(before, Result.SUCCEEDED)
    assert held.state() is CircuitState.OPEN
    held.later(3600)
    probe = held.passes()
    held.circuit, _ = reset("fixed")(held.circuit, held.now)
    held.leave(probe, Result.FAILED)
    assert (held.state(), held.circuit.failures, held.circuit.why) == (CircuitState.CLOSED, 0, "fixed")


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0},
        {"threshold": True},
        {"jitter": 1.1},
        {"rate": 0},
        {"rate": 2},
        {"min_calls": 0},
        {"cooldown": timedelta(0)},
        {"probe_timeout": timedelta(0)},
        {"window": timedelta(0)},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Limits(**wrong)


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "later"]), st.integers(0, 5), st.sampled_from(Result)), max_size=80
)


@given(STEPS)
def test_in_any_sequence_there_is_one_probe_at_a_time_and_only_its_success_closes(steps: list) -> None:
    held = Held()
    running: list[tuple[Entry, datetime]] = []
    for what, number, result in steps:
        if what == "later":
            held.later(number * 7)
        elif what == "enter":
            entry = held.enter()
            if isinstance(entry, Entry):
                live = [end for one, end in running if one.probe and end > held.now]
                assert not (entry.probe and live)
                running.append((entry, held.now + LIMITS.probe_timeout))
        elif running:
            entry, _ = running.pop(number % len(running))
            before = held.state()
            held.leave(entry, result)
            if before is not CircuitState.CLOSED and held.state() is CircuitState.CLOSED:
                assert entry.probe
                assert result is Result.SUCCEEDED
