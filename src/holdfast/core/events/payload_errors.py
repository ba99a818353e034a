"""Finds the value that prevents a payload from being stored as JSON, and its path."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from decimal import Decimal
from enum import Enum
from functools import lru_cache

import orjson

from holdfast.core.values.text import safe_str, storable, type_name

MAX_DEPTH = 254
"""The maximum nesting depth, which is the limit of orjson."""

OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_Judge = Callable[[object], tuple[object, str]]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")


def plain(value: object) -> object:
    """Converts one level of a value that orjson does not support natively; raises TypeError for other values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _field_names(type(value))}
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        # By alias and for a round trip, because the consumer validates this output.
        dumped: object = dump(value, mode="json", by_alias=True, round_trip=True)
        return dumped
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise TypeError(f"Decimal {value} is not a finite number")
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type_name(type(value))} is not supported{_HINTS.get(type(value), _CONVERT)}")


_CONVERT = "; pass its id or its fields, as text, numbers, lists, dicts, a dataclass or a Pydantic model"
_HINTS: Mapping[type, str] = {
    bytes: "; encode it as base64 text",
    set: "; make it a sorted list",
    frozenset: "; make it a sorted list",
}


@lru_cache(maxsize=1024)
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def holds_nan(payload: object) -> bool:
    """Whether a payload contains NaN or an infinity, which orjson and pydantic write as null.

    Fast, because it runs for each payload with a null: it checks values only and builds no path.
    """
    waiting = [payload]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None:
            continue
        if isinstance(value, float):
            if not math.isfinite(value):
                return True
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        else:
            waiting.append(_inside(value))
    return False


def find_flaw(payload: object) -> tuple[str, str] | None:
    """Return the path and problem of the first invalid value; iterative, so the depth is not limited by the stack."""
    return _walk(payload, _judge) or _walk(payload, _judge_number)


def _walk(payload: object, judge: _Judge) -> tuple[str, str] | None:
    trail: list[object] = []
    levels: list[Iterator[tuple[object, object]]] = [iter([(None, payload)])]
    while levels:
        for key, value in levels[-1]:
            trail.append(key)
            try:
                shape, problem = judge(value)
            except Exception as exc:  # noqa: BLE001 - a model's own code runs here, and may raise anything
                return _path(trail), f"cannot be written as JSON: {safe_str(exc)[:200]}"
            if problem:
                return _path(trail), problem
            if isinstance(shape, dict | list | tuple):
                if len(levels) > MAX_DEPTH:
                    return _path(trail), f"nested deeper than {MAX_DEPTH} levels, or contains itself"
                levels.append(iter(shape.items() if isinstance(shape, dict) else enumerate(shape)))
                break
            trail.pop()
        else:
            levels.pop()
            if trail:
                trail.pop()
    return None


def _inside(value: object) -> object:
    """Return the children of a value for the search for NaN, None for a leaf.

    A model is converted to Python values: its JSON form may already contain null instead of NaN.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Set | deque):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type):
        return None
    if callable(dump := getattr(value, "model_dump", None)):
        try:
            dumped: object = dump(by_alias=True, round_trip=True)
        except Exception:  # noqa: BLE001 - its JSON form was written, and that is what counts
            return None
        return dumped
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _judge_number(value: object) -> tuple[object, str]:
    """Return the children of the value, and a problem if it is NaN or an infinity."""
    for _ in range(MAX_DEPTH):
        if value is None or isinstance(value, float | dict | list | tuple):
            break
        value = _inside(value)
    if isinstance(value, float) and not math.isfinite(value):
        return value, f"{value} is not JSON; send null or text"
    return value, ""


def _judge(value: object) -> tuple[object, str]:
    """Return the value as orjson sees it, and its problem except NaN, if any."""
    for _ in range(MAX_DEPTH):
        if isinstance(value, Enum):
            value = value.value
        elif value is None or isinstance(value, str | int | dict | list) or type(value) in (float, tuple):
            break
        elif _native(value):
            return None, ""
        else:
            value = plain(value)
    if isinstance(value, str):
        return value, _text_problem(value)
    if isinstance(value, int):
        return value, "" if -(2**63) <= value < 2**64 else "an integer beyond 64 bits; send it as text"
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                kind = type_name(type(key))
                return (
                    value,
                    f"a key is {safe_str(key)[:50]!r} of type {kind}; make keys plain text with str()",
                )
            if problem := _text_problem(key):
                return value, f"a key {problem}"
    return value, ""


def _native(value: object) -> bool:
    """Whether orjson supports this leaf natively (dates, times, UUIDs)."""
    try:
        orjson.dumps(value, option=OPTIONS)
    except TypeError:
        return False
    return True


def _text_problem(text: str) -> str:
    if storable(text):
        return ""
    what = "a NUL character" if "\x00" in text else "a lone surrogate"
    return f"contains {what}, which databases cannot store as text"


def _path(trail: list[object]) -> str:
    steps = [step(key) for key in trail[1:]]
    if len(steps) > 20:
        steps[10:-5] = [f"…({len(steps) - 15} more)…"]
    return "$" + "".join(steps)


def step(key: object) -> str:
    """Return one step of a path: `.name`, `[3]`, or `['odd name']`, cut after 50 characters."""
    if isinstance(key, int):
        return f"[{key}]"
    text = safe_str(key)
    return f".{text}" if _IDENTIFIER.fullmatch(text) else f"[{text[:50]!r}]"
