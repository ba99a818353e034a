"""Registers what an app declares, before its first publish or claim."""

import threading
from collections.abc import Mapping, Sequence

from holdfast.core.errors import ConfigurationError
from holdfast.core.flow import FlowSettings, Queue
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.runtime.redactions import DeclaredRedactions
from holdfast.runtime.store_factory import is_embedded, migrate_async, migrate_blocking
from holdfast.stores.connections.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.event_log.projection import with_projectors
from holdfast.stores.messages.registry import register, without_queue_flow
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.definition import DeclaredWorkflow, with_workflows


class Registration:
    """Creates the tables (SQLite) and stores handlers, subscriptions and redactions.

    On SQLite it happens inside the caller's transaction, if there is one: that transaction has the only write lock.
    """

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        redactions: DeclaredRedactions,
        generation: int,
        queues: Sequence[Queue] = (),
    ) -> None:
        self._store, self._handlers, self._redactions, self._generation = store, handlers, redactions, generation
        self._queues = {queue.name: None if queue.flow is None else queue.flow.text for queue in queues}
        self._registered: tuple[str, ...] | None = None
        self.flows: dict[str, FlowSettings] = {}
        """The flow settings of the app's handlers; complete before the first publish."""
        self._lock = threading.Lock()

    @property
    def is_complete(self) -> bool:
        """Whether all declarations are committed; those in a caller's transaction may still roll back."""
        return self._redactions.stored and self._registered == tuple(self._handlers)

    async def prepare(self, conn: AsyncConnection | None = None) -> None:
        """Registers what is not registered yet."""
        if self.is_complete:
            return
        if conn is None or not is_embedded(self._store):
            await Threads.run_once("holdfast-prepare", self._prepare)
            return
        await migrate_async(self._store, conn)
        await run_on_async(self._register(), self._store.dialect, conn)

    def prepare_sync(self, conn: Connection | None = None) -> None:
        """`prepare`, blocking."""
        if self.is_complete:
            return
        if conn is None or not is_embedded(self._store):
            self._prepare()
            return
        migrate_blocking(self._store, conn)
        run_on(self._register(), self._store.dialect, conn)

    def create_tables(self) -> None:
        """Creates the tables of an embedded store, unless `prepare` did."""
        if self._registered is None and is_embedded(self._store):
            self._store.migrate()

    def _prepare(self) -> None:
        with self._lock:
            declared = tuple(self._handlers)
            if not self.is_complete:
                if is_embedded(self._store):
                    self._store.migrate()
                else:
                    self._store.check_schema()
                registration, redactions = self._register(), self._redactions.own
                self._store.run_sync(registration)
                self._registered = declared
                self._redactions.learn(redactions)

    def _register(self) -> Operation[bool]:
        handlers = self._handlers.values()
        refusals: dict[str, str] = {}
        for handler in handlers:
            debounced = handler.flow is not None and handler.flow.debounce is not None
            if handler.batch is None and not debounced:
                continue
            refusal = (
                f"{handler.kind} {handler.name} has {'debounce' if debounced else 'batch'}=, and queue {handler.queue} has a "
                "limit or rate, which cannot be combined; give the handler another queue="
            )
            if self._queues.get(handler.queue) is not None:
                raise ConfigurationError(refusal)
            if handler.queue not in self._queues:
                refusals[handler.queue] = f"{refusal}, or declare Queue({handler.queue!r}) to remove the stored limit"
        self.flows.update((handler.name, handler.flow) for handler in handlers if handler.flow is not None)
        self._redactions.add(one for handler in handlers if handler.event is not None for one in handler.event.redact)
        registration = register(
            [handler.declaration for handler in handlers],
            [subscription for handler in handlers for subscription in handler.subscriptions],
            self._generation,
            self._redactions.own,
            self._queues,
        )
        if refusals:
            registration = without_queue_flow(registration, refusals)
        workflows = {
            handler.step.workflow.name: handler.step.workflow for handler in handlers if handler.step is not None
        }
        registration = with_workflows(
            registration, [DeclaredWorkflow(one.graph, one.compatible_with) for one in workflows.values()]
        )
        return with_projectors(registration, [handler.name for handler in handlers if handler.kind is Kind.PROJECTOR])
