"""The test harness. Nothing is faked: payloads pass through JSON, the database decides, a real worker runs handlers."""

import contextlib
import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from holdfast.app.holdfast import Holdfast
from holdfast.app.jobs.job import Job
from holdfast.app.workflows.workflow import Workflow
from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.core.events.event import event_type
from holdfast.core.message import Message
from holdfast.core.outcome import LeaseExpired
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.engine.batches.context import BatchContext
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.settlement.builder import SettlementBuilder
from holdfast.engine.telemetry.alert import Alerts
from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.deliveries.claim import rescue
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.operation import Operation
from holdfast.stores.queries.query import Filter, deliveries, messages, next_due_in
from holdfast.stores.queries.time_travel import abandon, drop_schema, orphan, travel
from holdfast.stores.workflows.query import workflow_run

_LEASE = timedelta(seconds=30)
_FOREVER = timedelta(days=20_000)
"""A step that waits without a time-out is due later than this."""
_REAPER = "holdfast-test-harness"


class Crash(BaseException):
    """Simulates the death of a worker process: no handler catches it, and its outcome is refused."""


class Clock:
    """Advances time by moving all stored times back: the database's clock still decides."""

    def __init__(self, app: Holdfast) -> None:
        self._app, self._store = app, app.store

    def advance(self, by: Duration) -> None:
        """Moves all stored times back by `by`: retries become due, leases expire, schedules have missed occurrences,
        and open circuits may be probed."""
        self._store.run_sync(travel(to_timedelta(by, name="by")))
        self._app._breakers.invalidate()


class Harness:
    """An app on a separate store, with assertions, injected failures and a clock that can be advanced."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.clock = Clock(app)

    def published(self, event: object, **fields: object) -> list[Message]:
        """The messages of an event class or type whose payload has these fields, newest first."""
        name = event if isinstance(event, str) else event_type(event if isinstance(event, type) else type(event)).name
        found = self.app.store.run_sync(messages(type=name, limit=1000))
        return [message for message in found if _has(orjson.loads(message.payload), fields)]

    def assert_published(self, event: object, **fields: object) -> Message:
        """Fails unless such an event was published and committed; returns the newest."""
        if found := self.published(event, **fields):
            return found[0]
        others = [f"{m.type} {m.payload}" for m in self.app.store.run_sync(messages(limit=20))]
        raise AssertionError(_missing(f"{_name(event)} with {fields}", others))

    def assert_enqueued(self, job: Job[Any, Any], **arguments: object) -> Message:
        """Fails unless the job was enqueued with these arguments and committed; returns the newest."""
        return self.assert_published(f"job.{job.name}", **arguments)

    def statuses(self, consumer: str) -> list[Status]:
        """The statuses of a consumer's deliveries, oldest first."""
        found = self.app.store.run_sync(deliveries(Filter(consumers=(consumer,)), limit=1000))
        return [listed.delivery.status for listed in reversed(found)]

    async def drain(self) -> None:
        """Runs all deliveries, and advances the clock through retry delays.

        Ends when every delivery is delivered or failed, or cannot run: paused, or without a handler.
        """
        options = WorkerOptions(until_idle=True, idle_limit=timedelta(0), cron=False, poll=timedelta(milliseconds=5))
        stuck = 0
        while stuck < 3:
            await self.app.work(options)
            await self._reap()
            wait = await self.app.store.run(next_due_in(sorted(self.app.handlers)))
            if wait is None or wait > _FOREVER:
                return
            stuck = 0 if wait > timedelta(0) else stuck + 1
            # What is due and did not run may wait for the rest of its batch.
            self.clock.advance((wait if wait > timedelta(0) else self._longest_batch()) + timedelta(milliseconds=2))

    async def run_workflow(
        self, workflow: Workflow, /, *args: Any, signals: Mapping[str, object] | None = None, **kwargs: Any
    ) -> Any:
        """Starts a run, sends it the `signals`, drains it, and returns its result.

        The clock is advanced for sleeps and waits.

        Raises `WorkflowFailed` if the run failed, and fails the test if it waits for a signal or a trigger that was
        not sent.
        """
        run = await workflow.start(*args, **kwargs)
        for name, value in (signals or {}).items():
            await run.signal(name, value)
        await self.drain()
        if (await run.status()).is_active:
            shown = await self.app.store.run(workflow_run(run.id))
            states = ", ".join(f"{step.name} is {step.state}" for step in shown.steps)
            raise AssertionError(f"run {run.id} of workflow {workflow.name} has not ended: {states}")
        return await run.result()

    def _longest_batch(self) -> timedelta:
        batches = (handler.batch for handler in self.app.handlers.values())
        return max((batch.within for batch in batches if batch is not None), default=timedelta(0))

    def fail(
        self, consumer: str, error: type[Exception] | Exception, times: int = 1
    ) -> contextlib.AbstractContextManager[None]:
        """The next `times` runs of a consumer raise this error instead of running."""

        def failing(_context: Context | BatchContext) -> None:
            raise error

        return self._before_runs(consumer, times, failing)

    def crash(self, consumer: str, times: int = 1) -> contextlib.AbstractContextManager[None]:
        """Ends the next `times` runs of a consumer as if their worker had been killed: no outcome is stored, the attempt counts,
        and another worker takes the delivery over."""

        def dying(context: Context | BatchContext) -> None:
            self._each_delivery(context, orphan)
            raise Crash

        return self._before_runs(consumer, times, dying)

    def lose_lease(self, consumer: str, times: int = 1) -> contextlib.AbstractContextManager[None]:
        """In the next `times` runs another worker takes over the delivery before the handler starts: the handler's
        outcome is refused, and the delivery runs again."""

        return self._before_runs(consumer, times, lambda context: self._each_delivery(context, abandon))

    def _each_delivery(self, context: Context | BatchContext, change: Callable[[UUID], Operation[None]]) -> None:
        for id in _delivery_ids(context):
            self.app.store.run_sync(change(id))

    @contextlib.contextmanager
    def _before_runs(
        self, consumer: str, times: int, before: Callable[[Context | BatchContext], None]
    ) -> Iterator[None]:
        """Calls `before` at the start of the next `times` runs of a consumer."""
        original = self.app.handlers.get(consumer)
        if original is None:
            raise NotFound("consumer", consumer, "pass the name of a handler of the app")
        self.app.handlers[consumer] = _preceded(original, times, before)
        try:
            yield
        finally:
            self.app.handlers[consumer] = original

    async def _reap(self) -> None:
        """Takes over the deliveries of crashed runs without waiting for their lease."""
        settlements = SettlementBuilder(_REAPER, Alerts(), self.app.meter, self.app.handlers)
        taken = await self.app.store.run(rescue(_REAPER, _LEASE, 500))
        acks = [settlements.build(claimed, LeaseExpired(), policy)[1] for claimed, policy in taken]
        if acks:
            await self.app.store.run(settle(_REAPER, [ack.settlement for ack in acks]))
            for ack in acks:
                if ack.written is not None:
                    ack.written()


@contextlib.contextmanager
def bind_app(app: Holdfast, dsn: str) -> Iterator[Harness]:
    """Binds the app to a separate store inside the block: a file, or a PostgreSQL schema that is dropped at the end."""
    before = app._dsn, app.schema
    schema = "holdfast" if dsn.startswith("sqlite") else f"holdfast_test_{secrets.token_hex(6)}"
    app.rebind(dsn, schema)
    try:
        app.store.migrate()
        yield Harness(app)
    finally:
        if not dsn.startswith("sqlite"):
            app.store.run_sync(drop_schema())
        app.store.close_sync()
        app.rebind(*before)


def _preceded(handler: Handler, times: int, before: Callable[[Context | BatchContext], None]) -> Handler:
    """The handler, with `before` called at the start of its first `times` runs."""
    left = iter(range(times))

    def counted(context: Context | BatchContext) -> None:
        if next(left, None) is not None:
            before(context)

    def arguments(context: Context | BatchContext, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (context, *args) if handler.takes_context else args

    async def run_async(context: Context | BatchContext, *args: Any, **kwargs: Any) -> Any:
        counted(context)
        return await handler.function(*arguments(context, args), **kwargs)

    def run_plain(context: Context | BatchContext, *args: Any, **kwargs: Any) -> Any:
        counted(context)
        return handler.function(*arguments(context, args), **kwargs)

    function = run_async if inspect.iscoroutinefunction(handler.function) else run_plain
    return replace(handler, function=function, takes_context=True)


def _delivery_ids(context: Context | BatchContext) -> list[UUID]:
    return [item.delivery_id for item in context.items] if isinstance(context, BatchContext) else [context.delivery_id]


def _has(payload: object, fields: dict[str, object]) -> bool:
    return not fields or (
        isinstance(payload, dict) and all(name in payload and payload[name] == value for name, value in fields.items())
    )


def _name(event: object) -> str:
    return event if isinstance(event, str) else getattr(event, "__name__", type(event).__name__)


def _missing(expected: str, others: list[str]) -> str:
    seen = "\n  ".join(others) or "nothing at all"
    return f"{expected} was not published. The newest messages are:\n  {seen}"
