"""The options that every durable handler takes, checked when the handler is declared."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypedDict

from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.errors import ConfigurationError
from holdfast.core.failures.classify import Classifier, Rules
from holdfast.core.flow import By, Limit, Rate, positive, retention
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE, check_priority
from holdfast.core.retry import RetryPolicy, check_policy
from holdfast.core.values.duration import Duration
from holdfast.core.values.names import check_name
from holdfast.engine.batches.options import BatchOptions, batch_options
from holdfast.engine.handlers.handler import Handler, Kind, check_function, step_context_name, takes_context

Classes = tuple[type[BaseException], ...]

_DEDUPE = timedelta(minutes=5)

# Options of other libraries, and what to use instead.
_ATTEMPTS = "give a policy, which counts runs: retry=RetryPolicy.exponential(attempts=5)"
_ELSEWHERE = {
    "retries": _ATTEMPTS,
    "max_retries": _ATTEMPTS,
    "attempts": _ATTEMPTS,
    "max_attempts": _ATTEMPTS,
    "retry_policy": "give retry=RetryPolicy.exponential(attempts=5)",
    "autoretry_for": "give retry_on=(SomeError,)",
    "timezone": "give tz='Europe/Berlin'",
    "time_zone": "give tz='Europe/Berlin'",
    "delay": "say it for each call: job.using(delay='5m').enqueue(...)",
    "retention": "give keep='1h', the time for which delivered rows are kept",
    "result_ttl": "give result='1h', the time for which results are kept",
    "store_results": "give result='1h', the time for which results are kept",
    "ignore_result": "leave it out: results are stored only with result='1h'",
    "run_at": "say it for each call: job.using(run_at=...).enqueue(...)",
    "unique": "say it for each call: job.using(unique='...').enqueue(...)",
    "key": "say it for each call: job.using(key='...').enqueue(...), or make it a command: @hf.command(key='...')",
    "conn": "say it for each call: job.using(conn=...).enqueue(...)",
    "concurrency": "give limit=Limit(10) for all workers, or a queue its slots in each: WorkerOptions(queues={'mail': 2})",
    "rate_limit": "give rate=Rate('90/10s')",
    "ordering_key": "give order_by='customer_id'",
    "batch_size": "give batch=100",
    "group": "give it to the source: source=kafka.topic('payments', group='shop')",
}


class HandlerOptions(TypedDict, total=False):
    """The options of every durable handler. `name` must never change: it identifies the handler in the store."""

    name: str
    queue: str
    priority: int
    retry: RetryPolicy
    timeout: Duration
    dead_on: Classes
    retry_on: Classes
    block_on: Classes
    park_on: Classes
    classify: Classifier
    keep_runs: bool
    result: Duration
    keep: Duration
    dedupe: Duration | bool
    limit: Limit
    rate: Rate
    order_by: By
    on_dead: str
    fair_by: By
    by: By
    debounce: Duration
    max_wait: Duration
    batch: int
    within: Duration


def check_options(decorator: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Rejects an unknown option of a decorator, and suggests the nearest known one."""
    for name in options:
        if name not in HandlerOptions.__annotations__:
            parameters = inspect.signature(decorator).parameters.values()
            own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
            refuse_option(f"@hf.{decorator.__name__}", name, (*own, *HandlerOptions.__annotations__))


def refuse_option(declaration: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raises `ConfigurationError` for an unknown option with the nearest known one."""
    known = sorted(known)
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
        hint = f"did you mean {near[0]}=?"
    elif name in _ELSEWHERE:
        hint = _ELSEWHERE[name]
    elif near := difflib.get_close_matches(name, known, n=1):
        hint = f"did you mean {near[0]}=?"
    else:
        hint = f"leave it out. It takes {', '.join(known)}"
    raise ConfigurationError(f"{declaration} has no option {name!r}; {hint}")


def refuse_bare(example: str, given: object) -> None:
    """Rejects a function as first argument: the decorator was written without parentheses.

    `example` is the decorator as it should be written, such as `@hf.job()`.
    """
    if callable(given) and not isinstance(given, type):
        name = getattr(given, "__name__", repr(given))
        decorator = example.partition("(")[0]
        raise ConfigurationError(f"{decorator} on {name} needs parentheses, or nothing is registered; write {example}")


def make_handler(
    function: Callable[..., Any], kind: Kind, options: HandlerOptions, default_retry: Callable[[str], RetryPolicy]
) -> Handler:
    """Builds a handler from a function and its options; raises `ConfigurationError` for options that cannot work."""
    name = _name(kind, function, options)
    if kind is not Kind.STEP and (step := step_context_name(function)):
        raise ConfigurationError(
            f"{kind} {name} takes a {step}, which only steps of a workflow get; annotate it as Context"
        )
    try:
        queue = check_name("queue", options.get("queue", DEFAULT_QUEUE))
        return Handler(
            name=name,
            kind=kind,
            function=function,
            queue=queue,
            priority=check_priority(options.get("priority", DEFAULT_PRIORITY)),
            retry=check_policy("retry", options["retry"]) if "retry" in options else default_retry(queue),
            rules=Rules(
                dead_on=options.get("dead_on", ()),
                retry_on=options.get("retry_on", ()),
                block_on=options.get("block_on", ()),
                park_on=options.get("park_on", ()),
                classify=options.get("classify"),
                owner=f"{kind} {name}",
            ),
            timeout=positive("timeout", options.get("timeout"), "leave it out for no limit"),
            keep_runs=check_flag("keep_runs", options.get("keep_runs", False)),
            dedupe=_window(options.get("dedupe", False)),
            result=_result(kind, options),
            keep=None if options.get("keep") is None else retention("keep", options["keep"]),
            takes_context=takes_context(function),
            flow=flow_settings(options),
            batch=_batch(kind, options),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{kind} {name}: {error}") from None


def _batch(kind: Kind, options: HandlerOptions) -> BatchOptions | None:
    batch = batch_options(options.get("batch"), options.get("within"))
    if batch is not None and kind is not Kind.CONSUMER:
        raise ConfigurationError(
            "batch= is for consumers, which take a list of events; publish an event and write @hf.consumer(Event, batch=100)"
        )
    return batch


def _result(kind: Kind, options: HandlerOptions) -> timedelta | None:
    keep = positive("result", options.get("result"), "leave it out to store no results")
    if keep is None:
        return None
    if kind is Kind.PROJECTOR:
        raise ConfigurationError("a projector keeps no results, because a rebuild runs it again; leave result= out")
    if options.get("batch") is not None:
        raise ConfigurationError("a batch handler returns one value for many events; leave result= or batch= out")
    if options.get("dedupe", False):
        raise ConfigurationError(
            "a run that dedupe= skips has no result; leave dedupe= out, and give each call a key, which makes it run once: "
            "job.using(key='...').enqueue(...)"
        )
    return keep


def check_flag(name: str, value: bool) -> bool:
    """Return `value` if it is True or False, else raise `ConfigurationError`."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}; give True or False")
    return value


def _name(kind: Kind, function: Callable[..., Any], options: HandlerOptions) -> str:
    given = options.get("name", getattr(function, "__name__", None))
    if given == "<lambda>":
        raise ConfigurationError("a lambda has no name to store; use a function, or pass name='send_mail'")
    if given is None:
        raise ConfigurationError(f"{kind} {function!r} has no name; give it one with name=")
    name = check_name("consumer", given)
    check_function(f"{kind} {name}", function)
    return name


def _window(dedupe: Duration | bool) -> timedelta | None:
    """How long a key is remembered: not at all, five minutes, or as long as given."""
    if isinstance(dedupe, bool):
        return _DEDUPE if dedupe else None
    return positive("dedupe", dedupe, "False to remember nothing")


def refuse_positional(example: str, given: object) -> None:
    """Rejects a positional argument of a decorator whose options are given by name."""
    refuse_bare(example, given)
    if given is not None:
        raise ConfigurationError(f"{example.partition('(')[0]} got {given!r}; its options are given by name: {example}")


def check_blocking(name: str, function: Callable[[Any], object]) -> None:
    """Rejects a function that cannot be called with a blocking connection."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigurationError(f"projector {name}: {function!r} must take one argument, the connection") from None
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"projector {name}: {function!r} must be a plain function, because its connection is blocking"
        )


def starts_at_beginning(name: str, start: str) -> bool:
    """Whether a consumer starts with the first event of the store, not with the next one."""
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"consumer {name}: start is {start!r}; use 'beginning' or 'now'")
    return start == "beginning"
