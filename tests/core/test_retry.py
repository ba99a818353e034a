"""Retry policies: how many runs, which waits, and the same after a trip through the database."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError
from holdfast.core.retry import MAX_ATTEMPTS, RetryPolicy, check_attempts

SECOND = timedelta(seconds=1)
ALMOST_ONE = 1 - 2**-53

randoms = st.floats(0, 1, exclude_max=True)
waits = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))
jitters = st.sampled_from(["full", "equal", "none"])
counts = st.integers(1, MAX_ATTEMPTS)
policies = st.one_of(
    st.builds(
        RetryPolicy.exponential,
        attempts=counts,
        base=waits,
        factor=st.floats(1, 1000) | st.integers(1, 1000),
        cap=waits,
        jitter=jitters,
        retry_after_cap=waits,
    ),
    st.builds(RetryPolicy.polynomial, attempts=counts, power=st.floats(0, 100), cap=waits, jitter=jitters),
    st.builds(RetryPolicy.schedule, st.lists(waits, max_size=10), retry_after_cap=waits),
    st.builds(RetryPolicy.fixed, waits, attempts=counts, jitter=jitters),
    st.builds(RetryPolicy.none),
)


def seconds(policy: RetryPolicy, random: float = ALMOST_ONE) -> list[float]:
    return [round(policy.delay(n, random).total_seconds(), 3) for n in range(1, policy.attempts)]


def test_the_default_is_five_runs_from_one_second_doubling_with_full_jitter() -> None:
    policy = RetryPolicy.exponential()
    assert (policy.attempts, policy.jitter, policy.cap) == (5, "full", timedelta(minutes=5))
    assert seconds(policy) == [1, 2, 4, 8]
    assert seconds(policy, 0.0) == [0, 0, 0, 0]
    assert seconds(policy, 0.5) == [0.5, 1, 2, 4]


@pytest.mark.parametrize(
    ("policy", "attempts", "expected"),
    [
        (RetryPolicy.exponential(attempts=12, jitter="none"), 12, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]),
        (RetryPolicy.exponential(attempts=3, base="250ms", factor=3, jitter="none"), 3, [0.25, 0.75]),
        (RetryPolicy.polynomial(), 3, [1, 4]),
        (RetryPolicy.polynomial(attempts=5, power=3, cap="10s"), 5, [1, 8, 10, 10]),
        (RetryPolicy.schedule([0, 1, "2s"]), 4, [0, 1, 2]),
        (RetryPolicy.fixed("5s", attempts=3), 3, [5, 5]),
        (RetryPolicy.none(), 1, []),
        (RetryPolicy.schedule([]), 1, []),
    ],
)
def test_a_policy_waits_as_it_says(policy: RetryPolicy, attempts: int, expected: list[float]) -> None:
    assert policy.attempts == attempts
    assert seconds(policy) == expected


def test_equal_jitter_keeps_the_upper_half() -> None:
    policy = RetryPolicy.exponential(base=8, jitter="equal")
    assert policy.delay(1, 0.0) == 4 * SECOND
    assert policy.delay(1, 0.5) == 6 * SECOND


def test_a_schedule_repeats_its_last_wait_for_a_larger_budget() -> None:
    assert RetryPolicy.schedule([1, 2]).delay(9, 0.0) == 2 * SECOND
    assert RetryPolicy.none().delay(9, 0.0) == timedelta(0)


def test_a_run_before_the_first_waits_like_the_first() -> None:
    assert RetryPolicy.schedule([1, 2]).delay(0, 0.0) == SECOND
    assert RetryPolicy.exponential(jitter="none").delay(-3, 0.0) == SECOND


def test_the_bounds_of_a_policy_are_inclusive() -> None:
    assert RetryPolicy.exponential(attempts=MAX_ATTEMPTS, factor=1000).factor == 1000
    assert RetryPolicy.polynomial(power=100).power == 100


@given(policies, st.integers(-5, 10**9), randoms)
def test_no_wait_is_negative_or_over_the_cap_or_overflows(policy: RetryPolicy, attempt: int, random: float) -> None:
    assert timedelta(0) <= policy.delay(attempt, random) <= policy.cap


@given(policies, st.integers(1, 50), randoms)
def test_the_same_arguments_give_the_same_wait(policy: RetryPolicy, attempt: int, random: float) -> None:
    assert policy.delay(attempt, random) == policy.delay(attempt, random)


@pytest.mark.parametrize("random", [-0.1, 1.0, 2, float("nan")])
def test_a_random_number_out_of_range_is_refused(random: float) -> None:
    with pytest.raises(ValueError, match="random"):
        RetryPolicy.exponential().delay(1, random)


@given(policies)
def test_a_policy_survives_the_database(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_the_stored_form_is_small_and_does_not_change() -> None:
    assert RetryPolicy.exponential().to_json() == {
        "kind": "exponential",
        "attempts": 5,
        "base": 1.0,
        "factor": 2,
        "cap": 300.0,
        "jitter": "full",
    }
    assert RetryPolicy.polynomial().to_json() == {"kind": "polynomial", "attempts": 3, "power": 2, "cap": 86400.0}
    assert RetryPolicy.schedule([0, 1]).to_json() == {"kind": "schedule", "attempts": 3, "waits": [0.0, 1.0]}
    assert RetryPolicy.fixed(5, retry_after_cap=60).to_json() == {
        "kind": "fixed",
        "attempts": 5,
        "base": 5.0,
        "retry_after_cap": 60.0,
    }


def test_fields_of_a_later_release_are_ignored() -> None:
    stored = {**RetryPolicy.exponential().to_json(), "moon_phase": "full"}
    assert RetryPolicy.from_json(stored) == RetryPolicy.exponential()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({}, "kind None"),
        ({"kind": "lunar", "attempts": 3}, "kind 'lunar'"),
        ({"kind": "fixed"}, "attempts is None"),
        ({"kind": "fixed", "attempts": True}, "attempts is True"),
        ({"kind": "fixed", "attempts": "3"}, "attempts is '3'"),
        ({"kind": "fixed", "attempts": 3, "base": "5s"}, "base '5s'"),
        ({"kind": "fixed", "attempts": 3, "base": True}, "base 'True'"),
        ({"kind": "fixed", "attempts": 3, "base": -1}, "negative"),
        ({"kind": "fixed", "attempts": 3, "cap": None}, "cap 'None'"),
        ({"kind": "fixed", "attempts": 3, "jitter": 7}, "jitter 7"),
        ({"kind": "exponential", "attempts": 3, "factor": "2"}, "factor '2'"),
        ({"kind": "exponential", "attempts": 3, "factor": True}, "factor True"),
        ({"kind": "schedule", "attempts": 3, "waits": 5}, "waits 5"),
        ({"kind": "schedule", "attempts": 3, "waits": ["1s"]}, "wait '1s'"),
    ],
)
def test_a_stored_policy_that_is_broken_is_refused_clearly(stored: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RetryPolicy.from_json(stored)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: RetryPolicy.exponential(attempts=0), "attempts is 0"),
        (lambda: RetryPolicy.exponential(attempts=MAX_ATTEMPTS + 1), "attempts is 10001"),
        (lambda: RetryPolicy.exponential(attempts=2.5), "attempts is 2.5"),  # type: ignore[arg-type]
        (lambda: RetryPolicy.exponential(attempts=True), "attempts is True"),
        (lambda: RetryPolicy.exponential(factor=0.5), "factor 0.5"),
        (lambda: RetryPolicy.exponential(factor=float("nan")), "factor nan"),
        (lambda: RetryPolicy.exponential(factor=float("inf")), "factor inf"),
        (lambda: RetryPolicy.exponential(base=-1), "base '-1'"),
        (lambda: RetryPolicy.exponential(cap="soon"), "cap 'soon'"),
        (lambda: RetryPolicy.exponential(jitter="some"), "jitter 'some'"),
        (lambda: RetryPolicy.exponential(retry_after_cap=-1), "retry_after_cap '-1'"),
        (lambda: RetryPolicy.polynomial(power=-1), "power -1"),
        (lambda: RetryPolicy.schedule([1, -1]), "wait '-1'"),
        (lambda: RetryPolicy.fixed("x"), "delay 'x'"),
        (lambda: check_attempts(0, name="max_attempts"), "max_attempts is 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_clearly(build, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build()


@pytest.mark.parametrize(
    ("after", "expected"),
    [(-1, 0), (0, 0), (59, 59), (3600, 3600), (3601, 3600), (10**9, 3600)],
)
def test_a_requested_wait_is_clamped(after: int, expected: int) -> None:
    assert RetryPolicy.exponential().clamp(timedelta(seconds=after)) == timedelta(seconds=expected)


def test_the_clamp_can_be_set() -> None:
    assert RetryPolicy.fixed(1, retry_after_cap="10s").clamp(timedelta(days=1)) == 10 * SECOND


def test_a_preview_shows_ranges_where_there_is_jitter() -> None:
    assert [str(wait) for wait in RetryPolicy.exponential(attempts=4).preview()] == ["0s..1s", "0s..2s", "0s..4s"]
    assert [str(wait) for wait in RetryPolicy.exponential(attempts=3, jitter="equal").preview()] == [
        "500ms..1s",
        "1s..2s",
    ]
    assert [str(wait) for wait in RetryPolicy.schedule([0, "1m"]).preview()] == ["0s", "1m"]
    assert RetryPolicy.none().preview() == []
    assert [wait.after_attempt for wait in RetryPolicy.polynomial().preview()] == [1, 2]


@given(policies.filter(lambda policy: policy.attempts < 50), randoms)
def test_every_wait_lies_in_its_preview(policy: RetryPolicy, random: float) -> None:
    for wait in policy.preview():
        assert wait.shortest <= policy.delay(wait.after_attempt, random) <= wait.longest
