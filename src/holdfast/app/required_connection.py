"""The error of a publish without `conn=`: it names both choices, which Python's own message does not."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def requires_conn(function: Callable[P, R]) -> Callable[P, R]:
    """Raises a TypeError with the remedy if the call has no `conn=`."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if "conn" not in named:
            raise TypeError(
                f"{function.__qualname__}() needs conn=: pass the open connection or session of your transaction, or "
                "conn=None to commit in a separate one"
            )
        return function(*args, **named)

    return call
