"""Times, durations and foreign text as a person reads them on a terminal."""

from datetime import UTC, datetime, timedelta

from holdfast.core.text import printable

__all__ = ["ago", "clock", "many", "moment", "one_line", "printable", "rough", "short_frame"]

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def rough(duration: timedelta) -> str:
    """The two largest units of a duration, the second only where it tells something.

    >>> rough(timedelta(minutes=83))
    '1h 23m'
    """
    seconds = int(abs(duration.total_seconds()))
    for at, (unit, size) in enumerate(_UNITS):
        if seconds >= size or unit == "s":
            count, rest = divmod(seconds, size)
            if count < 10 and at + 1 < len(_UNITS):
                smaller, smaller_size = _UNITS[at + 1]
                if rest >= smaller_size:
                    return f"{count}{unit} {rest // smaller_size}{smaller}"
            return f"{count}{unit}"
    raise AssertionError("unreachable")


def ago(at: datetime, now: datetime) -> str:
    """How long ago, or in how long."""
    if abs(now - at) < timedelta(seconds=1):
        return "just now"
    return f"{rough(now - at)} ago" if at <= now else f"in {rough(at - now)}"


def clock(at: datetime) -> str:
    """An absolute time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def moment(at: datetime | None, now: datetime) -> str:
    """Relative and absolute."""
    return "" if at is None else f"{ago(at, now)} ({clock(at)})"


def one_line(text: str | None) -> str:
    """`text` on one line, printable."""
    return "" if text is None else printable(" ".join(text.split()))


def short_frame(frame: str | None) -> str:
    """Where it broke, short enough for a column: the file's name with its folder, and the line.

    >>> short_frame("/srv/app/shop/billing.py:17 in charge")
    'shop/billing.py:17'
    """
    if frame is None:
        return ""
    place = frame.partition(" in ")[0].replace("\\", "/")
    return printable("/".join(place.rsplit("/", 2)[-2:]))


def many(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> many(2, "delivery", "deliveries")
    '2 deliveries'
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def many_deliveries(count: int) -> str:
    return many(count, "delivery", "deliveries")
