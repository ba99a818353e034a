"""The dependencies of a worker, provided by the app."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from holdfast.core.events.payload import MAX_BYTES
from holdfast.core.failures.classify import Rules
from holdfast.core.redaction.redact import Redactor
from holdfast.engine.execution.runner import DedupeWindow
from holdfast.engine.handlers.context import Publisher
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.alert import Alerts
from holdfast.engine.telemetry.meter import Meter
from holdfast.engine.telemetry.tracing import Tracing
from holdfast.stores.protocol import Store

Probe = Callable[[], Awaitable[bool] | bool]
"""Returns whether a resource is available; plain (it runs in a thread) or async. An exception means unavailable."""


class PeriodicTask(Protocol):
    """Work that a worker repeats besides its deliveries: cron, pruning, quarantine."""

    @property
    def interval(self) -> timedelta: ...

    async def perform(self, worker: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """The store, the handlers and the services they need."""

    store: Store
    lease_store: Store
    handlers: Mapping[str, Handler]
    rules: Rules
    alerts: Alerts
    window: DedupeWindow
    publisher: Publisher | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    periodic_tasks: tuple[PeriodicTask, ...] = ()
    meter: Meter = field(default_factory=Meter)
    tracing: Tracing = field(default_factory=Tracing)
    batches: Mapping[str, Handler] = field(default_factory=dict)
    """The batch handlers by name."""
    redactor: Callable[[], Redactor] = Redactor
    """The current redactions; they may grow while the worker runs."""
    receiving: Callable[[], bool] = lambda: False
    """Whether broker consumers may still store work: a worker that runs until idle waits for them."""
    max_result: int = MAX_BYTES
    """The size of a result as JSON, in bytes."""
    announce_result: Callable[[], None] = lambda: None
    """Called in the worker's loop after a delivery of a handler with results has ended."""
    woken: Callable[[], None] = lambda: None
    """Called in the worker's loop after a possible publish."""
