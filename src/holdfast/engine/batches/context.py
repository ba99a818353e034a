"""The context of a batch: what a batch handler knows about its deliveries, and how it completes them together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from holdfast.core.decide import budget
from holdfast.core.delivery import Claim
from holdfast.core.errors import AlreadyCompleted, ConfigurationError, LeaseLost
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.arguments import requires_own_conn
from holdfast.engine.handlers.context import Publisher
from holdfast.stores.connections.caller_transaction import bind, bind_sync
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.deliveries.batch import complete_batch
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One delivery of a batch. `attempt` counts runs from 1."""

    delivery_id: UUID
    message_id: UUID
    """The same in every retry and replay: use it as an idempotency key for other systems."""
    type: str
    source: str
    key: str | None
    attempt: int
    max_attempts: int
    headers: Mapping[str, str]
    occurred_at: datetime


class BatchContext:
    """A batch as its handler sees it. `items` has the order of the list that the handler gets."""

    def __init__(
        self,
        claims: Sequence[Claimed],
        policy: RetryPolicy,
        worker: str,
        store: Store,
        publisher: Publisher | None,
        *,
        keep_run: bool,
        idle_timeout: timedelta,
    ) -> None:
        self._claims, self._policy, self._worker, self._store = claims, policy, worker, store
        self._publisher, self._keep_run, self._idle_timeout = publisher, keep_run, idle_timeout
        self.completing = False
        """Set once `complete` was called: the store then decides the outcomes, not the return of the handler."""
        self._has_completed = False

    @property
    def sync(self) -> "SyncBatchContext":
        """The same methods for a plain function."""
        return SyncBatchContext(self)

    @property
    def consumer(self) -> str:
        return self._claims[0].consumer

    @property
    def queue(self) -> str:
        return self._claims[0].queue

    @property
    def items(self) -> list[BatchItem]:
        """The deliveries of the batch; the index of one is its index in `BatchError`."""
        return [
            BatchItem(
                claimed.id,
                claimed.message_id,
                claimed.type,
                claimed.source,
                claimed.key,
                claimed.attempts,
                budget(claimed, self._policy),
                claimed.correlation,
                claimed.occurred_at,
            )
            for claimed in self._claims
        ]

    @property
    def claims(self) -> list[Claim]:
        """The rights to settle the deliveries, as long as their fences match the rows."""
        return [Claim(claimed.id, self._worker, claimed.fence) for claimed in self._claims]

    @requires_own_conn
    async def complete(self, *, conn: Any) -> None:
        """Marks every delivery of the batch delivered in the handler's transaction: effect and outcome commit together.

        Raises `LeaseLost` if one of them is lost, and `AlreadyCompleted` if this run has completed them; the database has
        then rolled back the transaction, and catching the error commits nothing. Commit soon, as after `Context.complete`.
        """
        adapter = await bind(self._store, conn, "ctx.complete")
        with self._one_completion():
            await run_on_async(self._completion(), self._store.dialect, adapter)

    def _complete_sync(self, conn: Any) -> None:
        adapter = bind_sync(self._store, conn, "ctx.complete")
        with self._one_completion():
            run_on(self._completion(), self._store.dialect, adapter)

    @contextmanager
    def _one_completion(self) -> Iterator[None]:
        """Names a second completion as the cause of the store's error."""
        self.completing = True
        try:
            yield
        except LeaseLost as lost:
            if self._has_completed:
                raise AlreadyCompleted(lost.delivery_id, lost.fence, lost.size) from lost
            raise
        self._has_completed = True

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Refused: a batch has no progress."""
        self._refuse_progress()

    def _refuse_progress(self) -> NoReturn:
        raise ConfigurationError(
            f"{self.consumer} takes batches, and a batch has no progress; leave ctx.progress out, or declare the "
            "handler without batch="
        )

    def _completion(self) -> Operation[None]:
        return complete_batch(self.claims, self._idle_timeout, keep_run=self._keep_run)

    async def publish(self, event: object, payload: object = None, /, *, conn: Any, **options: Any) -> Any:
        """Publishes like `Holdfast.publish`. A batch has no correlation ids: those of its items differ."""
        if self._publisher is None:
            raise ConfigurationError("this context has no app to publish with; publish with hf.publish instead")
        return await self._publisher.publish(event, payload, conn=conn, **options)


class SyncBatchContext:
    """The blocking methods of a batch context."""

    __slots__ = ("_context",)

    def __init__(self, context: BatchContext) -> None:
        self._context = context

    @requires_own_conn
    def complete(self, *, conn: Any) -> None:
        """`BatchContext.complete`, blocking."""
        self._context._complete_sync(conn)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Refused, as `BatchContext.progress`."""
        self._context._refuse_progress()

    def publish(self, event: object, payload: object = None, /, *, conn: Any, **options: Any) -> Any:
        """`BatchContext.publish`, blocking."""
        publisher = self._context._publisher
        if publisher is None:
            raise ConfigurationError("this context has no app to publish with; publish with hf.publish instead")
        return publisher.sync.publish(event, payload, conn=conn, **options)
