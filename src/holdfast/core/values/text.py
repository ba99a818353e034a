"""Storable and printable text, also from objects whose `__str__` fails."""

from __future__ import annotations

import re
from collections.abc import Callable

# PostgreSQL refuses NUL in text, and neither database can encode half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# Characters that control a terminal: C0 and C1 controls except newline and tab, line separators, and direction marks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def sanitize(text: str, limit: int) -> str:
    """Return at most `limit` characters that PostgreSQL and SQLite can both store.

    NUL and lone surrogates become U+FFFD. Longer text keeps its beginning and its end, where causes usually are, around
    a note with the number of removed characters.
    """
    if len(text) > limit:
        # Cut first: the text may have 50 MB.
        text = _shortened(text, limit)
    return _UNSTORABLE.sub("�", text)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, so that it cannot control a terminal or forge a log line.

    Newlines and tabs stay.

    >>> printable("paid\\x1b[2J")
    'paid\\\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def storable(text: str) -> bool:
    """Whether both databases can store `text` unchanged: no NUL, no lone surrogate."""
    return _UNSTORABLE.search(text) is None


def safe_str(obj: object) -> str:
    """Return ``str(obj)``, or a note if that fails; never raises because of `obj`."""
    return _printed(obj, str)


def safe_repr(obj: object) -> str:
    """Return ``repr(obj)``, or a note if that fails; never raises because of `obj`."""
    return _printed(obj, repr)


def type_name(cls: type) -> str:
    """Return the qualified import name of a class; never raises because of `cls`."""
    try:
        module, name = str(cls.__module__), str(cls.__qualname__)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a metaclass may do anything
        module, name = "", type.__repr__(cls)
    return sanitize(printable(name if module in ("builtins", "") else f"{module}.{name}"), 300)


def truncated(text: str, limit: int) -> str:
    """Return at most `limit` characters; a text that is cut ends with an ellipsis.

    >>> truncated("does not fit", 8)
    'does no…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _shortened(text: str, limit: int) -> str:
    room = limit - len(_cut_note(len(text)))
    if room < 30:
        return text[:limit]
    tail = room // 3
    return text[: room - tail] + _cut_note(len(text) - room) + text[-tail:]


def _cut_note(count: int) -> str:
    return f" … [{count:,} characters cut] … "


def _printed(obj: object, how: Callable[[object], str]) -> str:
    try:
        # A subclass of str may override anything; only a plain copy is safe.
        return str.__str__(how(obj))
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001
        # Also SystemExit: a `__str__` that exits must not stop the worker.
        return f"<{type_name(type(obj))} cannot be printed: {type_name(type(exc))}>"
