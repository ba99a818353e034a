"""Operations: what a store does, written once as generators that yield statements and receive rows.

An operation touches no connection. Whoever runs it, blocking or awaiting, on the store's own connection or on a
caller's, sends the rows of each yielded `Query` back in. So there is one SQL text and one parameter builder
for every driver and both colours.
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
"""What a driver gives back; an operation turns it into values at once."""
Rows = Sequence[Row]
Columns = Mapping[str, Sequence[object]]


_NONE: Mapping[str, Any] = MappingProxyType({})


class Query(NamedTuple):
    """One named statement with its values. `batches` are columns of equal length, `slots` chosen fragments.

    `rows` are streamed into a statement that gives nothing back, on a store's own connection alone.
    """

    name: str
    values: Mapping[str, object] = _NONE
    batches: Mapping[str, Columns] = _NONE
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    limit: int | None = None
    rows: Iterable[Row] | None = None


Steps = Generator[Query, Rows, T]


@dataclass(frozen=True, slots=True)
class Operation(Generic[T_co]):
    """A unit of work that commits as a whole; it can be started again from the beginning.

    `single` says that it is one statement, which a server makes atomic by itself; `reads` that it changes nothing;
    `hot` that it is asked so often that its plan is worth keeping, and that it walks by indexes alone.
    """

    start: Callable[[], Steps[T_co]]
    single: bool = False
    reads: bool = False
    hot: bool = False


@overload
def operation(function: Callable[P, Steps[T]], /) -> Callable[P, Operation[T]]: ...
@overload
def operation(
    *, single: bool = False, reads: bool = False, hot: bool = False
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Operation[T]]]: ...
def operation(
    function: Callable[P, Steps[T]] | None = None, /, *, single: bool = False, reads: bool = False, hot: bool = False
) -> Callable[P, Operation[T]] | Callable[[Callable[P, Steps[T]]], Callable[P, Operation[T]]]:
    """Turns a generator function into one that returns an `Operation`."""

    def decorate(function: Callable[P, Steps[T]]) -> Callable[P, Operation[T]]:
        @wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
            return Operation(lambda: function(*args, **kwargs), single or reads, reads, hot)

        return make

    return decorate if function is None else decorate(function)


def columns(names: Iterable[str], rows: Iterable[Row]) -> dict[str, list[object]]:
    """Rows turned into named columns, the shape a batch has."""
    names = list(names)
    turned = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, turned, strict=True))
