"""Schedules: which occurrences a cron expression, an interval or a single time has, and which of them run.

A schedule is stored as text: a cron expression, `every 1h 30m`, or `at`. The time of `at` is stored with the schedule.
"""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration, format_duration, to_timedelta

AT = "at"
"""The text of a schedule with a single time."""
SHORTEST = timedelta(seconds=1)
"""The shortest interval: schedulers check about once a second."""

_FIELDS = 5
_NAMES = ("minute", "hour", "day-of-month", "month", "day-of-week")
_EVERY = "every "
_MOST = 1000
_WINDOW = timedelta(hours=1)
_ON_TIME = timedelta(minutes=1)


class Missed(StrEnum):
    """What happens to occurrences that were due while no scheduler ran."""

    LAST = "last"
    ALL = "all"
    SKIP = "skip"

    @classmethod
    def parse(cls, value: str) -> "Missed":
        try:
            return cls(value)
        except ValueError:
            raise ConfigurationError(f"missed is {value!r}; use one of {', '.join(cls)}") from None


def schedule_text(cron: str | None, every: Duration | None, at: datetime | None, tz: str) -> str:
    """The stored text of a schedule; raises `ConfigurationError` unless exactly one of the three is given and can be read."""
    if sum(value is not None for value in (cron, every, at)) != 1:
        raise ConfigurationError(
            "a schedule needs exactly one of cron, every and at, such as every 90m or the cron expression '0 7 * * *'"
        )
    if cron is not None:
        check_schedule(cron, tz)
        return cron
    _zone(tz)
    if every is not None:
        interval = to_timedelta(every, name="every")
        if interval < SHORTEST:
            raise ConfigurationError(f"`every` is {every!r}; the shortest interval is 1s")
        return _EVERY + format_duration(interval)
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError(f"`at` is {at!r}; give a datetime with a time zone, such as datetime.now(UTC) + delay")
    return AT


def check_schedule(expression: str, tz: str) -> None:
    """Raises `ConfigurationError` for an expression or a time zone that cannot be read, or that never occurs."""
    if not isinstance(expression, str):
        raise ConfigurationError(f"cron expression is {expression!r}; give five fields, such as '0 7 * * *'")
    if (fields := len(expression.split())) != _FIELDS:
        # Six would be read as seconds first, and other libraries put them last.
        raise ConfigurationError(
            f"cron expression {expression!r} has {fields} field{'s' * (fields != 1)}; give minute, hour, day, month and weekday, "
            "such as '0 7 * * *'; for an interval use hf.schedules.put with every='30s'"
        )
    if next(_times(expression, tz, datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
        raise ConfigurationError(f"cron expression {expression!r} matches no date; check its day and month")


def occurrences(expression: str, tz: str, after: datetime, until: datetime, most: int = _MOST) -> list[datetime]:
    """The newest occurrences later than `after` and not later than `until`, oldest first.

    A time of day that the change to summer time skips, or that occurs twice in autumn, fires once. An expression with a
    star for minutes or hours follows elapsed time, and so does an interval, which starts at `after`.
    """
    if (every := interval_of(expression)) is not None:
        count = (until - after) // every
        return [after + every * n for n in range(max(1, count - most + 1), count + 1)]
    # Backwards from the end: a schedule that no worker served for a year may have missed half a million occurrences.
    window = _WINDOW
    while True:
        start = max(after, until - window)
        found = [at for at in itertools.takewhile(lambda at: at <= until, _times(expression, tz, start)) if at > after]
        if len(found) >= most or start == after:
            return sorted(set(found))[-most:]
        window *= 24


def next_occurrence(expression: str, tz: str, last: datetime, now: datetime) -> datetime | None:
    """The first occurrence after `now`; `last` is an earlier occurrence, or the start of the schedule."""
    if (every := interval_of(expression)) is not None:
        return last + every * ((now - last) // every + 1)
    return next(_times(expression, tz, max(last, now)), None)


def occurrences_to_run(
    expression: str, tz: str, missed: Missed, last: datetime, now: datetime, at: datetime | None = None
) -> tuple[list[datetime], datetime | None]:
    """The occurrences after `last` to run now, and the newest one that is handled by that; `at` is a single time."""
    most = _MOST if missed is Missed.ALL else 1
    if expression == AT:
        due = [at] if at is not None and at <= now else []
    else:
        due = occurrences(expression, tz, last, now, most)
    if not due:
        return [], None
    if missed is Missed.SKIP:
        return [one for one in due if now - one <= _ON_TIME], due[-1]
    return due, due[-1]


def interval_of(expression: str) -> timedelta | None:
    """The interval of a schedule with `every`; None for the other kinds."""
    return to_timedelta(expression.removeprefix(_EVERY), name="every") if expression.startswith(_EVERY) else None


def _times(expression: str, tz: str, after: datetime) -> Iterator[datetime]:
    zone = _zone(tz)
    try:
        times = CronSim(expression, after.astimezone(zone))
    except (CronSimError, ValueError) as error:
        raise ConfigurationError(
            f"cron expression {expression!r} cannot be read: {_problem(error, expression)}; give minute, hour, day, month "
            "and weekday, such as '0 7 * * *'"
        ) from None
    return (at.astimezone(UTC) for at in times)


def _problem(error: Exception, expression: str) -> str:
    """The field that cannot be read, with its value: the message has only its name."""
    name, fields = str(error).removeprefix("Bad "), expression.split()
    position = _NAMES.index(name) if name in _NAMES else _FIELDS
    return f"{name} is {fields[position]!r}" if position < len(fields) else str(error)


def _zone(tz: str) -> ZoneInfo:
    if not isinstance(tz, str):
        raise ConfigurationError(f"tz is {tz!r}; give the name of a time zone, such as 'Europe/Berlin'")
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"time zone {tz!r} is not known; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None
