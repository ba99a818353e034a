"""Durations as seconds, a timedelta, or text such as ``"1h30m"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from holdfast.core.errors import InvalidDuration

Duration: TypeAlias = timedelta | float | int | str

MAX_DURATION = timedelta(days=36_525)
"""One hundred years: a longer value is a mistake, and sums stay within the range of datetime."""

_MICROSECONDS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_ORDER = list(_MICROSECONDS)
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|[wdhms])\s*")


def to_timedelta(value: Duration, *, name: str = "duration") -> timedelta:
    """Return a timedelta between zero and `MAX_DURATION`, or raise `InvalidDuration` naming `name`.

    >>> to_timedelta("1h30m")
    datetime.timedelta(seconds=5400)
    """
    exact = _parse(value, name)
    if exact < 0:
        raise _invalid(name, value, "is negative")
    if exact > MAX_DURATION.total_seconds():
        raise _invalid(name, value, "is longer than 100 years")
    return _from_seconds(exact)


def clamp_duration(value: Duration, *, name: str = "duration") -> timedelta:
    """Like `to_timedelta`, for values of other systems: negative becomes zero, too long becomes `MAX_DURATION`."""
    if isinstance(value, float) and math.isinf(value):
        return MAX_DURATION if value > 0 else timedelta(0)
    exact = _parse(value, name)
    if exact >= MAX_DURATION.total_seconds():
        return MAX_DURATION
    return _from_seconds(max(exact, Decimal(0)))


def format_duration(value: timedelta) -> str:
    """Format a duration as text that `to_timedelta` parses to the same value.

    >>> format_duration(timedelta(seconds=5400.25))
    '1h 30m 250ms'
    """
    microseconds = value // timedelta(microseconds=1)
    sign, microseconds = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, microseconds = divmod(microseconds, _MICROSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if microseconds:
        parts.append(f"{microseconds / 1000:.3f}".rstrip("0").rstrip(".") + "ms")
    return sign + " ".join(parts or ["0s"])


def _parse(value: Duration, name: str) -> Decimal:
    """Exact seconds as a Decimal, which cannot overflow before the range check."""
    if isinstance(value, timedelta):
        return Decimal(value // timedelta(microseconds=1)) / 1_000_000
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _invalid(name, value, f"is of type {type(value).__name__}, not a duration")
    if isinstance(value, str):
        return _parse_text(value, name)
    if isinstance(value, float) and not math.isfinite(value):
        raise _invalid(name, value, "is not a finite number")
    return Decimal(value)


def _parse_text(value: str, name: str) -> Decimal:
    text, at, smallest, total = value.strip(), 0, -1, Decimal(0)
    while at < len(text):
        part = _PART.match(text, at)
        # Each unit once, larger units first: "5m1h" is probably a mistake.
        if part is None or _ORDER.index(part[2]) <= smallest:
            raise _invalid(name, value, "has no unit" if re.fullmatch(_NUMBER, text) else "cannot be read")
        smallest, at = _ORDER.index(part[2]), part.end()
        total += Decimal(part[1]) * _MICROSECONDS[part[2]]
    if not text:
        raise _invalid(name, value, "is empty")
    return total / 1_000_000


def _from_seconds(exact: Decimal) -> timedelta:
    return timedelta(microseconds=int((exact * 1_000_000).to_integral_value()))


def _invalid(name: str, value: object, problem: str) -> InvalidDuration:
    # Imported here because the errors package imports this module.
    from holdfast.core.errors import InvalidDuration

    return InvalidDuration(name, value, problem)
