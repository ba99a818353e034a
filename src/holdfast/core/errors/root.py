"""The root of the error tree, and how errors keep and show the values they are about."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from holdfast.core.values.text import safe_repr, safe_str

_E = TypeVar("_E", bound="HoldfastError")


def _rebuild(cls: type[_E], args: tuple[object, ...], state: Mapping[str, object]) -> _E:
    exc = cls.__new__(cls, *args)
    exc.__dict__.update(state)
    return exc


def picklable(value: object) -> object:
    """Return the value if it can be pickled safely, otherwise its shortened `repr`."""
    return value if isinstance(value, str | int | float | timedelta | UUID) else safe_repr(value)[:200]


def quoted(value: object, limit: int = 80) -> str:
    """Return the value as quoted text with at most `limit` characters, printable on any terminal."""
    text = safe_str(value)
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


class HoldfastError(Exception):
    """The root: `except HoldfastError` catches every error that Holdfast raises on purpose."""

    # The default implementation calls the constructor with `args`. That fails for a subclass with other
    # parameters, and an error must survive a process boundary in any case.
    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))
