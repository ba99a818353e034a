"""Declares handlers, on the app or on a router that an app includes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, Unpack

from holdfast.app.declaration.declarations import Declarations
from holdfast.app.declaration.event_patterns import event_patterns
from holdfast.app.declaration.flow_options import check_key_field, event_fields
from holdfast.app.declaration.handler_options import (
    HandlerOptions,
    check_blocking,
    check_flag,
    check_options,
    make_handler,
    refuse_bare,
    refuse_positional,
    starts_at_beginning,
)
from holdfast.app.jobs.job import Job, MakesJob, check_key_template
from holdfast.app.workflows.workflow import Workflow, new_declaration
from holdfast.brokers.protocol import Source, Target
from holdfast.core.errors import ConfigurationError
from holdfast.core.flow import By, FlowSettings
from holdfast.core.message import DEFAULT_QUEUE, Message
from holdfast.core.schedule import Missed, check_schedule
from holdfast.core.values.arguments import checks_options
from holdfast.core.values.duration import Duration
from holdfast.engine.handlers.handler import (
    Handler,
    Kind,
    check_batch_function,
    check_event_function,
    check_function,
    job_parameters,
    takes_context,
)
from holdfast.engine.maintenance.cron import Schedule
from holdfast.engine.workflows.commands import command_handler
from holdfast.runtime.brokers.ingestion import event_rule, ingest_handler, ingest_name
from holdfast.runtime.brokers.relays import declare, handler_of
from holdfast.runtime.brokers.source import broker_source
from holdfast.runtime.reactions import Reaction

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Router(Declarations):
    """Collects handlers. A declaration opens no connection, so that importing a module is safe."""

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
        is stored, then acknowledged, then run. `direct=True` runs the handler on the record, `concurrency` at a time,
        and stores only failures. `origin` names the broker if two have streams of the same name. A copy of each dead
        letter goes to `dead_letters`, if given. Only the request, trace and correlation ids of a record are passed on
        to the handler's calls and events. With `trust_identity=True` all its headers are passed on, such as a user's
        or a tenant's id: use it only if you trust everyone who can write to the stream.

        With `batch=100, within="2s"` the function takes a list of up to 100 events: it runs when 100 are due, or when
        the oldest has been due for two seconds (default one second). Raise `BatchError` if some of them failed.
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
            from_start = starts_at_beginning(handler.name, start)
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
                check_blocking(handler.name, given)
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
        """Runs the function in this process right after an event's commit. If the process dies first, the run is lost.

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

    @checks_options
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
        from_now = not starts_at_beginning(name, start)
        relay = declare(events, name=name, to=to, queue=queue, from_now=from_now, key=key, mode=mode, lease=lease)
        self._add(handler_of(relay, lambda: self._runtime.store, self._default_retry(queue)))
        self._defaulted.add(name)
        self.relays[name] = relay
        self._check_ingests()
        self._declared(name)

    def ingest(
        self,
        source: Source,
        *,
        as_: str | type,
        key: By | None = None,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        origin: str | None = None,
        dead_letters: Target | None = None,
        trust_identity: bool = False,
    ) -> None:
        """Stores each record of a broker as an event for all consumers and projectors, once for each key.

        `hf.ingest(kafka.topic("orders", group="shop"), as_=OrderPlaced, key="order.id")`. `key` is a payload path, a
        header (`"header:dedupe-key"`) or a function of the payload; without it, the id of the CloudEvent or record.
        The record is acknowledged after the commit. A record that does not fit the class, or has no key, becomes a
        dead letter of the ingest. Pause it like a consumer of its name. The other options are those of
        `@hf.consumer(source=...)`.
        """
        name = ingest_name(source, name)
        patterns, known = event_patterns(f"hf.ingest {name}: as_", (as_,))
        rule = event_rule(name, known, key, trust_identity=check_flag("trust_identity", trust_identity))
        check_key_field(
            f"ingest {name}", FlowSettings(key=rule.key), event_fields(None if known is None else known.cls)
        )
        handler = ingest_handler(name, known, queue, self._reprocess_raw, trust_identity=trust_identity)
        consumed = broker_source(
            name, source, patterns, direct=False, concurrency=1, origin=origin, dead_letters=dead_letters, events=rule
        )
        self._declare_event(known)
        self._add(handler)
        self.broker_sources[name] = consumed
        self._check_ingests()
        self._declared(name)

    def job(self, bare: None = None, /, **options: Unpack[HandlerOptions]) -> MakesJob:
        """Makes a function a job: `await send.enqueue(...)` stores the call, a worker runs it."""
        refuse_positional("@hf.job()", bare)
        check_options(Router.job, options)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.JOB, None, options)

        return decorate

    def command(self, bare: None = None, /, *, key: str, **options: Unpack[HandlerOptions]) -> MakesJob:
        """A job whose key is built from its arguments (`"order:{user_id}:{order_id}:cancel:v1"`): the same
        command runs once, even if several senders enqueue it."""
        refuse_positional("@hf.command(key='pay:{order_id}:v1')", bare)
        check_options(Router.command, options)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.COMMAND, key, options)

        return decorate

    @checks_options
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
        """Runs a function without parameters once at every occurrence, with any number of workers.

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
