"""Handlers: a named function, what it takes, and the rules its failures go by."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, get_type_hints

from holdfast.core import payload
from holdfast.core.classify import Rules
from holdfast.core.errors import ConfigurationError, InvalidPayload
from holdfast.core.event import EventType, validate, version_of
from holdfast.core.retry import RetryPolicy
from holdfast.engine.context import Context
from holdfast.stores.claim import Claimed
from holdfast.stores.registry import Declaration, Subscription


class Kind(StrEnum):
    """What a handler is for."""

    CONSUMER = "consumer"
    JOB = "job"
    COMMAND = "command"
    PROJECTOR = "projector"
    WEBHOOK = "webhook"
    RELAY = "relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A consumer with its function. The name is stable; it is not the function's import path."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    patterns: tuple[str, ...] = ()
    event: EventType | None = None
    queue: str
    priority: int
    retry: RetryPolicy
    rules: Rules
    timeout: timedelta | None = None
    from_start: bool = True
    keep_runs: bool = False
    takes_context: bool = False
    dedupe: timedelta | None = None
    parameters: Mapping[str, Any] | None = None
    required: frozenset[str] = frozenset()
    reread: Callable[[Context, Claimed], Awaitable[None]] | None = None
    """Reads a broker's record anew that was kept raw, and completes its delivery."""
    by_key: bool = False
    """Whether `ctx.complete` records the message's own key: it may be run without a delivery as well."""
    reset: Callable[[Any], object] | None = None
    swap: Callable[[Any], object] | None = None
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.name, self.queue, self.priority, self.retry)

    @property
    def subscriptions(self) -> list[Subscription]:
        return [Subscription(pattern, self.name, self.from_start) for pattern in self.patterns]

    def arguments(self, claimed: Claimed) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The payload as this function takes it, checked: what does not fit raises and is dead."""
        if self.parameters is None:
            if self.event is None:
                return (payload.decode(claimed.payload),), {}
            return (self.event.read(claimed.payload, version_of(claimed.correlation)),), {}
        given = payload.decode(claimed.payload)
        if not isinstance(given, dict):
            raise InvalidPayload("$", f"job {self.name} takes an object of named arguments")
        if given.keys() != self.parameters.keys():
            if unknown := given.keys() - self.parameters.keys():
                raise InvalidPayload(f"$.{min(unknown)}", f"job {self.name} has no such parameter")
            if missing := self.required - given.keys():
                raise InvalidPayload(f"$.{min(missing)}", f"job {self.name} needs this parameter")
        return (), {
            name: value if self.parameters[name] is Any else validate(self.parameters[name], value)
            for name, value in given.items()
        }


def check_function(what: str, function: Callable[..., Any]) -> None:
    """Refuses what would be called without being run: a class, a job, a generator, an object with an async call."""
    if isinstance(function, type) or not callable(function):
        problem = "decorate a function"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problem = "it has a yield, so a call would run nothing of it; make it an ordinary function"
    elif not inspect.isroutine(function) and hasattr(function, "enqueue"):
        problem = "it is a job already; enqueue it from the handler, or take one of the two decorators away"
    elif not inspect.iscoroutinefunction(function) and inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether it is async, not whether it can be called
    ):
        problem = "its __call__ is async and would not be awaited; wrap it in an async function"
    else:
        return
    raise ConfigurationError(f"{what} is {function!r}; {problem}")


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is the context: known by its `Context` annotation."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    return _hints(function).get(first.name) is Context or (
        isinstance(first.annotation, str) and first.annotation.rpartition(".")[2] == "Context"
    )


def check_event_function(name: str, function: Callable[..., Any]) -> None:
    """Refuses a function that cannot be called with a payload, or with a context and a payload."""
    wanted = 2 if takes_context(function) else 1
    try:
        inspect.signature(function).bind(*range(wanted))
    except TypeError:
        raise ConfigurationError(
            f"consumer {name}: {function.__qualname__}{inspect.signature(function)} must take (payload) or "
            "(ctx: Context, payload)"
        ) from None


def job_parameters(name: str, function: Callable[..., Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """A job's parameters by name with their types, and those it cannot do without; the context is left out."""
    parameters = list(inspect.signature(function).parameters.values())
    if takes_context(function):
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"job {name}: parameter {parameter} cannot be stored by name; use ordinary or keyword-only parameters"
            )
    hints = _hints(function)
    required = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)
    return {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}, required


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        # A forward reference that only a type checker can see: the value is passed as it is.
        return {}
