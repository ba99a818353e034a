"""Readers of rows: the columns of a statement become the fields of a dataclass or named tuple, in the same order.

`tests/stores/test_rows.py` compares the columns with the fields on both stores.
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import orjson

from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.operation import Row

T = TypeVar("T")
Convert = Callable[[Any], Any]

_BY_TYPE: dict[object, Convert] = {datetime: aware_time, UUID: as_uuid, bool: bool}


def row_reader(kind: Callable[..., T], **converters: Convert) -> Callable[[Row], T]:
    """Returns the function that reads a row as `kind`. Fields with a default may be absent at the end of a row.

    Times, ids, flags, enumerations and lists of texts are converted by the type of their field, and null stays None.
    Other fields stay as the driver returns them, unless `converters` has a function for them, which also receives null.
    """
    reads = [(name, converters.get(name) or _converter(hint)) for name, hint in get_type_hints(kind).items()]

    def read(row: Row) -> T:
        columns = zip(reads, row, strict=False)
        return kind(**{name: value if convert is None else convert(value) for (name, convert), value in columns})

    return read


def json_or(default: object) -> Convert:
    """Converts a column with JSON text; null becomes `default`."""
    return lambda text: default if text is None else orjson.loads(text)


def texts(value: str | list[str]) -> tuple[str, ...]:
    """Converts a column with a list of texts; SQLite stores it as JSON."""
    return tuple(orjson.loads(value) if isinstance(value, str) else value)


def _converter(hint: Any) -> Convert | None:
    if get_origin(hint) is UnionType and type(None) in get_args(hint):
        (inner, *others) = [option for option in get_args(hint) if option is not type(None)]
        convert = None if others else _converter(inner)
        return None if convert is None else lambda value: None if value is None else convert(value)
    if hint == tuple[str, ...]:
        return texts
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else _BY_TYPE.get(hint)
