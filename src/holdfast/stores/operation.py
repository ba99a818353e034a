"""Operations: the work of a store, written once as generators that yield queries and receive rows.

An operation has no connection. `run_on` runs it on the connection of the store or of the caller, blocking or async,
and sends the rows of each `Query` back. So one SQL text and one parameter builder serve every driver.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

Row = Sequence[Any]
"""A row as the driver returns it; an operation converts it to a typed value."""
Rows = Sequence[Row]
Columns = Mapping[str, Sequence[object]]


_NONE: Mapping[str, Any] = MappingProxyType({})


class ErrorCondition(NamedTuple):
    """A database error: its SQLSTATE or SQLite error name. SQLite's RAISE has no code, so its `text` identifies it."""

    code: str
    text: str = ""


class Query(NamedTuple):
    """One named statement with its values. `batches` are columns of equal length; `slots` name SQL fragments.

    `rows` are streamed into a statement that returns nothing. This works only on the store's own connection. `raises`
    creates the error for a condition that the statement is expected to raise. PostgreSQL takes the named `locks` in a
    statement before this one, in the same transaction and the same message, so that this statement sees what the last
    owner of the locks committed; also only on the store's own connection.
    """

    name: str
    values: Mapping[str, object] = _NONE
    batches: Mapping[str, Columns] = _NONE
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    limit: int | None = None
    rows: Iterable[Row] | None = None
    raises: tuple[ErrorCondition, Callable[[], Exception]] | None = None
    locks: tuple[str, ...] = ()


Steps = Generator[Query, Rows, T]


# Not frozen: a publish creates two or three of them, and the constructor of a frozen class takes three times as long.
@dataclass(slots=True)
class Operation(Generic[T_co]):
    """A unit of work that commits as a whole and can be restarted from the beginning.

    `single`: one statement, which needs no explicit transaction. `reads`: it changes nothing. `hot`: it runs so often
    that PostgreSQL keeps its query plan; it reads through indexes only. `publishes`: the same, on connections that claims
    and settlements do not wait for.
    """

    start: Callable[[], Steps[T_co]]
    single: bool = False
    reads: bool = False
    hot: bool = False
    publishes: bool = False


@overload
def operation(function: Callable[P, Steps[T]], /) -> Callable[P, Operation[T]]: ...
@overload
def operation(
    *, single: bool = False, reads: bool = False, hot: bool = False
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Operation[T]]]: ...
def operation(
    function: Callable[P, Steps[T]] | None = None, /, *, single: bool = False, reads: bool = False, hot: bool = False
) -> Callable[P, Operation[T]] | Callable[[Callable[P, Steps[T]]], Callable[P, Operation[T]]]:
    """Makes a generator function return an `Operation`."""

    def decorate(function: Callable[P, Steps[T]]) -> Callable[P, Operation[T]]:
        @wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
            return Operation(lambda: function(*args, **kwargs), single or reads, reads, hot)

        return make

    return decorate if function is None else decorate(function)


def columns(names: Iterable[str], rows: Iterable[Row]) -> dict[str, list[object]]:
    """Converts rows to named columns, the form of a batch."""
    names = list(names)
    turned = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, turned, strict=True))
