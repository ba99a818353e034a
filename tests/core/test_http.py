"""HTTP answers and Retry-After, including invalid ones (FAULTS 50)."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failures.http import parse_date, parse_retry_after, verdict_for
from holdfast.core.failures.verdict import Verdict, VerdictKind
from holdfast.core.values.duration import MAX_DURATION

NOW = datetime(2026, 11, 15, 8, 0, 0, tzinfo=UTC)
RETRY, DEAD = Verdict.retry(), Verdict.dead()
FIVE = Verdict.retry(timedelta(seconds=5))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 304])
def test_a_success_is_no_verdict(status: int) -> None:
    assert verdict_for(status, None, NOW) is None
    assert verdict_for(status, "5", NOW) is None


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_passing_trouble_retries_and_honours_retry_after(status: int) -> None:
    assert verdict_for(status, None, NOW) == RETRY
    assert verdict_for(status, "5", NOW) == FIVE
    assert verdict_for(status, "garbage", NOW) == RETRY


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_wrong_request_is_dead_despite_retry_after(status: int) -> None:
    assert verdict_for(status, None, NOW) == DEAD
    assert verdict_for(status, "5", NOW) == DEAD
    assert verdict_for(status, None, NOW, conflict_ok=True) == DEAD


@pytest.mark.parametrize(
    ("retry_after", "conflict_ok", "expected"),
    [
        (None, False, DEAD),
        ("", False, DEAD),
        (" ", True, None),
        (None, True, None),
        ("5", False, FIVE),
        ("5", True, FIVE),
        ("garbage", False, RETRY),
    ],
)
def test_a_conflict_retries_is_a_success_or_is_terminal(retry_after, conflict_ok: bool, expected) -> None:
    assert verdict_for(409, retry_after, NOW, conflict_ok=conflict_ok) == expected


@pytest.mark.parametrize("status", [300, 301, 302, 308, 405, 406, 410, 413, 415, 418, 451])
def test_other_answers_about_the_request_are_dead_unless_a_time_is_named(status: int) -> None:
    assert verdict_for(status, None, NOW) == DEAD
    assert verdict_for(status, "5", NOW) == FIVE


@pytest.mark.parametrize("status", [501, 505])
def test_what_the_server_cannot_do_at_all_is_dead(status: int) -> None:
    assert verdict_for(status, None, NOW) == DEAD


@pytest.mark.parametrize("status", [0, 100, 507, 520, 599, 999, -1])
def test_an_unknown_status_retries(status: int) -> None:
    assert verdict_for(status, None, NOW) == RETRY


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", timedelta(0)),
        ("120", timedelta(minutes=2)),
        (" 120 ", timedelta(minutes=2)),
        ("1.9", timedelta(seconds=1)),
        ("+5", timedelta(seconds=5)),
        ("-5", timedelta(0)),
        ("-1000000000000", timedelta(0)),
        ("1000000000000", MAX_DURATION),
        ("9" * 400, MAX_DURATION),
        ("9" * 5000, None),
        ("Sun, 15 Nov 2026 08:01:00 GMT", timedelta(minutes=1)),
        ("sun, 15 nov 2026 08:01:00 gmt", timedelta(minutes=1)),
        ("Sunday, 15-Nov-26 08:01:00 GMT", timedelta(minutes=1)),
        ("Sun Nov 15 08:01:00 2026", timedelta(minutes=1)),
        ("Sun Nov  1 08:01:00 2026", timedelta(0)),
        ("Sun, 15 Nov 2026 07:00:00 GMT", timedelta(0)),
        ("Thu, 01 Jan 1970 00:00:00 GMT", timedelta(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_DURATION),
        ("Sunday, 06-Nov-94 08:49:37 GMT", timedelta(0)),
        ("Sun, 31 Feb 2026 08:00:00 GMT", None),
        ("Sun, 15 Foo 2026 08:00:00 GMT", None),
        ("Sun, 15 Nov 0000 08:00:00 GMT", None),
        ("Sun, 15 Nov 2026 25:00:00 GMT", None),
        ("2026-11-15T08:01:00Z", None),
        ("", None),
        (None, None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e12", None),
        ("٣", None),
        ("5, 6", None),
        ("\x00", None),
        ("\ud800", None),
        ("x" * 1_000_000, None),
    ],
    ids=range(35),
)
def test_a_retry_after_header_becomes_a_wait(value: str | None, expected: timedelta | None) -> None:
    assert parse_retry_after(value, NOW) == expected


@pytest.mark.parametrize(("short", "year"), [("69", 2069), ("70", 1970)])
def test_a_short_year_is_the_nearer_one(short: str, year: int) -> None:
    date = parse_date(f"Sunday, 06-Nov-{short} 08:49:37 GMT")
    assert date is not None
    assert date.year == year


def test_a_leap_second_is_a_time() -> None:
    assert parse_date("Wed, 31 Dec 2025 23:59:60 GMT") == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_date_without_a_clock_to_compare_it_with_is_no_wait() -> None:
    assert parse_retry_after("Sun, 15 Nov 2026 08:01:00 GMT", None) is None
    assert parse_retry_after("5", None) == timedelta(seconds=5)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001
def test_every_http_date_is_read_exactly(naive: datetime) -> None:
    date = naive.replace(tzinfo=UTC, microsecond=0)
    assert parse_date(format_datetime(date, usegmt=True)) == date


@given(st.text())
def test_no_header_breaks_the_reader(value: str) -> None:
    wait = parse_retry_after(value, NOW)
    assert wait is None or timedelta(0) <= wait <= MAX_DURATION


@given(st.integers(), st.none() | st.text(), st.booleans())
def test_every_answer_has_a_verdict_and_none_blocks(status: int, retry_after: str | None, conflict_ok: bool) -> None:
    verdict = verdict_for(status, retry_after, NOW, conflict_ok=conflict_ok)
    assert verdict is None or verdict.kind in (VerdictKind.RETRY, VerdictKind.DEAD)
