"""Lists as PostgreSQL writes arrays: one text for a whole column.

For a column of 1,000 payloads of 100 bytes the driver takes 9 µs an item, because it looks at each one with care; this
takes 0.4. A message is thirteen items.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID


def array(values: Iterable[object]) -> str:
    """An array literal for any element type the statements use; the cast in the statement says which.

    >>> array([1, None, 'say "no"'])
    '{1,NULL,"say \\\\"no\\\\""}'
    """
    try:
        return "{" + ",".join([_WRITE[type(value)](value) for value in values]) + "}"
    except KeyError as error:
        raise TypeError(f"PostgreSQL arrays here hold no {error.args[0].__name__}") from None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _interval(value: timedelta) -> str:
    return f'"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"'


_WRITE: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "NULL",
    bool: lambda value: "t" if value else "f",
    int: str,
    str: _quoted,
    UUID: lambda value: f"{value.int:032x}",
    datetime: lambda value: f'"{value.isoformat()}"',
    timedelta: _interval,
}
