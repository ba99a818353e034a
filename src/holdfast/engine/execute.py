"""Running one delivery: from the claim to its outcome. Nothing here writes."""

import asyncio
import contextvars
import functools
from concurrent.futures import Executor
from datetime import timedelta
from typing import Protocol

import structlog

from holdfast.core.classify import Rules
from holdfast.core.correlation import correlate
from holdfast.core.errors import Signal, StoreUnavailable
from holdfast.core.event import NewerVersion
from holdfast.core.outcome import Outcome, Snoozed, Succeeded, outcome_of
from holdfast.engine.context import Context
from holdfast.engine.handler import Handler
from holdfast.stores.claim import Claimed

log = structlog.get_logger("holdfast.worker")

NEWER_VERSION_DELAY = timedelta(seconds=30)


class HandlerTimeout(TimeoutError):
    """A handler ran longer than its time-out."""


class Window(Protocol):
    """What was done a short while ago; the app gives it."""

    async def seen(self, consumer: str, key: str) -> bool: ...

    async def record(self, consumer: str, key: str, window: timedelta) -> None: ...


async def execute(
    handler: Handler, claimed: Claimed, context: Context, app_rules: Rules, threads: Executor, window: Window
) -> tuple[Outcome, BaseException | None]:
    """Runs the handler and says how it ended, with what it raised. Cancellation is passed on: it is no outcome.

    A plain function runs in a thread. When it times out the thread goes on, because nothing can stop it: its slot
    stays taken until it ends, and its fence is void from then on.
    """
    try:
        with correlate(**context.headers):
            result = await _once(handler, claimed, context, threads, window)
    except asyncio.CancelledError:
        raise
    except NewerVersion as newer:
        return Snoozed(NEWER_VERSION_DELAY), newer
    except Exception as error:  # noqa: BLE001
        return outcome_of(error, handler.rules, app_rules), error
    if isinstance(result, Signal):
        return outcome_of(result, handler.rules, app_rules), result
    return Succeeded(), None


async def _once(handler: Handler, claimed: Claimed, context: Context, threads: Executor, window: Window) -> object:
    """Calls the handler, unless it dealt with this key within its window. Recorded after success alone."""
    if handler.dedupe is None:
        return await _call(handler, claimed, context, threads)
    key = f"{claimed.source}:{claimed.key}" if claimed.key is not None else str(claimed.message_id)
    if await window.seen(handler.name, key):
        log.info("duplicate skipped", consumer=handler.name, idempotency_key=key, event_id=str(claimed.message_id))
        return None
    result = await _call(handler, claimed, context, threads)
    if not isinstance(result, Signal):
        try:
            await window.record(handler.name, key, handler.dedupe)
        except StoreUnavailable as error:
            # The effect is done. Failing now would do it again, which is what the window is there to prevent.
            log.warning("a success was not recorded in its window", consumer=handler.name, error=str(error))
    return result


async def _call(handler: Handler, claimed: Claimed, context: Context, threads: Executor) -> object:
    positional, named = handler.arguments(claimed)
    if handler.takes_context:
        positional = (context, *positional)
    if handler.is_async:
        if handler.timeout is None:
            return await handler.function(*positional, **named)
        limit = asyncio.timeout(handler.timeout.total_seconds())
        try:
            async with limit:
                return await handler.function(*positional, **named)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _timed_out(handler) from error
    call = functools.partial(contextvars.copy_context().run, handler.function, *positional, **named)
    running = asyncio.get_running_loop().run_in_executor(threads, call)
    timeout = None if handler.timeout is None else handler.timeout.total_seconds()
    done, _ = await asyncio.wait({running}, timeout=timeout)
    if not done:
        # The thread cannot be stopped. Its late result must not be reported as an unretrieved error.
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise _timed_out(handler)
    return running.result()


def _timed_out(handler: Handler) -> HandlerTimeout:
    assert handler.timeout is not None
    return HandlerTimeout(f"{handler.name} ran longer than its time-out of {handler.timeout.total_seconds():g} s")
