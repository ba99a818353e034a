"""Durations are read exactly, or refused with a name and a reason."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.core.values.duration import MAX_DURATION, clamp_duration, format_duration, to_timedelta

durations = st.timedeltas(min_value=timedelta(0), max_value=MAX_DURATION)


@pytest.mark.parametrize(
    ("given_value", "seconds"),
    [
        (0, 0),
        (-0.0, 0),
        (30, 30),
        (0.5, 0.5),
        (timedelta(hours=2), 7200),
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1 h ", 3600),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("1.5h", 5400),
        ("0s", 0),
        ("36525d", 36_525 * 86_400),
    ],
)
def test_a_duration_is_read(given_value, seconds: float) -> None:
    assert to_timedelta(given_value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(microseconds=-1), "negative"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        (True, "bool"),
        (None, "NoneType"),
        (Decimal(1), "Decimal"),
        (b"5m", "bytes"),
        ("", "empty"),
        ("   ", "empty"),
        ("30", "no unit"),
        ("soon", "cannot be read"),
        ("-5m", "cannot be read"),
        ("5m1h", "cannot be read"),
        ("1h1h", "cannot be read"),
        ("1h30", "cannot be read"),
        ("1,5h", "cannot be read"),
        ("5M", "cannot be read"),
        ("٣s", "cannot be read"),
        ("1e3s", "cannot be read"),
        ("9" * 1000 + "s", "cannot be read"),
        ("99999999999w", "100 years"),
        (10**12, "100 years"),
        (10**400, "100 years"),
        (1e300, "100 years"),
        (timedelta.max, "100 years"),
        (MAX_DURATION + timedelta(microseconds=1), "100 years"),
    ],
)
def test_what_is_no_duration_is_refused_by_name(value, problem: str) -> None:
    with pytest.raises(InvalidDuration, match=problem) as caught:
        to_timedelta(value, name="lease")
    assert str(caught.value).startswith("lease ")
    assert isinstance(caught.value, ConfigurationError)
    assert isinstance(caught.value, ValueError)


def test_a_hostile_text_is_refused_at_once() -> None:
    with pytest.raises(InvalidDuration):
        to_timedelta("1h" + " " * 100_000 + "x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-5, timedelta(0)),
        (float("-inf"), timedelta(0)),
        (float("inf"), MAX_DURATION),
        (10**400, MAX_DURATION),
        (timedelta.max, MAX_DURATION),
        ("5m", timedelta(minutes=5)),
    ],
)
def test_a_duration_of_someone_else_is_clamped(value, expected: timedelta) -> None:
    assert clamp_duration(value) == expected


def test_clamping_still_refuses_nan() -> None:
    with pytest.raises(InvalidDuration):
        clamp_duration(float("nan"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(microseconds=1), "0.001ms"),
        (timedelta(seconds=90), "1m 30s"),
        (timedelta(hours=1, minutes=30), "1h 30m"),
        (timedelta(days=9, seconds=1), "9d 1s"),
        (timedelta(seconds=-90), "-1m 30s"),
    ],
)
def test_a_duration_is_written_for_people(value: timedelta, text: str) -> None:
    assert format_duration(value) == text


@given(durations)
def test_what_is_written_reads_back_exactly(value: timedelta) -> None:
    assert to_timedelta(format_duration(value)) == value


@given(durations)
def test_a_timedelta_is_kept_exactly(value: timedelta) -> None:
    assert to_timedelta(value) == value
    assert clamp_duration(value) == value


@given(st.one_of(st.text(), st.floats(), st.integers()))
def test_anything_is_read_or_refused_with_the_typed_error(value) -> None:
    try:
        read = to_timedelta(value)
    except InvalidDuration:
        return
    assert timedelta(0) <= read <= MAX_DURATION
