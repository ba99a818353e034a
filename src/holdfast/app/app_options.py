"""Checks the options of an app when it is created."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.core.encryption import check_cipher
from holdfast.core.errors import ConfigurationError
from holdfast.core.flow import Queue
from holdfast.core.retry import check_policy
from holdfast.core.values.names import check_name, check_schema
from holdfast.engine.worker.options import WorkerOptions
from holdfast.runtime.store_factory import check_dsn

P = ParamSpec("P")
R = TypeVar("R")


def check_app_options(
    *,
    dsn: object,
    schema: str,
    max_payload: object,
    alerts: object,
    probes: object,
    dedupe: object,
    cipher: object,
) -> None:
    """Rejects options of `Holdfast(...)` that would fail only once a message is published or run."""
    if dsn is not None:
        check_dsn(dsn)
    check_schema(schema)
    check_cipher(cipher)
    if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
        raise ConfigurationError(f"max_payload is {max_payload!r}; give a number of bytes")
    for name, probe in _mapping(
        "probes", probes, "a resource's name to a function that returns whether it is available"
    ).items():
        if not callable(probe):
            raise ConfigurationError(f"the probe of {name} is {probe!r}; give a function without parameters")
    if isinstance(alerts, str) or not isinstance(alerts, Sequence) or not all(map(callable, alerts)):
        raise ConfigurationError(f"alerts is {alerts!r}; give a list of functions that take one DeadLetterAlert")
    if dedupe is not None and not (hasattr(dedupe, "seen") and hasattr(dedupe, "record")):
        raise ConfigurationError(
            f"dedupe is {dedupe!r}; give the app a store for the keys, such as RedisDedupe(...), and each handler a "
            "duration: @hf.consumer(..., dedupe='5m')"
        )


def declared_queues(queues: object) -> tuple[Queue, ...]:
    """The queues of `Holdfast(queues=...)`: a list of `Queue`, or a dict from a queue's name to its retry policy."""
    if isinstance(queues, Sequence) and not isinstance(queues, str):
        for queue in queues:
            if not isinstance(queue, Queue):
                example = f"Queue({queue!r}, ...)" if isinstance(queue, str) else "Queue('mail', ...)"
                raise ConfigurationError(f"queues has the item {queue!r}; give {example}")
        names = [queue.name for queue in queues]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"queues declares {', '.join(twice)} twice; declare each queue once")
        return tuple(queues)
    found = []
    for name, policy in _mapping(
        "queues", queues, "a queue's name to its RetryPolicy, or a list of Queue(...)"
    ).items():
        retry: Any = policy
        check_policy(f"the policy of queue {check_name('queue', name)}", retry)
        found.append(Queue(name, retry=retry))
    return tuple(found)


def names_worker_options(function: Callable[P, R]) -> Callable[P, R]:
    """Raises a TypeError that names `options=` if a call has an option of `WorkerOptions` itself."""
    known = {field.name for field in fields(WorkerOptions)} - set(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        for option in named:
            if option in known:
                name = f"{function.__qualname__}()"
                raise TypeError(f"{name} has no option {option}=; give options=WorkerOptions({option}=...)")
        return function(*args, **named)

    return call


def check_instance(name: str, value: object, cls: type) -> None:
    """Raises `ConfigurationError` unless an optional `value` is an instance of `cls`."""
    if value is not None and not isinstance(value, cls):
        raise ConfigurationError(f"{name} is {value!r}; give {cls.__name__}(...)")


def _mapping(name: str, value: object, what: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} is {value!r}; give a dict from {what}")
    return value
