"""Handlers: a named function, its parameters, and the rules that classify its failures."""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from holdfast.core.errors import ConfigurationError, Signal
from holdfast.core.events import payload
from holdfast.core.events.event import EventType, has_fields, is_typed_dict, version_of
from holdfast.core.failures.classify import Rules
from holdfast.core.flow import FlowSettings
from holdfast.core.retry import RetryPolicy
from holdfast.engine.batches.context import BatchContext
from holdfast.engine.batches.options import BatchOptions
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.parameters import Parameters
from holdfast.stores.messages.registry import Declaration, EventSubscription

if TYPE_CHECKING:
    from holdfast.engine.workflows.declaration import StepSpec


class Kind(StrEnum):
    """The kind of a handler."""

    CONSUMER = "consumer"
    JOB = "job"
    COMMAND = "command"
    PROJECTOR = "projector"
    WEBHOOK = "webhook"
    RELAY = "relay"
    STEP = "step"
    INGEST = "ingest"


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
    result: timedelta | None = None
    """How long the return value is kept; None if it is not stored."""
    keep: timedelta | None = None
    """How long its delivered rows are kept; None for the retention of the app. See `removes_delivered`."""
    parameters: Parameters | None = None
    reprocess_raw: Callable[[Context], Awaitable[None]] | None = None
    """Decodes a stored raw broker record again, and completes its delivery."""
    trusts_headers: bool = True
    """Whether calls, events, log lines and alerts inherit all headers of a message; otherwise only `propagated` ones."""
    by_key: bool = False
    """Whether `ctx.complete` records the message's key: the handler may also run without a delivery."""
    batch: BatchOptions | None = None
    """The function takes a list of payloads, and its deliveries are claimed in batches."""
    reset: Callable[[Any], object] | None = None
    swap: Callable[[Any], object] | None = None
    flow: FlowSettings | None = None
    step: "StepSpec | None" = None
    """The step of a workflow that this handler runs."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        # The flag first: for the handlers of 100,000 webhook endpoints the full check takes half a second.
        code = getattr(self.function, "__code__", None)
        flagged = code is not None and bool(code.co_flags & inspect.CO_COROUTINE)
        object.__setattr__(self, "is_async", flagged or inspect.iscoroutinefunction(self.function))

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            self.name,
            self.queue,
            self.priority,
            self.retry,
            None if self.flow is None else self.flow.text,
            None if self.keep is None else self.keep.total_seconds(),
        )

    @property
    def removes_delivered(self) -> bool:
        """Whether the settlement also removes the rows of a delivery: `keep="0"` of a job or command.

        The delivered row of an event's consumer stays until the next pruning, because without it a catch-up or a broker
        would deliver the event again; so do the rows of steps, which belong to their run, and runs that are kept.
        """
        is_addressed = self.kind is Kind.JOB or self.kind is Kind.COMMAND
        return self.keep == timedelta(0) and is_addressed and self.step is None and not self.keep_runs

    @property
    def subscriptions(self) -> list[EventSubscription]:
        return [EventSubscription(pattern, self.name, self.from_start) for pattern in self.patterns]

    def arguments(self, run: Invocation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The payload as arguments of this function. A payload that does not fit raises an error that is not retried."""
        if self.parameters is None:
            if self.event is None:
                return (payload.decode(run.payload),), {}
            return (self.event.read(run.payload, version_of(run.correlation)),), {}
        return (), self.parameters.read(run.payload)


def check_function(what: str, function: Callable[..., Any]) -> None:
    """Rejects a class, a job, a generator or an object with an async call: calling them would not run the code."""
    if isinstance(function, type) or not callable(function):
        problem = "decorate a function"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problem = "it contains yield, so a call would not run its code; make it an ordinary function"
    elif not inspect.isroutine(function) and hasattr(function, "enqueue"):
        problem = "it is a job already; enqueue it from the handler, or remove one of the two decorators"
    elif not inspect.iscoroutinefunction(function) and inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether it is async, not whether it can be called
    ):
        problem = "its __call__ is async and would not be awaited; wrap it in an async function"
    else:
        return
    raise ConfigurationError(f"{what} is {function!r}; {problem}")


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as `Context`, or as `Step` or `MappedStep` for a step of a workflow."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    annotation = hints_of(function).get(first.name)
    return (isinstance(annotation, type) and issubclass(annotation, Context)) or (
        isinstance(first.annotation, str) and first.annotation.rpartition(".")[2] in ("Context", "Step", "MappedStep")
    )


def step_context_name(function: Callable[..., Any]) -> str | None:
    """`Step` or `MappedStep` if the first parameter is annotated so, the context of a step of a workflow."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    annotation = None if first is None else hints_of(function).get(first.name)
    if not isinstance(annotation, type) or not issubclass(annotation, Context):
        return None
    return annotation.__name__ if annotation.__name__ in ("Step", "MappedStep") else None


def _shown(signature: inspect.Signature) -> str:
    """The signature as its author wrote it: without the modules of classes of Holdfast."""
    return re.sub(r"\bholdfast\.[a-z_.]+\.(?=[A-Z])", "", str(signature))


def check_event_function(name: str, function: Callable[..., Any], event: EventType | None) -> None:
    """Rejects a function that does not accept a payload, or that expects a different class."""
    signature = inspect.signature(function)
    first = 1 if takes_context(function) else 0
    try:
        signature.bind(*range(first + 1))
    except TypeError:
        raise ConfigurationError(
            f"consumer {name}: {function.__qualname__}{_shown(signature)} must take (payload) or (ctx: Context, payload)"
        ) from None
    taken = [*signature.parameters.values()][first]
    if taken.kind is taken.VAR_POSITIONAL or accepts(annotation := hints_of(function).get(taken.name, Any), event):
        return
    what = inspect.formatannotation(annotation)
    if event is None:
        raise ConfigurationError(
            f"consumer {name} takes {taken.name}: {what}, but subscribes by name and so gets plain JSON values, such as a "
            f"dict; subscribe by the class: @hf.consumer({what.rpartition('.')[2]})"
        )
    remedy = "give both the same class"
    if get_origin(annotation) is list and _accepts_list(annotation, event):
        remedy = "take one event, or give batch=100 to get lists"
    raise ConfigurationError(
        f"consumer {name} takes {taken.name}: {what}, but subscribes to {event.name}, whose class is {event.origin}; {remedy}"
    )


def check_batch_function(name: str, function: Callable[..., Any], event: EventType | None) -> bool:
    """Rejects a function that does not take a list of payloads; returns whether it takes a context first."""
    signature, hints = inspect.signature(function), hints_of(function)
    parameters = [*signature.parameters.values()]
    item = "dict" if event is None else event.cls.__name__
    shape = f"(events: list[{item}]) or (ctx: BatchContext, events: list[{item}])"
    if takes_context(function):
        raise ConfigurationError(
            f"consumer {name} handles batches, and a Context is about one delivery; take {shape}, with "
            "`from holdfast import BatchContext`"
        )
    first = bool(parameters) and (
        hints.get(parameters[0].name) is BatchContext
        or (isinstance(parameters[0].annotation, str) and parameters[0].annotation.rpartition(".")[2] == "BatchContext")
    )
    try:
        signature.bind(*range(2 if first else 1))
    except TypeError:
        raise ConfigurationError(
            f"consumer {name} handles batches; {function.__qualname__}{_shown(signature)} must take {shape}"
        ) from None
    taken = parameters[1 if first else 0]
    annotation = hints.get(taken.name, Any)
    if taken.kind is taken.VAR_POSITIONAL or _accepts_list(annotation, event):
        return first
    raise ConfigurationError(
        f"consumer {name} handles batches, but takes {taken.name}: {inspect.formatannotation(annotation)}; take {shape}"
    )


def _accepts_list(annotation: Any, event: EventType | None) -> bool:
    """Whether a list of payloads may be an instance of this annotation, as far as that can be determined."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return any(_accepts_list(one, event) for one in get_args(annotation))
    plain = get_origin(annotation) or annotation
    if plain is Any or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return True
    return issubclass(list, plain) and all(accepts(one, event) for one in get_args(annotation)[:1])


def accepts(annotation: Any, event: EventType | None) -> bool:
    """Whether a payload may be an instance of this annotation, as far as that can be determined.

    The payload is an instance of the event's class, or a JSON value if the event has no class.
    """
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return any(accepts(one, event) for one in get_args(annotation))
    plain = get_origin(annotation) or annotation
    if plain is Any or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return True
    if event is None:
        return is_typed_dict(plain) or not has_fields(plain)
    if is_typed_dict(event.cls):
        return plain is event.cls or issubclass(dict, plain)
    return issubclass(event.cls, plain)


def job_parameters(name: str, function: Callable[..., Any]) -> Parameters:
    """A job's parameters, without the context."""
    parameters = list(inspect.signature(function).parameters.values())
    if takes_context(function):
        parameters = parameters[1:]
    return Parameters(name, parameters, hints_of(function))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; none if one of them cannot be resolved at run time."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        # A forward reference that only a type checker can resolve: the value is passed unchanged.
        return {}


def result_hint(function: Callable[..., Any]) -> Any:
    """The annotation of the result of a function, without the signals that it may return instead."""
    hint = hints_of(function).get("return", Any)
    if get_origin(hint) not in (Union, UnionType):
        return hint
    results = tuple(one for one in get_args(hint) if not (isinstance(one, type) and issubclass(one, Signal)))
    return Union[results] if results else hint  # noqa: UP007
