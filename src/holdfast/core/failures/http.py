"""Verdicts for HTTP statuses, and waits from the Retry-After header."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from holdfast.core.failures.verdict import Verdict
from holdfast.core.values.duration import MAX_DURATION

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
TERMINAL = frozenset({400, 401, 403, 404, 422, 501, 505})
CONFLICT = 409

_SECONDS = re.compile(r"([+-]?)([0-9]{1,400})(?:\.[0-9]*)?")

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d)"
_ZONE = r"(?:GMT|UTC|Z|[+-]0000)"
_DATES = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d?) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} {_ZONE}",
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} {_ZONE}",
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) {{1,2}}(?P<day>\d\d?) {_CLOCK} (?P<year>\d{{4}})",
    )
)
_SHORT_YEAR, _PIVOT = 2, 70


def verdict_for(
    status: int, retry_after: str | None, now: datetime | None, *, conflict_ok: bool = False
) -> Verdict | None:
    """Return the verdict on a response, None for success; `retry_after` is the unparsed header.

    A 409 with Retry-After means that the operation is still running and is retried. Without Retry-After it is a
    success if `conflict_ok`, because the item already exists, and terminal otherwise.
    """
    wait = parse_retry_after(retry_after, now)
    must_wait = bool(retry_after and retry_after.strip())
    if 200 <= status < 300 or status == 304:
        return None
    if status in RETRYABLE:
        return Verdict.retry(wait)
    if status in TERMINAL:
        return Verdict.dead()
    if status == CONFLICT and not must_wait:
        return None if conflict_ok else Verdict.dead()
    # Other statuses about the request (405, 410, 413, 3xx …) are permanent unless the server names a time; other
    # server errors (507, 52x …) usually come from a proxy and are temporary.
    if 300 <= status < 500 and not must_wait:
        return Verdict.dead()
    return Verdict.retry(wait)


def fits_header(value: str) -> bool:
    """Whether text is a valid header value. HTTP libraries include an invalid value, which may be secret, in their error."""
    return value == value.strip() and all(" " <= character <= "~" for character in value)


def parse_retry_after(value: str | None, now: datetime | None) -> timedelta | None:
    """Return the wait of a Retry-After header, or None if it is missing or invalid.

    The header is a number of seconds or an HTTP date. The past and negative numbers give zero; 10^12 gives
    `MAX_DURATION`, which the retry policy limits. A date needs `now`, preferably the Date header of the same response,
    so that differences between clocks do not matter.
    """
    text = (value or "").strip()
    if number := _SECONDS.fullmatch(text):
        seconds = 0 if number[1] == "-" else int(number[2])
        return MAX_DURATION if seconds >= MAX_DURATION.total_seconds() else timedelta(seconds=seconds)
    date = parse_date(text)
    if date is None or now is None:
        return None
    return min(max(date - now, timedelta(0)), MAX_DURATION)


def parse_date(value: str) -> datetime | None:
    """Return an HTTP date in any of the three forms of RFC 9110 as aware UTC; None for other text."""
    found = next((match for form in _DATES if (match := form.fullmatch(value.strip()))), None)
    if found is None:
        return None
    year = int(found["year"])
    if len(found["year"]) == _SHORT_YEAR:
        year += 2000 if year < _PIVOT else 1900
    hour, minute, second = (int(part) for part in found["clock"].split(":"))
    try:
        # A leap second has the valid second 60, which datetime does not support.
        return datetime(
            year,
            _MONTHS.index(found["month"].lower()) + 1,
            int(found["day"]),
            hour,
            minute,
            min(second, 59),
            tzinfo=UTC,
        )
    except ValueError:
        return None
