"""Declaring handlers, on the app itself or on a router that an app includes later."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

from holdfast.app.job import Job, MakesJob, check_key_template
from holdfast.app.relays import declare, handler_of
from holdfast.app.streams import Feed, feed, reread
from holdfast.brokers.protocol import Source, Target
from holdfast.brokers.relay import Relay
from holdfast.core.classify import Classifier, Rules
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError
from holdfast.core.event import EventType, event_type
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE, Message, check_priority
from holdfast.core.names import check_name
from holdfast.core.pattern import check_pattern
from holdfast.core.retry import RetryPolicy
from holdfast.engine.cron import Missed, Schedule
from holdfast.engine.handler import Handler, Kind, check_event_function, job_parameters, takes_context

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Classes = tuple[type[BaseException], ...]

_DEDUPE = timedelta(minutes=5)


class Options(TypedDict, total=False):
    """What every durable handler can say of itself. `name` must stay the same for ever."""

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
    dedupe: Duration | bool


@dataclass(frozen=True, slots=True)
class Reaction:
    """A function that runs in the publishing process, right after the commit; nothing is stored for it."""

    patterns: tuple[str, ...]
    event: EventType | None
    function: Callable[..., Any]
    takes_context: bool


class Router:
    """Collects handlers. Declaring one does nothing else: no connection is made at import."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.schedules: dict[str, Schedule] = {}
        self.reactions: list[Reaction] = []
        self.relays: dict[str, Relay] = {}
        self.feeds: dict[str, Feed] = {}
        self._app: Holdfast | None = None
        self._parent: Router | None = None
        self._defaulted: set[str] = set()

    def include(self, router: "Router") -> None:
        """Takes over everything a router declared so far; its jobs can be enqueued once it belongs to an app.

        A handler without a retry policy of its own gets the one of its queue here.
        """
        for handler in router.handlers.values():
            if handler.name in router._defaulted:
                self._defaulted.add(handler.name)
                handler = replace(handler, retry=self._default_retry(handler.queue))
            self._add(handler)
        self.schedules |= router.schedules
        self.relays |= router.relays
        self.feeds |= router.feeds
        self.reactions.extend(reaction for reaction in router.reactions if reaction not in self.reactions)
        router._parent = self

    def consumer(
        self,
        *events: object,
        start: str = "beginning",
        source: Source | None = None,
        direct: bool = False,
        concurrency: int = 10,
        origin: str | None = None,
        dead_letters: Target | None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """Runs the function for every event of these types, durably. It stays an ordinary function.

        `events` are event classes, names or patterns (`order.*`, `*`). A new consumer starts with the first event in
        the store, or with `start="now"`. The name must stay the same for ever; it defaults to the function's.

        With a `source` it gets the records of a broker instead, such as `redis.stream("payments", group="shop")`: each
        is stored, then acknowledged, then run. `direct=True` runs it straight from the stream, `concurrency` at a
        time, and stores only what fails. `origin` names the broker where two have streams of the same name. A copy of each
        dead letter goes to `dead_letters`, if given.
        """

        def decorate(function: F) -> F:
            handler = self._handler(function, Kind.CONSUMER, options)
            check_event_function(handler.name, function)
            patterns, known = _patterns(handler.name, events)
            from_start = _from_start(handler.name, start)
            if source is None:
                self._add(replace(handler, patterns=patterns, event=known, from_start=from_start))
                return function
            if not from_start:
                raise ConfigurationError(
                    f"consumer {handler.name}: where to start is the source's; give it start='now'"
                )
            fed = feed(
                handler.name,
                source,
                patterns,
                direct=direct,
                concurrency=concurrency,
                origin=origin,
                dead_letters=dead_letters,
            )
            self._add(replace(handler, event=known, by_key=direct, reread=partial(reread, self, handler.name)))
            self.feeds[handler.name] = fed
            return function

        return decorate

    def projector(
        self,
        *events: object,
        reset: Callable[[Any], object] | None = None,
        swap: Callable[[Any], object] | None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """A consumer whose result can be built anew from the event store: `holdfast projectors rebuild NAME`.

        Both are plain functions that get a connection of the store in an open transaction. `reset(conn)` makes what a
        rebuild writes into empty. `swap(conn)` makes that the live result; the handler must then write elsewhere
        while `ctx.rebuilding`. Without `swap` the live result itself is built anew. Every run is recorded.
        """

        def decorate(function: F) -> F:
            handler = self._handler(function, Kind.PROJECTOR, {"keep_runs": True, **options})
            check_event_function(handler.name, function)
            patterns, known = _patterns(handler.name, events)
            for given in filter(None, (reset, swap)):
                _check_blocking(handler.name, given)
            if swap is not None and reset is None:
                raise ConfigurationError(f"projector {handler.name}: swap= needs reset=, which makes what it swaps in")
            if swap is not None and not handler.takes_context:
                raise ConfigurationError(
                    f"projector {handler.name}: with swap= the function must take (ctx: Context, payload) and write "
                    "elsewhere while ctx.rebuilding"
                )
            self._add(replace(handler, patterns=patterns, event=known, reset=reset, swap=swap))
            return function

        return decorate

    def reaction(self, *events: object) -> Callable[[F], F]:
        """Runs the function in this process right after an event's commit: quick, and lost if the process dies.

        Same signature as a consumer: change the word to make it durable.
        """

        def decorate(function: F) -> F:
            check_event_function(function.__name__, function)
            patterns, known = _patterns(function.__name__, events)
            self.reactions.append(Reaction(patterns, known, function, takes_context(function)))
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

        `hf.relay("order.*", to=kafka.topic("orders"), name="orders-to-kafka")`. One worker at a time runs it; it moves on
        only behind what the broker has confirmed. `key` is given an event and returns what the broker keeps in order;
        without it that is the event's own key. Pause it as a consumer of its name.
        """
        from_now = not _from_start(name, start)
        relay = declare(events, name=name, to=to, queue=queue, from_now=from_now, key=key, mode=mode, lease=lease)
        self._add(handler_of(relay, lambda: self._bound().store, self._default_retry(queue)))
        self._defaulted.add(name)
        self.relays[name] = relay

    def job(self, **options: Unpack[Options]) -> MakesJob:
        """Makes a function into a job: `await send.enqueue(...)` stores the call, a worker runs it."""

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.JOB, None, options)

        return decorate

    def command(self, *, key: str, **options: Unpack[Options]) -> MakesJob:
        """A job whose key is built from its arguments (`"order:{user_id}:{order_id}:cancel:v1"`): the same
        command twice runs once, whoever sent it."""

        def decorate(function: Callable[..., Any]) -> Any:
            return self._job(function, Kind.COMMAND, key, options)

        return decorate

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: str = "last",
        **options: Unpack[Options],
    ) -> MakesJob:
        """Runs a function without parameters at every occurrence: once each, however many schedulers run.

        `missed` says what happens to occurrences nobody was there for: `"last"` runs the newest, `"all"` each, `"skip"` none.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            job = self._job(function, Kind.JOB, None, options)
            if job.handler.parameters:
                raise ConfigurationError(f"cron {job.name}: a scheduled function takes no parameters (but a Context)")
            self.schedules[job.name] = Schedule(job.name, expression, tz, Missed.parse(missed), job.handler.queue)
            return job

        return decorate

    def _job(self, function: Callable[P, R], kind: Kind, key: str | None, options: Options) -> Job[P, R]:
        handler = self._handler(function, kind, options)
        parameters, required = job_parameters(handler.name, function)
        if key is not None:
            check_key_template(handler.name, key, set(parameters))
        handler = replace(handler, parameters=parameters, required=required)
        self._add(handler)
        return Job(self, handler, function, key)

    def _handler(self, function: Callable[..., Any], kind: Kind, options: Options) -> Handler:
        name = check_name("consumer", options.get("name") or function.__name__)
        queue = check_name("queue", options.get("queue", DEFAULT_QUEUE))
        timeout = options.get("timeout")
        if not options.get("retry"):
            self._defaulted.add(name)
        return Handler(
            name=name,
            kind=kind,
            function=function,
            queue=queue,
            priority=check_priority(options.get("priority", DEFAULT_PRIORITY)),
            retry=options.get("retry") or self._default_retry(queue),
            rules=Rules(
                dead_on=options.get("dead_on", ()),
                retry_on=options.get("retry_on", ()),
                block_on=options.get("block_on", ()),
                park_on=options.get("park_on", ()),
                classify=options.get("classify"),
            ),
            timeout=None if timeout is None else to_timedelta(timeout, name="timeout"),
            keep_runs=options.get("keep_runs", False),
            dedupe=_window(options.get("dedupe", False)),
            takes_context=takes_context(function),
        )

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

    def _bound(self) -> "Holdfast":
        if self._app is not None:
            return self._app
        if self._parent is None:
            raise ConfigurationError("this router belongs to no app yet; call hf.include(router) first")
        return self._parent._bound()


def _patterns(name: str, events: tuple[object, ...]) -> tuple[tuple[str, ...], EventType | None]:
    if not events:
        raise ConfigurationError(f"consumer {name} names no event; give an event class, a name or a pattern")
    known = [event_type(event) for event in events if isinstance(event, type)]
    patterns = []
    for event in events:
        if not isinstance(event, str | type):
            raise ConfigurationError(f"consumer {name}: {event!r} is neither an event class nor a name")
        patterns.append(check_pattern(event) if isinstance(event, str) else event_type(event).name)
    if known and len(events) > 1:
        raise ConfigurationError(
            f"consumer {name}: one event class at a time, or names and patterns alone; its payload has one type"
        )
    return tuple(dict.fromkeys(patterns)), known[0] if known else None


def _check_blocking(name: str, function: Callable[[Any], object]) -> None:
    """Refuses what could not be called with a blocking connection."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigurationError(f"projector {name}: {function!r} must take one argument, the connection") from None
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"projector {name}: {function!r} must be a plain function; its connection blocks")


def _window(dedupe: Duration | bool) -> timedelta | None:
    """How long a key is remembered: not at all, five minutes, or as long as said."""
    if isinstance(dedupe, bool):
        return _DEDUPE if dedupe else None
    return to_timedelta(dedupe, name="dedupe")


def _from_start(name: str, start: str) -> bool:
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"consumer {name}: start is {start!r}; use 'beginning' or 'now'")
    return start == "beginning"
