"""Errors of calls with a missing connection or an unknown option: they name the remedy, which Python's own messages do not."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_OF_EVENTS = frozenset({"publish", "publish_many"})
_OF_JOBS = frozenset({"delay", "run_at"})


def requires_conn(function: Callable[P, R]) -> Callable[P, R]:
    """Raises a TypeError with the remedy if the call has no `conn=`."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if "conn" not in named:
            raise TypeError(
                f"{function.__qualname__}() needs conn=: pass the open connection or session of your transaction, or "
                "conn=None to commit in a separate transaction"
            )
        try:
            return function(*args, **named)
        except TypeError:
            _refuse_options(function, args, named)
            raise

    return call


def requires_own_conn(function: Callable[P, R]) -> Callable[P, R]:
    """`requires_conn` of a call that belongs to the transaction of its caller."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if "conn" not in named:
            raise TypeError(
                f"{function.__qualname__}() needs conn=: pass the open connection or session with which the handler writes its "
                "effect, in Django the alias (conn='default'); if the handler has no effect in the database, return without "
                "this call"
            )
        try:
            return function(*args, **named)
        except TypeError:
            _refuse_options(function, args, named)
            raise

    return call


def requires_options(**remedies: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raises a TypeError with the remedy if a call leaves out one of these options."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            for option, remedy in remedies.items():
                if option not in named:
                    is_constructor = function.__name__ == "__init__"
                    name = type(args[0]).__name__ if is_constructor else function.__qualname__
                    raise TypeError(f"{name}() needs {option}=: {remedy}")
            return function(*args, **named)

        return call

    return decorate


def checks_options(function: Callable[P, R]) -> Callable[P, R]:
    """Raises a TypeError with the nearest name for an option that the function does not have.

    Python's own refusal of the call is replaced, so a correct call does no more work.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except TypeError:
            _refuse_options(function, args, named)
            raise

    return call


def _refuse_options(function: Callable[..., object], args: Sequence[object], named: Iterable[str]) -> None:
    """Raises a TypeError if a call that Python refused has an unknown option; any other TypeError is of the function itself."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = [one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY]
    owner, dot, method = function.__qualname__.removesuffix(".__init__").rpartition(".")
    if owner == "Router" and args:  # the app itself inherits these methods
        owner = type(args[0]).__name__
    name = f"{owner}{dot}{method}()"
    if method in _OF_EVENTS:
        for option in _OF_JOBS.intersection(named):
            raise TypeError(
                f"{name} has no option {option}=: an event cannot be delayed, only a job; enqueue a job with "
                f"job.using({option}=...) and publish the event there"
            ) from None
    refuse_unknown(name, named, known)


def refuse_unknown(name: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises a TypeError with the nearest name for an option that is not `known`."""
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = (
                f"did you mean {near[0]}=?"
                if near
                else f"options: {', '.join(o for o in known if o not in ('self', 'cls'))}"
            )
            raise TypeError(f"{name} has no option {option}=; {hint}") from None


def requires_init_options(**remedies: str) -> Callable[[type[C]], type[C]]:
    """`requires_options` for the constructor of a class."""

    def decorate(cls: type[C]) -> type[C]:
        setattr(cls, "__init__", requires_options(**remedies)(cls.__init__))  # noqa: B010
        return cls

    return decorate


def checks_init_options(cls: type[C]) -> type[C]:
    """`checks_options` for the constructor of a class."""
    setattr(cls, "__init__", checks_options(cls.__init__))  # noqa: B010
    return cls
