"""Runs a batch handler once and finds the outcome of each item."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from structlog.contextvars import bind_contextvars, reset_contextvars, unbind_contextvars

from holdfast.core.errors import BatchError, ConfigurationError, Signal
from holdfast.core.failures.classify import Rules
from holdfast.core.outcome import Failed, Outcome, Released, Succeeded, outcome_of
from holdfast.core.redaction.redact import hidden
from holdfast.engine.batches.context import BatchContext
from holdfast.engine.execution.invocation import RunResult, Thread
from holdfast.engine.execution.runner import call_function, cancelled_run, check_returned, failed, released_run
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.tracing import Tracing, traced_batch
from holdfast.stores.deliveries.claim import Claimed

_OF_ONE_DELIVERY = ("event_id", "event_type", "source", "attempt")


@dataclass(frozen=True, slots=True)
class BatchResult(RunResult):
    """How a batch ended: `outcome` is that of every item whose index is not in `failures`."""

    failures: Mapping[int, Outcome] = field(default_factory=dict)


class FinishedBatch(NamedTuple):
    """A run of a batch. `outcomes` has the order of its items."""

    outcomes: list[Outcome]
    error: BaseException | None
    thread: Thread | None
    elapsed: float
    traceparent: str | None


class BatchRunner:
    """Runs batch handlers."""

    def __init__(self, rules: Rules, threads: Threads, tracing: Tracing) -> None:
        self._rules, self._threads, self._tracing = rules, threads, tracing

    async def run(
        self,
        handler: Handler,
        context: BatchContext,
        claims: Sequence[Claimed],
        events: list[object],
        task: "asyncio.Task[None]",
    ) -> FinishedBatch:
        """Calls the handler with the events of the claims. A cancellation of `task`, the worker's slot, releases the items."""
        started = time.monotonic()
        call = partial(self._invoke, handler, context, events, task)
        # The fields of the slot's last delivery do not apply to a batch.
        unbind_contextvars(*_OF_ONE_DELIVERY)
        bound = bind_contextvars(consumer=handler.name, queue=context.queue, batch=len(events))
        try:
            result, trace = await traced_batch(self._tracing, claims, call)
        finally:
            reset_contextvars(**bound)
        failures = result.failures if isinstance(result, BatchResult) else {}
        outcomes = [failures.get(index, result.outcome) for index in range(len(events))]
        return FinishedBatch(outcomes, result.error, result.thread, time.monotonic() - started, trace)

    async def _invoke(
        self, handler: Handler, context: BatchContext, events: list[object], task: "asyncio.Task[None]"
    ) -> RunResult:
        try:
            result = await self._call(handler, context, events, lambda: task.cancelling() > 0)
        except asyncio.CancelledError as cancelled:
            result = cancelled_run(cancelled, task)
        return released_run(result, task) if task.cancelling() else result

    async def _call(
        self, handler: Handler, context: BatchContext, events: list[object], is_cancelled: Callable[[], bool]
    ) -> RunResult:
        """Calls the handler and classifies how it ended. Cancellation is passed on: it is no outcome."""
        size, surrounding = len(events), sys.exception()
        fields: dict[str, object] = {"consumer": handler.name, "queue": context.queue, "size": size}
        # The handler may change its list.
        arguments = (context, list(events)) if handler.takes_context else (list(events),)
        try:
            result = await call_function(handler, arguments, {}, self._threads, fields)
            check_returned(handler, result)
            if isinstance(result, BatchError):
                raise result
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BatchError as error:
            if unknown := [index for index in error.errors if not 0 <= index < size]:
                wrong = ConfigurationError(
                    f"consumer {handler.name} raised BatchError for item {unknown[0]}, but the batch has items 0 to "
                    f"{size - 1}; use the index of the item in the list, which starts at 0"
                )
                wrong.__cause__ = error
                return failed(wrong, surrounding, handler, self._rules)
            return self._partly_failed(error, handler, is_cancelled())
        except BaseException as error:  # noqa: BLE001
            return failed(error, surrounding, handler, self._rules)
        if isinstance(result, Signal):
            return RunResult(outcome_of(result, handler.rules, self._rules, hide=hidden()), result)
        return RunResult(Succeeded())

    def _partly_failed(self, error: BatchError, handler: Handler, is_cancelled: bool) -> BatchResult:
        failures = {
            index: outcome_of(one, handler.rules, self._rules, hide=hidden()) for index, one in error.errors.items()
        }
        if is_cancelled:
            # How a handler reacts to its cancellation does not count as a failure of its items.
            failures = {
                index: Released(started=True) if isinstance(outcome, Failed) else outcome
                for index, outcome in failures.items()
            }
        return BatchResult(Succeeded(), error, failures=failures)
