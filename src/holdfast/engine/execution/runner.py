"""Runs a handler once: correlation, dedupe, time-out, trace, classification. Nothing here writes.

Three callers complete a run in different ways: the executor settles a delivery, a direct consumer acknowledges a broker
record or stores its failure, and a rebuild moves its checkpoint.
"""

import asyncio
import contextvars
import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from structlog.contextvars import STRUCTLOG_KEY_PREFIX, bind_contextvars, reset_contextvars

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError, HoldfastError, Signal, StoreUnavailable
from holdfast.core.events.event import NewerVersion
from holdfast.core.failures.classify import Rules
from holdfast.core.failures.report import report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.message import RAW_TYPE
from holdfast.core.outcome import Failed, Outcome, Released, Snoozed, Succeeded, Suspended, outcome_of
from holdfast.core.redaction.redact import hidden
from holdfast.core.telemetry.correlation import leave, resume
from holdfast.core.telemetry.propagation import propagated
from holdfast.engine.execution.invocation import Invocation, RunResult, Thread
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.log_fields import log_fields, run_fields
from holdfast.engine.telemetry.tracing import Tracing, traced
from holdfast.engine.workflows.step_context import StepContext
from holdfast.stores.deliveries.dedupe import window_key
from holdfast.stores.deliveries.settle import ClaimState

log = get_logger("holdfast.worker")

NEWER_VERSION_DELAY = timedelta(seconds=30)


C = TypeVar("C", bound=Context)


class RolledBack(HoldfastError):
    """A handler called `ctx.complete` and returned, but its transaction did not commit."""

    __module__ = "holdfast"  # failures are stored with this name; it stays when the class moves


class HandlerTimeout(TimeoutError):
    """A handler ran longer than its time-out. `thread` is set if it still runs, because nothing can stop it."""

    __module__ = "holdfast"  # failures are stored with this name; it stays when the class moves

    def __init__(self, handler: Handler, thread: Thread | None = None) -> None:
        assert handler.timeout is not None
        super().__init__(f"{handler.name} ran longer than its time-out of {handler.timeout.total_seconds():g} s")
        self.thread = thread


_SUCCEEDED = RunResult(Succeeded())
_FIELDS = ("event_id", "event_type", "source", "consumer", "queue", "attempt")


class DedupeWindow(Protocol):
    """Remembers handled keys for a short time; the app provides it."""

    async def seen(self, consumer: str, key: str) -> bool: ...

    async def record(self, consumer: str, key: str, window: timedelta) -> None: ...


class FinishedRun(NamedTuple):
    """A run with its final outcome. `claim_state` is set if the handler called `ctx.complete`; SETTLED means it committed."""

    outcome: Outcome
    error: BaseException | None
    thread: Thread | None
    claim_state: ClaimState | None
    elapsed: float
    traceparent: str | None


class Runner(Generic[C]):
    """Runs handlers. `claim_state` finds out whether a transaction that called `ctx.complete` has committed."""

    def __init__(
        self,
        rules: Rules,
        window: DedupeWindow,
        threads: Threads,
        claim_state: Callable[[C], Awaitable[ClaimState]],
        tracing: Tracing | None = None,
        first_trace: Callable[[UUID], Awaitable[str | None]] | None = None,
    ) -> None:
        self._rules, self._window, self._threads, self._claim_state = rules, window, threads, claim_state
        self._tracing, self._first_trace = tracing, first_trace

    async def run(self, handler: Handler, context: C, task: "asyncio.Task[None] | None" = None) -> FinishedRun:
        """Runs the handler once. With `task`, the worker's slot, a cancellation is an outcome: the delivery is released."""
        started = time.monotonic()
        trace = None
        if self._tracing is not None and self._tracing.on:
            run = context.invocation
            first = None if self._first_trace is None else partial(self._first_trace, run.id)
            result, trace = await traced(self._tracing, run, partial(self._invoke, handler, context, task), first)
        else:
            result = await self._invoke(handler, context, task)
        elapsed = time.monotonic() - started
        outcome, state = result.outcome, None
        if context.completing:
            state = await self._claim_state(context)
            if state is ClaimState.SETTLED or (context.already_handled and state is ClaimState.HELD):
                outcome = Succeeded()
            elif state is ClaimState.HELD and isinstance(outcome, Succeeded):
                why = RolledBack("the handler called ctx.complete() and returned, but its transaction did not commit")
                outcome = Failed(report(why, hidden()), Verdict.retry())
        return FinishedRun(outcome, result.error, result.thread, state, elapsed, trace)

    async def _invoke(self, handler: Handler, context: C, task: "asyncio.Task[None] | None") -> RunResult:
        """Calls the handler and classifies how it ended.

        A plain function runs in a thread. Nothing can stop the thread after the time-out: the fence of the run is void
        once the outcome is settled, so a late result changes nothing.
        """
        carried, surrounding = _correlate(handler, context), sys.exception()
        try:
            returned = await _once(handler, context, self._threads, self._window)
            if returned is not None:
                check_returned(handler, returned)
            if context.keeps_result and not isinstance(returned, Signal):
                context.returned(returned)
        except NewerVersion as newer:
            result = RunResult(Snoozed(NEWER_VERSION_DELAY), newer)
        except asyncio.CancelledError as cancelled:
            result = cancelled_run(cancelled, task)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001
            if context.suspension is not None and not isinstance(error, ConfigurationError):
                # Also when the handler's own code wrapped the exception, for example a task group.
                result = RunResult(Suspended())
            else:
                # SystemExit too: a handler must not end the worker.
                result = failed(error, surrounding, handler, self._rules)
        else:
            result = _SUCCEEDED
            if isinstance(returned, Signal):
                result = RunResult(outcome_of(returned, handler.rules, self._rules, hide=hidden()), returned)
        finally:
            if carried is not None:
                carried.undo()
        return result if task is None or not task.cancelling() else released_run(result, task)


def cancelled_run(cancelled: asyncio.CancelledError, task: "asyncio.Task[None] | None") -> RunResult:
    """The result of a run that raised a cancellation. Without `task`, the slot, a cancellation of the caller is raised again."""
    if task is None and (current := asyncio.current_task()) is not None and current.cancelling():
        raise cancelled
    # If the worker did not cancel the slot, the handler's own code raised the cancellation.
    return RunResult(Failed(report(cancelled, hidden()), Verdict.retry()), cancelled)


def released_run(result: RunResult, task: "asyncio.Task[None]") -> RunResult:
    """The result of a run whose slot the worker cancelled: how a handler reacts to that does not count as its failure."""
    while task.cancelling():
        task.uncancel()
    return replace(result, outcome=Released(started=True)) if isinstance(result.outcome, Failed) else result


def check_returned(handler: Handler, result: object) -> None:
    """Rejects a result that means that the handler did not do its work."""
    if isinstance(result, type) and issubclass(result, Signal):
        raise ConfigurationError(
            f"{handler.kind} {handler.name} returned the class {result.__name__}; return an instance of it"
        )
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigurationError(
            f"{handler.kind} {handler.name} returned a coroutine that was not awaited, so its work was not done; make "
            "the function, and every decorator around it, async, and await inside it"
        )


def failed(error: BaseException, surrounding: BaseException | None, handler: Handler, app_rules: Rules) -> RunResult:
    """The result of a run that raised. `surrounding` is the exception in whose handler the loop was started."""
    _cut_context(error, surrounding)
    thread = error.thread if isinstance(error, HandlerTimeout) else None
    return RunResult(outcome_of(error, handler.rules, app_rules, hide=hidden()), error, thread)


def _cut_context(error: BaseException, surrounding: BaseException | None) -> None:
    """Removes the exception in whose handler the loop was started: it did not cause the handler's error."""
    seen: set[int] = set()
    while surrounding is not None and error is not surrounding and id(error) not in seen:
        seen.add(id(error))
        inner = error.__context__
        if inner is None:
            return
        if inner is surrounding:
            error.__context__ = None
        error = inner


class _Carried(NamedTuple):
    """The context variables that a message's headers set for a run."""

    logged: Mapping[str, Token[Any]]
    published: Token[Mapping[str, str]]

    def undo(self) -> None:
        reset_contextvars(**self.logged)
        leave(self.published)


def _correlate(handler: Handler, context: Context) -> _Carried | None:
    """Binds the message's correlation ids for what the handler publishes, and its fields for what it logs."""
    carried, run = None, context.invocation
    if headers := context.headers:
        if not handler.trusts_headers:
            headers = propagated(headers)
        carried = _Carried(bind_contextvars(**log_fields(headers)), resume(headers))
    # Bound until the next run of the slot: nothing else runs in the slot's task.
    event_id, event_type, source, consumer, queue, attempt = _log_variables()
    event_id.set(str(run.message_id))
    # The other fields are mostly those of the last run: comparing them costs a third of setting them.
    if event_type.get(None) != run.type:
        event_type.set(run.type)
    if source.get(None) != run.source:
        source.set(run.source)
    if consumer.get(None) != run.consumer:
        consumer.set(run.consumer)
    if queue.get(None) != run.queue:
        queue.set(run.queue)
    if attempt.get(None) != run.attempts:
        attempt.set(run.attempts)
    return carried


@functools.cache
def _log_variables() -> tuple[ContextVar[Any], ...]:
    """structlog's variables for the fields of a run. Setting them takes a quarter of the time of binding them by name."""

    def bound() -> tuple[ContextVar[Any], ...]:
        bind_contextvars(**dict.fromkeys(_FIELDS))
        known = {variable.name: variable for variable in contextvars.copy_context()}
        return tuple(known[f"{STRUCTLOG_KEY_PREFIX}{name}"] for name in _FIELDS)

    return contextvars.copy_context().run(bound)


class CurrentRun(NamedTuple):
    """The run of the handler that executes the current code."""

    message_id: UUID
    consumer: str
    queue: str


def current_run() -> CurrentRun | None:
    """The run that the caller is part of; None outside of handlers."""
    event_id, _, _, consumer, queue, attempt = (variable.get(None) for variable in _log_variables())
    if all(isinstance(value, str) for value in (event_id, consumer, queue)) and isinstance(attempt, int):
        return CurrentRun(_message_id(event_id), consumer, queue)
    return None


def _message_id(event_id: str) -> UUID:
    """The id of the message; the lowest id, which no message has, if the handler bound its own log field `event_id`."""
    try:
        return UUID(event_id)
    except ValueError:
        return UUID(int=0)


def _once(handler: Handler, context: Context, threads: Threads, window: DedupeWindow) -> Awaitable[object]:
    """Calls the handler, unless it handled this key within its dedupe window."""
    if handler.dedupe is None:
        return _call(handler, context, threads)
    return _deduplicated(handler, handler.dedupe, context, threads, window)


async def _deduplicated(
    handler: Handler, within: timedelta, context: Context, threads: Threads, window: DedupeWindow
) -> object:
    """Calls the handler, unless it handled this key within the time `within`. Only success is recorded."""
    run = context.invocation
    key = window_key(run.source, run.key, run.message_id)
    if await window.seen(handler.name, key) and not await context.rerun():
        log.info("duplicate skipped", consumer=handler.name, idempotency_key=key, event_id=str(run.message_id))
        return None
    result = await _call(handler, context, threads)
    # After ctx.complete() only the store knows whether it committed, and it records the key without a window.
    if not isinstance(result, Signal) and not context.completing:
        try:
            await window.record(handler.name, key, within)
        except StoreUnavailable as error:
            # The effect is done. Failing now would repeat it, which the window exists to prevent.
            log.warning("dedupe record failed", consumer=handler.name, error=str(error))
    return result


def _call(handler: Handler, context: Context, threads: Threads) -> Awaitable[object]:
    run = context.invocation
    if run.type == RAW_TYPE and handler.reprocess_raw is not None:
        return handler.reprocess_raw(context)
    positional, named = ((), context.arguments()) if isinstance(context, StepContext) else handler.arguments(run)
    if handler.takes_context:
        positional = (context, *positional)
    return call_function(handler, positional, named, threads, run)


def call_function(
    handler: Handler,
    positional: tuple[Any, ...],
    named: Mapping[str, Any],
    threads: Threads,
    run: Invocation | dict[str, object],
) -> Awaitable[Any]:
    """Calls the handler's function within its time-out. `run`, or its fields, appear in log lines about it."""
    if not handler.is_async:
        call = partial(contextvars.copy_context().run, handler.function, *positional, **named)
        return _in_thread(handler, run, threads.start(call))
    if handler.timeout is None:
        called: Awaitable[Any] = handler.function(*positional, **named)
        return called
    return _timed(handler, handler.timeout.total_seconds(), handler.function(*positional, **named))


async def _timed(handler: Handler, seconds: float, call: Awaitable[object]) -> object:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HandlerTimeout(handler) from error


async def _in_thread(handler: Handler, run: Invocation | dict[str, object], thread: Thread) -> object:
    timeout = None if handler.timeout is None else handler.timeout.total_seconds()
    try:
        done, _ = await asyncio.wait({thread}, timeout=timeout)
    except asyncio.CancelledError:
        _log_late_end(handler, run, thread)
        raise
    if not done:
        _log_late_end(handler, run, thread)
        raise HandlerTimeout(handler, thread)
    returned = thread.result()
    if returned.error is not None:
        raise returned.error
    return returned.value


def _log_late_end(handler: Handler, run: Invocation | dict[str, object], thread: Thread) -> None:
    """Logs that a thread still runs although its run has ended, and again when it returns."""
    known, hide = run_fields(run, handler), hidden()
    log.warning("handler thread still running", **known)

    def ended(late: Thread) -> None:
        if not late.cancelled():
            error = late.result().error
            log.warning(
                "handler thread ended late", **known | ({} if error is None else {"error": report(error, hide).message})
            )

    thread.add_done_callback(ended)
