"""Formats times, durations, counts and untrusted text for the terminal."""

from datetime import UTC, datetime, timedelta

from holdfast.core.encryption import encrypted_value
from holdfast.core.values.text import printable

__all__ = ["ago", "clock", "many", "moment", "one_line", "percent", "printable", "rough", "short_frame", "stored_text"]

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def rough(duration: timedelta) -> str:
    """The largest unit of a duration, followed by the second largest if the first is below 10.

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


def ago(at: datetime | None, now: datetime) -> str:
    """A relative time: `5m ago` or `in 5m`. Empty without a time."""
    if at is None:
        return ""
    if abs(now - at) < timedelta(seconds=1):
        return "just now"
    return f"{rough(now - at)} ago" if at <= now else f"in {rough(at - now)}"


def clock(at: datetime) -> str:
    """An absolute time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def moment(at: datetime | None, now: datetime) -> str:
    """The relative time with the absolute one in parentheses."""
    return "" if at is None else f"{ago(at, now)} ({clock(at)})"


def one_line(text: str | None) -> str:
    """`text` on one line, without control characters."""
    return "" if text is None else printable(" ".join(text.split()))


def stored_text(text: str) -> str:
    """Stored JSON text; an encrypted value as its key and its ciphertext.

    >>> stored_text('{"$encrypted": {"key": "2026-11", "data": "q83v"}}')
    'encrypted, key 2026-11: q83v'
    """
    found = encrypted_value(text)
    if found is None:
        return text
    changed = "" if found.refused is None else " (changed, or copied from another row)"
    return f"encrypted, key {found.key}{changed}: {found.data}"


def percent(fraction: float) -> str:
    """A fraction as a percentage; 100 % only if nothing is left.

    >>> percent(0.999)
    '99 %'
    """
    return f"{int(fraction * 100 + 1e-9)} %"


def short_frame(frame: str | None) -> str:
    """Shortens a stack frame to folder, file and line.

    >>> short_frame("/srv/app/shop/billing.py:17 in charge")
    'shop/billing.py:17'
    """
    if frame is None:
        return ""
    location = frame.partition(" in ")[0].replace("\\", "/")
    return printable("/".join(location.rsplit("/", 2)[-2:]))


def many(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun, plural if needed.

    >>> many(2, "delivery", "deliveries")
    '2 deliveries'
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def many_deliveries(count: int) -> str:
    return many(count, "delivery", "deliveries")
