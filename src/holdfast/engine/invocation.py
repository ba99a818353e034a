"""Running one delivery: from the claim to its outcome. Nothing here writes."""

import asyncio
import contextvars
import functools
import inspect
import sys
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from structlog.contextvars import STRUCTLOG_KEY_PREFIX, bind_contextvars, reset_contextvars

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError, Signal, StoreUnavailable
from holdfast.core.events.event import NewerVersion
from holdfast.core.failures.classify import Rules
from holdfast.core.failures.report import report
from holdfast.core.message import RAW_TYPE
from holdfast.core.outcome import Outcome, Snoozed, Succeeded, outcome_of
from holdfast.core.redaction.redact import hidden
from holdfast.core.telemetry.correlation import leave, resume
from holdfast.engine.context import Context
from holdfast.engine.handler import Handler
from holdfast.engine.log_fields import delivery_fields, loggable
from holdfast.engine.threads import ThreadResult, Threads
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.dedupe import window_key

log = get_logger("holdfast.worker")

NEWER_VERSION_DELAY = timedelta(seconds=30)

Thread = asyncio.Future[ThreadResult]


class HandlerTimeout(TimeoutError):
    """A handler ran longer than its time-out. `thread` is set when it runs on, because nothing can stop it."""

    def __init__(self, handler: Handler, thread: Thread | None = None) -> None:
        assert handler.timeout is not None
        super().__init__(f"{handler.name} ran longer than its time-out of {handler.timeout.total_seconds():g} s")
        self.thread = thread


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: its outcome, what it raised or gave as a signal, and the thread that is still at it."""

    outcome: Outcome
    error: BaseException | None = None
    thread: Thread | None = None


_SUCCEEDED = RunResult(Succeeded())
_FIELDS = ("event_id", "event_type", "source", "consumer", "queue", "attempt")


class DedupeWindow(Protocol):
    """What was done a short while ago; the app gives it."""

    async def seen(self, consumer: str, key: str) -> bool: ...

    async def record(self, consumer: str, key: str, window: timedelta) -> None: ...


async def invoke(
    handler: Handler, claimed: Claimed, context: Context, app_rules: Rules, threads: Threads, window: DedupeWindow
) -> RunResult:
    """Runs the handler and says how it ended. Cancellation is passed on: it is no outcome.

    A plain function runs in a thread. When it times out the thread goes on, because nothing can stop it: its fence
    is void once the outcome is settled, and its late result changes nothing.
    """
    carried, surrounding = _correlate(context, claimed), sys.exception()
    try:
        result = await _once(handler, claimed, context, threads, window)
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
    except NewerVersion as newer:
        return RunResult(Snoozed(NEWER_VERSION_DELAY), newer)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001
        # SystemExit too: what means to end a program of its own must not end the worker.
        _cut_context(error, surrounding)
        thread = error.thread if isinstance(error, HandlerTimeout) else None
        return RunResult(outcome_of(error, handler.rules, app_rules, hide=hidden()), error, thread)
    finally:
        if carried is not None:
            carried.undo()
    if isinstance(result, Signal):
        return RunResult(outcome_of(result, handler.rules, app_rules, hide=hidden()), result)
    return _SUCCEEDED


def _cut_context(error: BaseException, surrounding: BaseException | None) -> None:
    """Takes away the exception during whose handling the loop was started: it is no cause of what a handler raises."""
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
    """What a message's headers have put in force for a run."""

    logged: Mapping[str, Token[Any]]
    published: Token[Mapping[str, str]]

    def undo(self) -> None:
        reset_contextvars(**self.logged)
        leave(self.published)


def _correlate(context: Context, claimed: Claimed) -> _Carried | None:
    """What the handler publishes and logs carries the ids of its message, and the lines say whose they are."""
    carried = None
    if context.headers:
        carried = _Carried(bind_contextvars(**loggable(context.headers)), resume(context.headers))
    # Bound until the slot's next run binds its own: nothing else runs in the slot's task.
    event_id, event_type, source, consumer, queue, attempt = _log_variables()
    event_id.set(str(claimed.message_id))
    event_type.set(claimed.type)
    source.set(claimed.source)
    consumer.set(claimed.consumer)
    queue.set(claimed.queue)
    attempt.set(claimed.attempts)
    return carried


@functools.cache
def _log_variables() -> tuple[ContextVar[Any], ...]:
    """structlog's variables of a run's fields. Setting them takes a quarter of the time of binding them by name."""

    def bound() -> tuple[ContextVar[Any], ...]:
        bind_contextvars(**dict.fromkeys(_FIELDS))
        known = {variable.name: variable for variable in contextvars.copy_context()}
        return tuple(known[f"{STRUCTLOG_KEY_PREFIX}{name}"] for name in _FIELDS)

    return contextvars.copy_context().run(bound)


async def _once(handler: Handler, claimed: Claimed, context: Context, threads: Threads, window: DedupeWindow) -> object:
    """Calls the handler, unless it dealt with this key within its window. Recorded after success alone."""
    if handler.dedupe is None:
        return await _call(handler, claimed, context, threads)
    key = window_key(claimed.source, claimed.key, claimed.message_id)
    if await window.seen(handler.name, key) and not await context.rerun():
        log.info("duplicate skipped", consumer=handler.name, idempotency_key=key, event_id=str(claimed.message_id))
        return None
    result = await _call(handler, claimed, context, threads)
    # Whether one that completed by itself was committed is not known here, and the store needs no window for it.
    if not isinstance(result, Signal) and not context.completing:
        try:
            await window.record(handler.name, key, handler.dedupe)
        except StoreUnavailable as error:
            # The effect is done. Failing now would do it again, which is what the window is there to prevent.
            log.warning("dedupe record failed", consumer=handler.name, error=str(error))
    return result


async def _call(handler: Handler, claimed: Claimed, context: Context, threads: Threads) -> object:
    if claimed.type == RAW_TYPE and handler.reprocess_raw is not None:
        await handler.reprocess_raw(context, claimed)
        return None
    positional, named = handler.arguments(claimed)
    if handler.takes_context:
        positional = (context, *positional)
    if not handler.is_async:
        call = functools.partial(contextvars.copy_context().run, handler.function, *positional, **named)
        return await _in_thread(handler, claimed, threads.start(call))
    if handler.timeout is None:
        return await handler.function(*positional, **named)
    limit = asyncio.timeout(handler.timeout.total_seconds())
    try:
        async with limit:
            return await handler.function(*positional, **named)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HandlerTimeout(handler) from error


async def _in_thread(handler: Handler, claimed: Claimed, thread: Thread) -> object:
    timeout = None if handler.timeout is None else handler.timeout.total_seconds()
    try:
        done, _ = await asyncio.wait({thread}, timeout=timeout)
    except asyncio.CancelledError:
        _let_run(claimed, thread)
        raise
    if not done:
        _let_run(claimed, thread)
        raise HandlerTimeout(handler, thread)
    returned = thread.result()
    if returned.error is not None:
        raise returned.error
    return returned.value


def _let_run(claimed: Claimed, thread: Thread) -> None:
    """Says aloud that a thread runs on beside whatever becomes of its delivery, and when it has ended."""
    known, hide = delivery_fields(claimed), hidden()
    log.warning("handler thread still running", **known)

    def ended(late: Thread) -> None:
        if not late.cancelled():
            error = late.result().error
            told = {} if error is None else {"error": report(error, hide).message}
            log.warning("handler thread ended late", **known | told)

    thread.add_done_callback(ended)
