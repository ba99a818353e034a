"""The seam between operations and databases: how a `Query` becomes statements that a driver can run."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from holdfast.core.identity import uuid_of
from holdfast.stores.operation import Query, Rows
from holdfast.stores.statement import Statements


@dataclass(frozen=True, slots=True)
class Stream:
    """What goes into a statement piece by piece, in the form its driver takes."""

    pieces: Iterable[Any]


Parameters = Mapping[str, object] | Sequence[object] | Stream
Answer = tuple[Sequence[str], Rows]
"""What one statement gave back: the names of its columns, and its rows."""


class Style(StrEnum):
    """How a driver spells parameters."""

    PYFORMAT = "pyformat"  # %(name)s
    NUMERIC = "numeric"  # $1
    NAMED = "named"  # :name


class Dialect(Protocol):
    """One kind of database. Both kinds hold statements of the same names."""

    name: str
    statements: Statements

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        """Yields the query's SQL statements in order, receives their answers, returns the query's rows."""
        ...


def aware_time(value: object) -> datetime:
    """A stored time as an aware datetime in UTC; SQLite keeps whole milliseconds."""
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC)
    assert isinstance(value, datetime)
    return value.astimezone(UTC)


def optional_time(value: object) -> datetime | None:
    return None if value is None else aware_time(value)


def as_uuid(value: object) -> UUID:
    """A stored id; SQLite keeps it as text."""
    return value if isinstance(value, UUID) else uuid_of(int(str(value).replace("-", ""), 16))
