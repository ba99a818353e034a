"""Validation of names, so that they are safe in tables, labels, URLs and SQL identifiers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

from holdfast.core.errors import InvalidName

MAX_NAME = 100

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:/-]{0,99}")
_DOTTED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:/-]*(?:\.[A-Za-z0-9_:/-]+)*")

_WITH_DOTS = frozenset(
    {"source", "worker", "circuit", "resource", "endpoint", "tenant", "schedule", "memo", "signal", "encryption key"}
)

_PLAIN_WORDS = "1 to 100 characters of A-Z a-z 0-9 _ : / - (no dot), starting with a letter, digit or underscore"
_DOTTED_WORDS = "1 to 100 characters of A-Z a-z 0-9 _ . : / -, starting with a letter, digit or underscore"
_SCHEMA_WORDS = "1 to 63 of a-z 0-9 _, starting with a letter or underscore"
_TYPE_WORDS = "1 to 100 characters of A-Z a-z 0-9 _ : / -, in parts joined by single dots, such as order.placed"


def check_name(kind: str, value: str) -> str:
    """Return `value` if it is a valid name of a `kind`, else raise `InvalidName` with the invalid character.

    A dot is allowed only in the kinds of `_WITH_DOTS`, such as sources. Schemas and event types have separate rules.
    """
    if kind == "schema":
        return check_schema(value)
    if kind == "type":
        return check_type(value)
    pattern, allowed = (_DOTTED, _DOTTED_WORDS) if kind in _WITH_DOTS else (_PLAIN, _PLAIN_WORDS)
    if not isinstance(value, str) or not _fits(pattern, value):
        _refuse(kind, value, pattern, allowed, MAX_NAME)
    return value


def check_schema(value: str) -> str:
    """Return `value` if it is valid without quotes as a schema or table prefix, else raise `InvalidName`."""
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        _refuse("schema", value, _SCHEMA, _SCHEMA_WORDS, 63)
    return value


def check_type(value: str) -> str:
    """Return `value` if it is an event type: non-empty parts joined by dots, else raise `InvalidName`."""
    if not isinstance(value, str) or len(value) > MAX_NAME or not _fits(_TYPE, value):
        _refuse("type", value, _TYPE, _TYPE_WORDS, MAX_NAME)
    return value


@lru_cache(maxsize=4096)
def _fits(pattern: re.Pattern[str], value: str) -> bool:
    # Cached: a producer checks the same few names for every message.
    return pattern.fullmatch(value) is not None


def _refuse(kind: str, value: object, pattern: re.Pattern[str], allowed: str, limit: int) -> NoReturn:
    if not isinstance(value, str):
        problem = f"it is of type {type(value).__name__}, not text"
    elif not value:
        problem = "it is empty"
    elif len(value) > limit:
        problem = f"it has {len(value)} characters"
    elif pattern is _TYPE and re.search(r"^\.|\.\.|\.$", value):
        problem = "it has an empty part between dots"
    else:
        # The longest valid prefix ends right before the invalid character.
        good = pattern.match(value)
        at = good.end() if good else 0
        problem = f"character {value[at]!r} at position {at + 1} is not allowed" + (" there" if at == 0 else "")
    raise InvalidName(kind, value, problem, allowed)
