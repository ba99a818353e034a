"""Declares handlers, on the app or on a router that an app includes."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, Unpack

from holdfast.app.event_patterns import event_patterns
from holdfast.app.flow_options import check_key_field, event_fields
from holdfast.app.handler_options import HandlerOptions, check_options, make_handler, refuse_bare
from holdfast.app.job import Job, MakesJob, check_key_template
from holdfast.app.workflow import Workflow, new_declaration
from holdfast.brokers.protocol import Source, Target
from holdfast.brokers.relay import Relay
from holdfast.core.duration import Duration
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.event import EventType, EventTypes
from holdfast.core.message import DEFAULT_QUEUE, Message
from holdfast.core.retry import RetryPolicy
from holdfast.core.schedule import Missed, check_schedule
from holdfast.engine.context import Context
from holdfast.engine.cron import Schedule
from holdfast.engine.handler import (
    Handler,
    Kind,
    check_batch_function,
    check_event_function,
    check_function,
    job_parameters,
    takes_context,
)
from holdfast.engine.workflows.commands import command_handler
from holdfast.engine.workflows.declaration import WorkflowDeclaration
from holdfast.runtime.broker_source import BrokerSource, broker_source
from holdfast.runtime.broker_streams import reprocess_raw
from holdfast.runtime.reactions import Reaction
from holdfast.runtime.relays import declare, handler_of
from holdfast.runtime.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Router:
    """Collects handlers. A declaration opens no connection, so that importing a module is safe."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.cron_schedules: dict[str, Schedule] = {}
        self.reactions: list[Reaction] = []
        self.relays: dict[str, Relay] = {}
        self.broker_sources: dict[str, BrokerSource] = {}
        self.workflows: dict[str, WorkflowDeclaration] = {}
        self.event_types = EventTypes()
        self._parent: Router | None = None
        self._defaulted: set[str] = set()

    def include(self, router: "Router") -> None:
        """Adds the present and later declarations of a router; its jobs can be enqueued once it belongs to an app.

        A handler without a retry policy gets the policy of its queue here.
        """
        if not isinstance(router, Router):
            raise ConfigurationError(f"include() got {router!r}; give a Router")
        self.event_types.include(router.event_types)
        for workflow in router.workflows.values():
            self._take_workflow(workflow)
        for name in list(router.handlers):
            self._take(router, name)
        for reaction in router.reactions:
            self._take_reaction(reaction)
        router._parent = self

    def _take(self, router: "Router", name: str) -> None:
        handler = router.handlers[name]
        if name in router._defaulted:
            self._defaulted.add(name)
            handler = replace(handler, retry=self._default_retry(handler.queue))
        if name not in router.broker_sources:
            self._declare_event(handler.event)
        self._add(handler)
        if name in router.cron_schedules:
            self.cron_schedules[name] = router.cron_schedules[name]
        if name in router.relays:
            self.relays[name] = router.relays[name]
        if name in router.broker_sources:
            self.broker_sources[name] = router.broker_sources[name]
        self._declared(name)

    def _take_reaction(self, reaction: Reaction) -> None:
        self._declare_event(reaction.event)
        if reaction not in self.reactions:
            self.reactions.append(reaction)
        if self._parent is not None:
            self._parent._take_reaction(reaction)

    def _take_workflow(self, workflow: WorkflowDeclaration) -> None:
        if self.workflows.setdefault(workflow.name, workflow) is not workflow:
            raise ConfigurationError(
                f"two workflows are named {workflow.name!r}; give one of them another name, or use the same object"
            )
        if self._parent is not None:
            self._parent._take_workflow(workflow)

    def _declared(self, name: str) -> None:
        """Passes a new handler to the router or app that includes this one."""
        if self._parent is not None:
            self._parent._take(self, name)

    def consumer(
        self,
        *events: str | type,
        start: str = "beginning",
        source: Source | None = None,
        direct: bool = False,
        concurrency: int = 10,
        origin: str | None = None,
        dead_letters: Target | None = None,
        trust_identity: bool = False,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Runs the function for every event of these types, durably. It stays an ordinary function.

        `events` are event classes, names or patterns (`order.*`, `*`). A new consumer starts with the first event in
        the store, or with `start="now"`. The name must never change; it defaults to the function's.

        With a `source` it gets the records of a broker instead, such as `redis.stream("payments", group="shop")`: each
        is stored, then acknowledged, then run. `direct=True` runs the handler on the record, `concurrency` at a time, and
        stores only failures. `origin` names the broker if two have streams of the same name. A copy of each dead letter goes
        to `dead_letters`, if given. Only the request, trace and correlation ids of a record are passed on to the handler's
        calls and events; all headers, such as a user's or a tenant's id, only with `trust_identity=True`, because anyone who
        can write to the stream can set them.

        With `batch=100, within="2s"` the function takes a list of up to 100 events: it runs when 100 are due, or when the
        oldest has been due for two seconds (default one second). Raise `BatchError` if some of them failed.
        """
        check_options(Router.consumer, options)
        if source is None and (
            direct or origin is not None or dead_letters is not None or trust_identity or concurrency != 10
        ):
            raise ConfigurationError(
                "@hf.consumer: direct=, concurrency=, origin=, dead_letters= and trust_identity= are options of a "
                "broker source; give source= as well"
            )
        for option, why in (("batch", "runs each record alone"), ("result", "stores no successes")):
            if direct and options.get(option) is not None:
                raise ConfigurationError(f"@hf.consumer: direct=True {why}; leave {option}= or direct= out")
        patterns, known = event_patterns("@hf.consumer", events)

        def decorate(function: F) -> F:
            handler = self._handler(function, Kind.CONSUMER, options)
            if handler.batch is None:
                check_event_function(handler.name, function, known)
            else:
                handler = replace(handler, takes_context=check_batch_function(handler.name, function, known))
            check_key_field(
                f"consumer {handler.name}", handler.flow, event_fields(None if known is None else known.cls)
            )
            from_start = _from_start(handler.name, start)
            if source is None:
                self._declare_event(known)
                self._add(replace(handler, patterns=patterns, event=known, from_start=from_start))
                self._declared(handler.name)
                return function
            if not from_start:
                raise ConfigurationError(
                    f"consumer {handler.name}: start= is an option of its source; give start='now' to the source"
                )
            consumed = broker_source(
                handler.name,
                source,
                patterns,
                direct=direct,
                concurrency=concurrency,
                origin=origin,
                dead_letters=dead_letters,
            )
            self._add(
                replace(
                    handler,
                    event=known,
                    by_key=direct,
                    trusts_headers=trust_identity,
                    reprocess_raw=self._reprocess_raw,
                )
            )
            self.broker_sources[handler.name] = consumed
            self._declared(handler.name)
            return function

        return decorate

    def projector(
        self,
        *events: str | type,
        reset: Callable[[Any], object] | None = None,
        swap: Callable[[Any], object] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """A consumer whose result can be rebuilt from the event store: `holdfast projectors rebuild NAME`.

        `reset` and `swap` are plain functions that get a connection of the store in an open transaction. `reset(conn)`
        empties the result that a rebuild writes. `swap(conn)` makes it the live result; the handler must then write into
        a separate result while `ctx.rebuilding`. Without `swap` the live result is rebuilt. Every run is recorded.
        """

        check_options(Router.projector, options)
        patterns, known = event_patterns("@hf.projector", events)

        def decorate(function: F) -> F:
            handler = self._handler(function, Kind.PROJECTOR, {"keep_runs": True, **options})
            check_event_function(handler.name, function, known)
            for given in filter(None, (reset, swap)):
                _check_blocking(handler.name, given)
            if swap is not None and reset is None:
                raise ConfigurationError(f"projector {handler.name}: swap= needs reset=, which empties the new result")
            if swap is not None and not handler.takes_context:
                raise ConfigurationError(
                    f"projector {handler.name}: with swap= the function must take (ctx: Context, payload) and write "
                    "elsewhere while ctx.rebuilding"
                )
            self._declare_event(known)
            self._add(replace(handler, patterns=patterns, event=known, reset=reset, swap=swap))
            self._declared(handler.name)
            return function

        return decorate

    def reaction(self, *events: str | type) -> Callable[[F], F]:
        """Runs the function in this process right after an event's commit. It is fast, and lost if the process dies.

        It has the signature of a consumer: change the decorator to make it durable.
        """

        patterns, known = event_patterns("@hf.reaction", events)

        def decorate(function: F) -> F:
            name = getattr(function, "__name__", repr(function))
            check_function(f"reaction {name}", function)
            check_event_function(name, function, known)
            self._take_reaction(Reaction(patterns, known, function, takes_context(function)))
            return function

        return decorate

    def relay(
        self,
        *events: str | type,
        to: Target,
        name: str,
        start: str = "beginning",
        key: Callable[[Message], str | None] | None = None,
        mode: str = "structured",
        queue: str = DEFAULT_QUEUE,
        lease: Duration = "15s",
    ) -> None:
        """Sends every event of these types to a broker as a CloudEvent, in order, at least once, under a stable id.

        `hf.relay("order.*", to=kafka.topic("orders"), name="orders-to-kafka")`. One worker at a time runs it; its
        position moves only past events that the broker confirmed. `key` gets an event and returns the key by which the broker
        keeps order; it defaults to the event's key. Pause it like a consumer of this name.
        """
        from_now = not _from_start(name, start)
        relay = declare(events, name=name, to=to, queue=queue, from_now=from_now, key=key, mode=mode, lease=lease)
        self._add(handler_of(relay, lambda: self._runtime.store, self._default_retry(queue)))
        self._defaulted.add(name)
        self.relays[name] = relay
        self._declared(name)

    def job(self, bare: None = None, /, **options: Unpack[HandlerOptions]) -> MakesJob:
        """Makes a function a job: `await send.enqueue(...)` stores the call, a worker runs it."""
        _refuse_positional("@hf.job()", bare)
        check_options(Router.job, options)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.JOB, None, options)

        return decorate

    def command(self, bare: None = None, /, *, key: str, **options: Unpack[HandlerOptions]) -> MakesJob:
        """A job whose key is built from its arguments (`"order:{user_id}:{order_id}:cancel:v1"`): the same
        command runs once, even if several senders enqueue it."""
        _refuse_positional("@hf.command(key='pay:{order_id}:v1')", bare)
        check_options(Router.command, options)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.COMMAND, key, options)

        return decorate

    def workflow(self, name: str, /, *, version: int = 1, compatible_with: Sequence[int] = ()) -> Workflow:
        """A workflow: declare its steps with `@workflow.step`, or decorate one function with the workflow itself.

        Raise `version` when the steps change. Runs keep the graph that they started with; `compatible_with` names the
        older versions whose runs this code continues.
        """
        refuse_bare("@hf.workflow('order')", name)
        declaration = new_declaration(name, version, compatible_with)
        self._take_workflow(declaration)
        self._add_handler(command_handler())
        return Workflow(self, declaration)

    def _add_handler(self, handler: Handler) -> None:
        self._add(handler)
        self._declared(handler.name)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: str = "last",
        **options: Unpack[HandlerOptions],
    ) -> MakesJob:
        """Runs a function without parameters once at every occurrence, for any number of schedulers.

        `missed` says what happens to occurrences while no worker ran: `"last"` runs the newest, `"all"` each, `"skip"` none.
        """
        refuse_bare("@hf.cron('0 7 * * *')", expression)
        check_options(Router.cron, options)
        check_schedule(expression, tz)
        policy = Missed.parse(missed)

        def decorate(function: Callable[..., Any]) -> Any:
            job = self._job(function, Kind.JOB, None, options, scheduled=True)
            self.cron_schedules[job.name] = Schedule(job.name, expression, tz, policy, job.handler.queue)
            self._declared(job.name)
            return job

        return decorate

    def _job(
        self, function: Callable[P, R], kind: Kind, key: str | None, options: HandlerOptions, *, scheduled: bool = False
    ) -> Job[P, R]:
        handler = self._handler(function, kind, options)
        parameters = job_parameters(handler.name, function)
        if scheduled and parameters.names:
            raise ConfigurationError(f"cron {handler.name}: a scheduled function takes no parameters except a Context")
        check_key_field(f"{kind} {handler.name}", handler.flow, parameters.names)
        if key is not None:
            check_key_template(handler.name, key, parameters.names)
        handler = replace(handler, parameters=parameters)
        self._add_handler(handler)
        return Job(self, handler, function, key)

    def _handler(self, function: Callable[..., Any], kind: Kind, options: HandlerOptions) -> Handler:
        handler = make_handler(function, kind, options, self._default_retry)
        if "retry" not in options:
            self._defaulted.add(handler.name)
        return handler

    def _declare_event(self, known: EventType | None) -> None:
        if known is not None:
            self.event_types.add(known)

    def _add(self, handler: Handler) -> None:
        known = self.handlers.get(handler.name)
        if known is not None and known.function is not handler.function:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r} ({known.function.__qualname__} and "
                f"{handler.function.__qualname__}); give one of them another name="
            )
        self.handlers[handler.name] = handler

    def _default_retry(self, queue: str) -> RetryPolicy:
        return RetryPolicy.exponential()

    @property
    def _runtime(self) -> Runtime:
        if self._parent is None:
            raise ConfigurationError("this router is not part of an app yet; call hf.include(router) first")
        return self._parent._runtime

    async def _reprocess_raw(self, context: Context) -> None:
        await reprocess_raw(self._runtime, context)


def _refuse_positional(example: str, given: object) -> None:
    refuse_bare(example, given)
    if given is not None:
        raise ConfigurationError(f"{example.partition('(')[0]} got {given!r}; its options are given by name: {example}")


def _check_blocking(name: str, function: Callable[[Any], object]) -> None:
    """Rejects a function that cannot be called with a blocking connection."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigurationError(f"projector {name}: {function!r} must take one argument, the connection") from None
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"projector {name}: {function!r} must be a plain function, because its connection is blocking"
        )


def _from_start(name: str, start: str) -> bool:
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"consumer {name}: start is {start!r}; use 'beginning' or 'now'")
    return start == "beginning"
