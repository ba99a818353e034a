"""OpenTelemetry traces from the request through the message to its handlers, across processes.

Nothing is imported and no span is created until the process has configured OpenTelemetry.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from structlog.contextvars import bound_contextvars

from holdfast._log import get_logger
from holdfast._version import __version__
from holdfast.core.errors import HoldfastError
from holdfast.core.message import NewMessage
from holdfast.core.outcome import Failed, Outcome
from holdfast.core.telemetry.trace_context import TRACEPARENT, TRACESTATE, read_traceparent
from holdfast.engine.execution.invocation import Invocation, RunResult
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.publish import LazyMessages, Messages

log = get_logger("holdfast.worker")

T = TypeVar("T")

_CHECK_SECONDS = 1.0
_IDLE = ("ProxyTracerProvider", "NoOpTracerProvider")
_SYSTEM = {"messaging.system": "holdfast"}


class Tracing:
    """Options for traces. `provider` defaults to OpenTelemetry's global provider.

    A handler's span is a child of the span that published its message. With `links` it starts a new trace that links to
    that span, which suits messages that wait for days. Retries and replays link to the first attempt.
    """

    def __init__(self, *, links: bool = False, enabled: bool = True, provider: Any = None) -> None:
        self._links, self._enabled, self._provider = links, enabled, provider
        self._tracer: Any = None
        self._check_at = float("-inf")

    @property
    def on(self) -> bool:
        """Whether spans are created: this process has configured OpenTelemetry, at least a second ago."""
        return self._tracer is not None or (
            self._enabled and time.monotonic() >= self._check_at and self._find_tracer()
        )

    def _find_tracer(self) -> bool:
        # Without a provider OpenTelemetry reads the environment: too expensive to check for each message.
        self._check_at = time.monotonic() + _CHECK_SECONDS
        provider = self._provider
        if provider is None:
            # A process that configured it has imported it.
            api = sys.modules.get("opentelemetry.trace")
            provider = None if api is None else api.get_tracer_provider()
            if provider is None or type(provider).__name__ in _IDLE:
                return False
        try:
            self._tracer = provider.get_tracer("holdfast", __version__)
        except Exception as error:  # noqa: BLE001
            self._enabled = False
            _broken(error)
        return self._enabled

    def publishing(self, messages: Messages) -> AbstractContextManager[Messages]:
        """A span around the write of messages; their headers carry its trace context."""
        return self._spanning(messages) if self.on else nullcontext(messages)

    @contextmanager
    def _spanning(self, messages: Messages) -> Iterator[Messages]:
        from opentelemetry.trace import SpanKind

        spanning = self._tracer.start_as_current_span(
            f"publish {_named(messages)}", kind=SpanKind.PRODUCER, attributes=_published(messages)
        )
        with _contained(spanning) as span:
            yield messages if span is None else _carrying(messages, _injected(span))

    @contextmanager
    def consuming(self, run: Invocation, first: str | None) -> Iterator["Consumed"]:
        """A span around a run. `first` is the traceparent of the first attempt, if this is another."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = run.correlation
        context = TraceContextTextMapPropagator().extract(
            {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}, Context()
        )
        links = []
        if self._links and (publisher := get_current_span(context).get_span_context()).is_valid:
            links.append(Link(publisher, {"holdfast.link": "publisher"}))
            context = Context()
        if first is not None:
            earlier = TraceContextTextMapPropagator().extract({TRACEPARENT: first}, Context())
            why = "replay" if run.attempts == 1 else "retry"
            links.append(Link(get_current_span(earlier).get_span_context(), {"holdfast.link": why}))
        with self._tracer.start_as_current_span(
            f"process {run.type}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=_consumed(run),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield Consumed(span)

    @contextmanager
    def consuming_batch(self, items: Sequence[Invocation]) -> Iterator["Consumed"]:
        """A span around the run of a batch. Its items have different publishers: it starts a trace that links to each."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        links = []
        for item in items:
            publisher = get_current_span(TraceContextTextMapPropagator().extract(item.correlation, Context()))
            if publisher.get_span_context().is_valid:
                attributes = {"holdfast.link": "publisher", "messaging.message.id": str(item.message_id)}
                links.append(Link(publisher.get_span_context(), attributes))
        first = items[0]
        with self._tracer.start_as_current_span(
            f"process {first.consumer}",
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes={
                **_SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.consumer.group.name": first.consumer,
                "messaging.batch.message_count": len(items),
                "holdfast.queue": first.queue,
            },
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield Consumed(span)


class Consumed:
    """The span of one run."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self.traceparent = _injected(span).get(TRACEPARENT)

    def ended(self, outcome: Outcome) -> None:
        """Records how the run ended, with the stored error, which shows no secrets."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("holdfast.outcome", outcome.name)
        if isinstance(outcome, Failed):
            error = outcome.error
            self._span.set_attribute("error.type", error.type)
            self._span.add_event(
                "exception",
                {
                    "exception.type": error.type,
                    "exception.message": error.message,
                    "exception.stacktrace": error.trace,
                },
            )
            self._span.set_status(StatusCode.ERROR, error.type)


async def traced(
    tracing: Tracing,
    run: Invocation,
    call: Callable[[], Awaitable[RunResult]],
    first: Callable[[], Awaitable[str | None]] | None = None,
) -> tuple[RunResult, str | None]:
    """Runs a delivery in a span, if tracing is on; returns its result and the span's traceparent.

    `first` returns the traceparent of the first attempt; it is called only if there may have been one.
    """
    if not tracing.on:
        return await call(), None
    earlier = await _first_traceparent(first) if first is not None and run.fence > 1 else None
    return await _spanned(tracing.consuming(run, earlier), call)


async def traced_batch(
    tracing: Tracing, items: Sequence[Invocation], call: Callable[[], Awaitable[RunResult]]
) -> tuple[RunResult, str | None]:
    """`traced` for a batch: one span, which links to the spans that published its items."""
    if not tracing.on:
        return await call(), None
    return await _spanned(tracing.consuming_batch(items), call)


async def _spanned(
    consuming: "AbstractContextManager[Consumed]", call: Callable[[], Awaitable[RunResult]]
) -> tuple[RunResult, str | None]:
    with _contained(consuming) as span:
        if span is None:
            return await call(), None
        trace = read_traceparent(span.traceparent)
        with bound_contextvars(**({} if trace is None else {"trace_id": trace.trace_id})):
            ended = await call()
        try:
            span.ended(ended.outcome)
        except Exception as error:  # noqa: BLE001
            _broken(error)
        return ended, span.traceparent


async def _first_traceparent(first: Callable[[], Awaitable[str | None]]) -> str | None:
    try:
        return await first()
    except HoldfastError as error:
        # A link that fails must not fail the run.
        log.warning("trace link failed", **error_fields(error))
        return None


@contextmanager
def _contained(span: AbstractContextManager[T]) -> Iterator[T | None]:
    """`span`, or None if it cannot start. Errors of the tracer are logged and do not fail the run."""
    try:
        begun = span.__enter__()
    except Exception as error:  # noqa: BLE001
        _broken(error)
        yield None
        return
    try:
        yield begun
    except BaseException as inside:
        _end(span, type(inside), inside, inside.__traceback__)
        raise
    _end(span, None, None, None)


def _end(span: AbstractContextManager[object], kind: Any, inside: BaseException | None, trace: Any) -> None:
    try:
        span.__exit__(kind, inside, trace)
    except Exception as error:  # noqa: BLE001
        if error is not inside:
            _broken(error)


def _broken(error: Exception) -> None:
    log.warning("tracing failed", **error_fields(error))


def _named(messages: Messages) -> str:
    if isinstance(messages, AlikeMessages):
        return messages.like.type
    types = set() if isinstance(messages, LazyMessages) else {message.type for message in messages}
    return types.pop() if len(types) == 1 else "batch"


def _published(messages: Messages) -> dict[str, Any]:
    known = {**_SYSTEM, "messaging.operation.name": "publish", "messaging.operation.type": "send"}
    if isinstance(messages, LazyMessages):
        return known
    if len(messages) != 1:
        return {**known, "messaging.batch.message_count": len(messages)}
    (message,) = messages
    return {
        **known,
        "messaging.destination.name": message.type,
        "messaging.message.id": str(message.id),
        "holdfast.source": message.source,
    }


def _consumed(run: Invocation) -> dict[str, Any]:
    known: dict[str, Any] = {
        **_SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": run.type,
        "messaging.consumer.group.name": run.consumer,
        "messaging.message.id": str(run.message_id),
        "holdfast.delivery_id": str(run.id),
        "holdfast.queue": run.queue,
        "holdfast.source": run.source,
        "holdfast.attempt": run.attempts,
    }
    if request := run.correlation.get("request_id"):
        known["messaging.message.conversation_id"] = request
    return known


def _injected(span: Any) -> dict[str, str]:
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span, Context()))
    return carrier


def _carrying(messages: Messages, trace: Mapping[str, str]) -> Messages:
    """The messages with this trace in their headers, instead of an earlier one."""
    if isinstance(messages, LazyMessages):
        make = messages.make
        return LazyMessages(lambda: (_carrying_all(part, trace) for part in make()))
    return _carrying_all(messages, trace)


def _carrying_all(messages: Sequence[NewMessage], trace: Mapping[str, str]) -> Sequence[NewMessage]:
    if isinstance(messages, AlikeMessages):
        like = messages.like._replace(headers=_headers(messages.like.headers, trace))
        return AlikeMessages(like, messages.ids, messages.payloads)
    return [message._replace(headers=_headers(message.headers, trace)) for message in messages]


def _headers(headers: Mapping[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in headers.items() if name not in (TRACEPARENT, TRACESTATE)}, **trace}
