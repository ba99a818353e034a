"""Jobs and commands: functions that are called later, durably."""

import string
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from holdfast.app.jobs.group import Chain, JobCall
from holdfast.app.jobs.job_handle import JobHandle
from holdfast.core.errors import ConfigurationError
from holdfast.core.key import check_key
from holdfast.core.message import Address, NewMessage
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.arguments import checks_options
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.publish import Published

if TYPE_CHECKING:
    from holdfast.app.declaration.router import Router

P = ParamSpec("P")
R = TypeVar("R")

Call = tuple[Any, ...] | dict[str, Any]
"""The arguments of one call: by position or by name."""

_ENQUEUE = "write job.enqueue(...), or job.sync.enqueue(...) in a plain function"
_OPTIONS = "give options before the arguments: job.using(delay='5m').enqueue(...)"
# Methods of the tasks of other libraries, and what to use instead.
_ELSEWHERE = {
    "delay": _ENQUEUE,
    "send": _ENQUEUE,
    "kiq": _ENQUEUE,
    "defer": _ENQUEUE,
    "defer_async": _ENQUEUE,
    "apply_async": _OPTIONS,
    "send_with_options": _OPTIONS,
    "configure": _OPTIONS,
    "options": _OPTIONS,
    "s": "write job.call(...), for hf.group and chains",
    "signature": "write job.call(...), for hf.group and chains",
}

_UNCHANGED = object()
_CALLS = "give a tuple or a dict of arguments for each call, such as [('ada', 1), {'to': 'bob', 'n': 2}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How one call of a job is enqueued."""

    conn: Any = AMBIENT
    delay: timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    unique: str | None = None
    priority: int | None = None
    queue: str | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None

    def address(self, handler: Handler) -> Address:
        """The address of the call; raises `ConfigurationError` for options that cannot work."""
        debounced = handler.flow is not None and handler.flow.debounce is not None
        if debounced and (self.delay is not None or self.run_at is not None):
            raise ConfigurationError(
                f"{handler.kind} {handler.name} has debounce=, which decides when it runs; leave delay= and run_at= out"
            )
        return Address(
            consumer=handler.name,
            queue=handler.queue if self.queue is None else self.queue,
            priority=handler.priority if self.priority is None else self.priority,
            max_attempts=self.max_attempts,
            delay=self.delay,
            run_at=self.run_at,
            retry=self.retry,
            unique=self.unique,
        )


class Job(Generic[P, R]):
    """A function that can be enqueued with its own parameters, which type checkers check. A direct call stores nothing.

    A command is a job whose key is built from its arguments, so that the same command runs once.
    """

    def __init__(
        self,
        router: "Router",
        handler: Handler,
        function: Callable[P, R],
        key: str | None,
        placement: Placement | None = None,
    ) -> None:
        self._router, self.handler, self.function, self._key = router, handler, function, key
        self._placement = placement or Placement()
        self.sync: SyncJob[P, R] = SyncJob(self)
        self.__name__ = handler.name
        self.__doc__ = function.__doc__

    @property
    def name(self) -> str:
        return self.handler.name

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> object:
            remedy = _ELSEWHERE.get(name)
            # No attribute of the job is read here: `copy` calls this before any is set.
            raise AttributeError(f"a job has no attribute {name!r}" + (f"; {remedy}" if remedy else ""))

    @property
    def _runtime(self) -> Runtime:
        return self._router._runtime

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @checks_options
    def using(
        self,
        *,
        conn: Any = _UNCHANGED,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        unique: str | None = None,
        priority: int | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
    ) -> "Job[P, R]":
        """The same job with options for `enqueue`: a transaction, a delay, a key, a priority.

        `conn` is any connection that `publish` accepts; `conn=None` commits in a separate transaction. Options of an
        earlier `using` stay, unless they are given again.
        """
        if key is not None and self._key is not None:
            raise ConfigurationError(f"command {self.name} builds its key from its arguments; leave key= out")
        given: dict[str, Any] = {
            "delay": None if delay is None else to_timedelta(delay, name="delay"),
            "run_at": run_at,
            "key": key,
            "unique": unique,
            "priority": priority,
            "queue": queue,
            "max_attempts": max_attempts,
            "retry": retry,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        if conn is not _UNCHANGED:
            changed["conn"] = conn
        placement = replace(self._placement, **changed)
        placement.address(self.handler)
        if key is not None:
            check_key(key)
        return Job(self._router, self.handler, self.function, self._key, placement)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Stores the call; a worker runs it once it is committed.

        Without a connection it commits at once in a separate transaction, even if yours rolls back, like `publish` with
        `conn=None`. To make it part of your transaction, write `job.using(conn=session).enqueue(...)`. A repeated key stores
        nothing and returns the first message. With `result="1h"` on the job, `await handle.result()` waits for its result.
        """
        runtime, message = self._message(args, kwargs)
        (published,) = await runtime.publish([message], self._placement.conn, f"{self.name}.enqueue")
        return JobHandle.of(published, self)

    def _enqueue_sync(self, *args: Any, **kwargs: Any) -> JobHandle:
        runtime, message = self._message(args, kwargs)
        (published,) = runtime.publish_sync([message], self._placement.conn, f"{self.name}.enqueue")
        return JobHandle.of(published, self)

    async def enqueue_many(self, calls: Sequence[Call]) -> list[JobHandle]:
        """Stores many calls in one transaction, in a few statements; each is a tuple or a dict of arguments.

        `await send.using(conn=session).enqueue_many([("ada", 1), {"to": "bob", "n": 2}])`. The handles have the order of
        the calls. A call that does not fit the function raises an error with its index, and nothing is stored.
        """
        runtime, messages = self._messages(calls)
        if not messages:
            return []
        stored = await runtime.publish(messages, self._placement.conn, f"{self.name}.enqueue_many")
        return [JobHandle.of(published, self) for published in stored]

    def _enqueue_many_sync(self, calls: Sequence[Call]) -> list[JobHandle]:
        runtime, messages = self._messages(calls)
        if not messages:
            return []
        stored = runtime.publish_sync(messages, self._placement.conn, f"{self.name}.enqueue_many")
        return [JobHandle.of(published, self) for published in stored]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall:
        """A call for a group or a chain. It stores nothing: `hf.group([send.call("ada"), send.call("bob")])`."""
        assert self.handler.parameters is not None
        self.handler.parameters.bind(args, kwargs)
        return JobCall(self, args, kwargs)

    def then(self, job: "Job[Any, Any]", /, *args: Any, **kwargs: Any) -> Chain[P]:
        """A chain: `await charge.then(receipt).enqueue(order)`. `job` gets the result of this job before its `args`."""
        return Chain(self, ()).then(job, *args, **kwargs)

    def handle(self, id: UUID | str) -> JobHandle:
        """The handle of a job that was enqueued elsewhere; `id` is the id of its handle, also as text."""
        try:
            known = id if isinstance(id, UUID) else UUID(id)
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(f"id is {id!r}; pass the id of the handle that enqueue returned") from None
        return JobHandle.of(Published(known, False), self)

    def _messages(self, calls: Sequence[Call]) -> tuple[Runtime, Sequence[NewMessage]]:
        where = self._placement
        for option, value in (("key", where.key), ("unique", where.unique)):
            if value is not None:
                raise ConfigurationError(
                    f"{self.name}.enqueue_many would store one call under {option} {value!r} and drop the others; "
                    "enqueue each call with its own, or make it a command, whose key is built from its arguments"
                )
        given: object = calls
        if not isinstance(given, Sequence) or isinstance(given, str | bytes | tuple):
            raise ConfigurationError(
                f"{self.name}.enqueue_many takes a list of calls, not {type(calls).__name__}; {_CALLS}"
            )
        runtime = self._runtime
        if self._key is None and calls and (alike := self._alike_messages(runtime, calls)) is not None:
            return runtime, alike
        return runtime, [self._nth_message(index, call) for index, call in enumerate(calls)]

    def _alike_messages(self, runtime: Runtime, calls: Sequence[Call]) -> AlikeMessages | None:
        """The messages of all calls, which differ only in their arguments; None if one of them is invalid."""
        parameters, first = self.handler.parameters, self._nth_message(0, calls[0])
        assert parameters is not None
        if not all(isinstance(call, tuple | dict) for call in calls):
            return None
        bind = parameters.bind
        try:
            payloads = runtime.producer.encode_all(
                [bind(call, {}) if isinstance(call, tuple) else bind((), call) for call in calls]
            )
            if runtime.producer.validate and parameters.typed:
                for text in payloads:
                    parameters.read(text)
        except Exception:  # noqa: BLE001
            # One by one, the invalid call raises its error with its index.
            return None
        return AlikeMessages(first, runtime.producer.new_ids(len(payloads)), payloads)

    def _nth_message(self, index: int, call: Call) -> NewMessage:
        try:
            if isinstance(call, tuple):
                return self._message(call, {})[1]
            if isinstance(call, dict):
                return self._message((), call)[1]
        except Exception as error:
            error.add_note(
                f"This is about call {index} of {self.name}.enqueue_many, counted from 0. Nothing was stored."
            )
            raise
        raise ConfigurationError(
            f"call {index} of {self.name}.enqueue_many is of type {type(call).__name__}; {_CALLS}; nothing was stored"
        )

    def _message(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], headers: dict[str, object] | None = None
    ) -> tuple[Runtime, NewMessage]:
        runtime = self._runtime
        where, handler = self._placement, self.handler
        assert handler.parameters is not None
        arguments = handler.parameters.bind(args, kwargs)
        key = self._command_key(arguments) if self._key is not None else where.key
        type, address = f"job.{handler.name}", where.address(handler)
        message = runtime.producer.build(type, arguments, key=key, headers=headers, key_scope=type, addressed=[address])
        if runtime.producer.validate and handler.parameters.typed:
            handler.parameters.read(message.payload)
        return runtime, message

    def _command_key(self, arguments: dict[str, Any]) -> str:
        assert self._key is not None
        return self._key.format(**arguments)


class ContextJob(Job[P, R]):
    """A job whose function takes a context first, for type checkers: `enqueue` leaves the context out."""

    if TYPE_CHECKING:

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]


class MakesJob(Protocol):
    """The decorator that `@hf.job(...)` returns; it keeps the function's parameters."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class SyncJob(Generic[P, R]):
    """The blocking methods of a job."""

    def __init__(self, job: Job[P, R]) -> None:
        self._job = job

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """`Job.enqueue`, blocking: without a connection it commits in a separate transaction."""
        return self._job._enqueue_sync(*args, **kwargs)

    def enqueue_many(self, calls: Sequence[Call]) -> list[JobHandle]:
        """`Job.enqueue_many`, blocking."""
        return self._job._enqueue_many_sync(calls)


def check_key_template(name: str, template: str, parameters: AbstractSet[str]) -> None:
    """Rejects a command key without a parameter or with an unknown one: all calls would have the same key, or none."""
    named = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    roots = {field.partition(".")[0].partition("[")[0] for field in named}
    if not roots or not roots <= parameters:
        unknown = ", ".join(sorted(roots - parameters)) or "nothing"
        raise ConfigurationError(
            f"command {name}: key {template!r} names {unknown}; it must name parameters of the function "
            f"({', '.join(sorted(parameters)) or 'it has none'})"
        )
