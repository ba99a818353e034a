"""The context of a run: what a handler knows about its delivery, and how it completes it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.errors import AlreadyCompleted, AlreadyHandled, ConfigurationError, LeaseLost
from holdfast.core.key import check_key
from holdfast.core.progress import check_progress
from holdfast.core.values.arguments import requires_conn, requires_own_conn
from holdfast.engine.execution.cancellation import is_cancelled
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.handlers.progress import ProgressWriter, RunProgress
from holdfast.stores.connections.caller_transaction import bind, bind_sync
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.deliveries.dedupe import is_rerun
from holdfast.stores.deliveries.settle import complete
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

IDLE_TIMEOUT = timedelta(seconds=30)
"""The default of how long a transaction may stay idle after `complete`; the runs of a worker use its lease instead."""

NO_RESULT: Any = object()
"""Stands for a result that was not given; None is a result."""


class Publisher(Protocol):
    """Publishes for a context; the app implements it."""

    @property
    def publish(self) -> Callable[..., Awaitable[Any]]: ...

    @property
    def sync(self) -> Any: ...


class Context:
    """One delivery as its handler sees it. `attempt` counts runs from 1."""

    __slots__ = (
        "_by_key",
        "_has_completed",
        "_idle_timeout",
        "_keep_run",
        "_max_attempts",
        "_progress",
        "_publisher",
        "_store",
        "_worker",
        "already_handled",
        "completing",
        "detail",
        "headers",
        "invocation",
        "reported",
    )

    suspension: object = None
    """What a step of a workflow waits for; other handlers do not wait."""

    keeps_result = False
    """Whether the return value is stored; then `returned` gets it."""

    rebuilding = False
    """Whether a projector is being rebuilt: its handler then writes into the new result."""

    def __init__(
        self,
        invocation: Invocation,
        worker: str,
        store: Store,
        publisher: Publisher | None,
        max_attempts: int,
        *,
        keep_run: bool = False,
        by_key: bool = False,
        idle_timeout: timedelta = IDLE_TIMEOUT,
        progress: ProgressWriter | None = None,
    ) -> None:
        self._keep_run, self._by_key, self._idle_timeout, self._progress = keep_run, by_key, idle_timeout, progress
        self.invocation = invocation
        self._worker = worker
        self._store = store
        self._publisher = publisher
        self._max_attempts = max_attempts
        self.headers: Mapping[str, str] = invocation.correlation
        self.completing = False
        """Set once `complete` was called: the store then decides the outcome, not the return of the handler."""
        self._has_completed = False
        self.already_handled = False
        """Set once `complete` found its key handled: the effect exists already, and this delivery is done."""
        self.detail: Mapping[str, object] | None = None
        """A few JSON values that the run record stores in addition to the outcome."""
        self.reported: RunProgress | None = None
        """What `progress` reported last."""

    @property
    def sync(self) -> "SyncContext":
        """The same methods for a plain function."""
        return SyncContext(self)

    @property
    def claim(self) -> Claim:
        """The right to settle this delivery, as long as its fence matches the row's."""
        return Claim(self.invocation.id, self._worker, self.invocation.fence)

    @property
    def delivery_id(self) -> UUID:
        return self.invocation.id

    @property
    def message_id(self) -> UUID:
        """The same in every retry and replay: use it as an idempotency key for other systems."""
        return self.invocation.message_id

    @property
    def attempt(self) -> int:
        return self.invocation.attempts

    @property
    def max_attempts(self) -> int:
        return self._max_attempts

    @property
    def type(self) -> str:
        return self.invocation.type

    @property
    def source(self) -> str:
        return self.invocation.source

    @property
    def key(self) -> str | None:
        return self.invocation.key

    @property
    def consumer(self) -> str:
        return self.invocation.consumer

    @property
    def queue(self) -> str:
        return self.invocation.queue

    @property
    def generation(self) -> int:
        return self.invocation.generation

    @property
    def occurred_at(self) -> datetime:
        return self.invocation.occurred_at

    @property
    def fence(self) -> int:
        return self.invocation.fence

    @property
    def cancelled(self) -> bool:
        """Whether this run was cancelled, by an operator or `handle.cancel()`: nothing that it returns is stored any more.

        The worker reads it when it renews its lease, a quarter of the lease later at most. An async handler then gets a
        `CancelledError`. A plain function runs in a thread, which cannot be stopped: check this flag where it can end early.
        """
        return is_cancelled((self.delivery_id, self.fence))

    @requires_own_conn
    async def complete(self, *, conn: Any, key: str | None = None, result: object = NO_RESULT) -> None:
        """Marks this delivery delivered in the handler's transaction: effect and outcome commit together.

        A handler that keeps its results (`result="1h"`) passes its `result` here, which commits at the same time; what
        the function returns afterwards is ignored.

        `key` is an external id to handle only once (with the message's source); without it the message itself is the
        key. Raises `LeaseLost`, `AlreadyCompleted` or `AlreadyHandled`; the database has then rolled back the
        transaction, and catching the error commits nothing. Commit soon: PostgreSQL ends a session whose transaction stays idle for a lease
        after this call, so that a lost host does not keep the delivery locked.
        """
        completion = self._with_result(self._completion(key), result)
        adapter = await bind(self._store, conn, "ctx.complete")
        with self._one_completion():
            await run_on_async(completion, self._store.dialect, adapter)

    def _complete_sync(self, conn: Any, key: str | None, result: object = NO_RESULT) -> None:
        completion = self._with_result(self._completion(key), result)
        adapter = bind_sync(self._store, conn, "ctx.complete")
        with self._one_completion():
            run_on(completion, self._store.dialect, adapter)

    @contextmanager
    def _one_completion(self) -> Iterator[None]:
        """Around a call of the store: names a second completion as the cause of its error.

        A second call is not refused beforehand: the handler may repeat a transaction that was rolled back.
        """
        self.completing = True
        try:
            yield
        except (LeaseLost, AlreadyHandled) as error:
            if self._has_completed:
                # Not `already_handled`: the key may be that of the first call, whose effect is rolled back with it.
                raise AlreadyCompleted(self.delivery_id, self.fence) from error
            self.already_handled = isinstance(error, AlreadyHandled)
            raise
        self._has_completed = True

    def returned(self, result: object) -> None:
        """Takes what the function returned; a context that keeps results overrides it."""

    def _with_result(self, completion: Operation[None], result: object) -> Operation[None]:
        if result is not NO_RESULT:
            raise ConfigurationError(
                f"ctx.complete(result=...) needs a handler that keeps its results; declare {self.consumer} with "
                "result='1h', or leave the result out"
            )
        return completion

    def _completion(self, key: str | None) -> Operation[None]:
        if key is None and self._by_key:
            key = self.key
        handled = None if key is None else (self.consumer, self.source, check_key(key))
        return complete(self.claim, self._idle_timeout, handled, keep_run=self._keep_run)

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Reports how far this run is, from 0 to 1: `await ctx.progress(0.4, "charging")`. `handle.progress()` reads it.

        It waits for nothing, so it may be called as often as wanted: about once a second the worker writes the latest report
        of each run. A run that lost its lease writes nothing. The report is removed once the job is delivered; a failed run
        keeps its last one until the next run starts. Without a delivery (direct consumers, rebuilds, reactions) nothing is
        stored.
        """
        self._report(fraction, note)

    def _report(self, fraction: float, note: str | None) -> None:
        checked = check_progress(fraction, note)
        if self._progress is not None:
            self._progress.report(self, checked, note)

    async def rerun(self) -> bool:
        """Whether an operator requested another run of this delivery although it was done."""
        return await self._store.run(is_rerun(self.consumer, self.delivery_id))

    @requires_conn
    async def publish(self, event: object, payload: object = None, /, *, conn: Any, **options: Any) -> Any:
        """Publishes with this delivery's correlation ids; as `Holdfast.publish`."""
        if self._publisher is None:
            raise ConfigurationError("this context has no app to publish with; publish with hf.publish instead")
        return await self._publisher.publish(event, payload, conn=conn, **options)


class SyncContext:
    """The blocking methods of a context."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @requires_own_conn
    def complete(self, *, conn: Any, key: str | None = None, result: object = NO_RESULT) -> None:
        """`Context.complete`, blocking."""
        self._context._complete_sync(conn, key, result)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """`Context.progress`, from any thread."""
        self._context._report(fraction, note)

    @requires_conn
    def publish(self, event: object, payload: object = None, /, *, conn: Any, **options: Any) -> Any:
        """`Context.publish`, blocking."""
        publisher = self._context._publisher
        if publisher is None:
            raise ConfigurationError("this context has no app to publish with; publish with hf.publish instead")
        return publisher.sync.publish(event, payload, conn=conn, **options)
