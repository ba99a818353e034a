"""What a worker needs of the application around it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from holdfast.core.failures.classify import Rules
from holdfast.core.redaction.redact import Redactor
from holdfast.engine.alert import Alerts
from holdfast.engine.context import Publisher
from holdfast.engine.handler import Handler
from holdfast.engine.meter import Meter
from holdfast.engine.runner import DedupeWindow
from holdfast.engine.tracing import Tracing
from holdfast.stores.protocol import Store

Probe = Callable[[], Awaitable[bool] | bool]
"""Says whether a resource is well; plain (it runs in a thread) or async. Raising means that it is not."""


class PeriodicTask(Protocol):
    """Something a worker does from time to time beside its deliveries: cron, pruning, watching suspects."""

    @property
    def interval(self) -> timedelta: ...

    async def perform(self, worker: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """The store and the handlers, and what goes with them."""

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
    redactor: Callable[[], Redactor] = Redactor
    """What knows the secrets of messages now; it may learn of more."""
    receiving: Callable[[], bool] = lambda: False
    """Whether something beside the worker may still bring work: one that is to end when idle waits for it."""
    woken: Callable[[], None] = lambda: None
    """Called in the worker's loop whenever something may have been published."""
