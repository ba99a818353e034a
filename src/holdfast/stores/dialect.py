"""Dialects: the conversion of a `Query` to statements for a driver."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from struct import iter_unpack
from typing import Any, Protocol
from uuid import UUID

from holdfast.core.identity import uuid_of, uuids_of
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.operation import Query, Rows
from holdfast.stores.statement import Statements


@dataclass(frozen=True, slots=True)
class Stream:
    """Input that is streamed into a statement, in the form of the driver."""

    pieces: Iterable[Any]


@dataclass(frozen=True, slots=True)
class LockedCall:
    """A statement with `$1` parameters that runs after advisory locks are taken. `arguments` are SQL literals."""

    name: str
    types: tuple[str, ...]
    arguments: tuple[str, ...]
    locks: tuple[int, ...]


Parameters = Mapping[str, object] | Sequence[object] | Stream | LockedCall
Answer = tuple[Sequence[str], Rows]
"""The result of one statement: column names and rows."""


class Style(StrEnum):
    """The parameter style of a driver."""

    PYFORMAT = "pyformat"  # %(name)s
    NUMERIC = "numeric"  # $1
    NAMED = "named"  # :name


class Dialect(Protocol):
    """One kind of database. Both dialects have statements with the same names."""

    name: str
    statements: Statements
    streams: bool
    """Whether streaming thousands of rows is faster than one statement per thousand rows."""
    encryption: Encryption | None
    """Encrypts and decrypts the values of every operation; None in an app without a cipher."""

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        """Yields the SQL statements of the query in order, receives their results, returns the rows of the query."""
        ...


def aware_time(value: object) -> datetime:
    """A stored time as an aware datetime in UTC; SQLite stores milliseconds."""
    if isinstance(value, int):
        return _from_milliseconds(value)
    assert isinstance(value, datetime)
    return value.astimezone(UTC)


@lru_cache(maxsize=4096)
def _from_milliseconds(value: int) -> datetime:
    # Cached: the messages of a batch have the same time.
    return datetime.fromtimestamp(value / 1000, UTC)


def optional_time(value: object) -> datetime | None:
    return None if value is None else aware_time(value)


def as_uuid(value: object) -> UUID:
    """A stored id; SQLite stores it as text."""
    return value if isinstance(value, UUID) else uuid_of(int(str(value).replace("-", ""), 16))


def as_uuids(values: Sequence[Any]) -> list[UUID]:
    """`as_uuid` of each value, which all have the same type; takes a quarter of the time for texts."""
    if not values or isinstance(values[0], UUID):
        return list(values)
    digits = bytes.fromhex("".join(values).replace("-", ""))
    return uuids_of(high << 64 | low for high, low in iter_unpack(">QQ", digits))
