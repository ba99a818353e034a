"""A hook into the queries of an operation."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from holdfast.stores.operation import Operation, Query, Steps

T = TypeVar("T")


def before_each_query(operation: Operation[T], call: Callable[[Query], object]) -> Operation[T]:
    """The same operation, with a call before each of its queries."""

    def steps() -> Steps[T]:
        queries = operation.start()
        try:
            query = next(queries)
            while True:
                call(query)
                query = queries.send((yield query))
        except StopIteration as end:
            return end.value

    return replace(operation, start=steps)
