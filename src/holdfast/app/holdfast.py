"""`Holdfast`, the object a user holds: composes everything and chooses the store."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from holdfast.app.app_options import check_app_options, check_instance
from holdfast.app.breakers import Breakers
from holdfast.app.events import Events
from holdfast.app.handler_options import check_flag
from holdfast.app.hints import CommitHints
from holdfast.app.loop import log_if_failed, run_loop, running_loop, stopped_by_signals
from holdfast.app.projectors import Projectors, projector_names
from holdfast.app.reactions import Reactions
from holdfast.app.redaction import DeclaredRedactions
from holdfast.app.router import Router
from holdfast.app.store_factory import generation_from_environment, migrate_async, migrate_blocking, open_store
from holdfast.app.sync import SyncHoldfast
from holdfast.app.webhooks import Webhooks
from holdfast.app.worker_runner import run_worker
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import MAX_BYTES
from holdfast.core.failures.classify import Classifier, Rules
from holdfast.core.message import check_generation
from holdfast.core.names import check_name
from holdfast.core.retry import RetryPolicy
from holdfast.engine.alert import AlertHook, Alerts
from holdfast.engine.deps import Probe
from holdfast.engine.meter import Meter
from holdfast.engine.options import WorkerOptions
from holdfast.engine.parent_watchdog import parent_pid, watch_parent
from holdfast.engine.threads import Threads
from holdfast.engine.tracing import Tracing
from holdfast.engine.worker import Worker
from holdfast.idempotency.dedupe import Dedupe, StoreDedupe
from holdfast.ops.service import Operations
from holdfast.outbound.breaker import BreakerOptions, CircuitBreaker
from holdfast.outbound.circuits import StoreCircuits
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.produce.producer import Producer
from holdfast.stores.admin.alert import AlertDecision, decide_alert
from holdfast.stores.connections.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.event_log.projection import with_projectors
from holdfast.stores.messages.publish import Messages, Published
from holdfast.stores.messages.registry import register
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

Classes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class _Binding:
    """What depends on the store an app is bound to."""

    store: Store
    producer: Producer
    window: Dedupe
    reactions: Reactions


class Holdfast(Router):
    """Reliable events, jobs and commands on one database.

    >>> hf = Holdfast("sqlite:///shop.db")

    `dsn` is `sqlite:///path` or `postgresql://…`, from the environment variable `HOLDFAST_DSN` when left out. `source`
    names this producer; an event's key is unique within it, a job's within the job's name. Nothing is connected until it is used.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        source: str = "app",
        schema: str = "holdfast",
        generation: int | None = None,
        max_payload: int = MAX_BYTES,
        validate: bool = True,
        dead_on: Classes = (),
        retry_on: Classes = (),
        block_on: Classes = (),
        park_on: Classes = (),
        classify: Classifier | None = None,
        queues: Mapping[str, RetryPolicy] | None = None,
        alerts: Sequence[AlertHook] = (),
        probes: Mapping[str, Probe] | None = None,
        dedupe: Dedupe | None = None,
        keep: Duration | None = "30d",
        webhooks: WebhookOptions | None = None,
        redact: Sequence[str] = (),
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__()
        check_app_options(
            dsn=dsn,
            schema=schema,
            max_payload=max_payload,
            queues=queues,
            alerts=alerts,
            probes=probes,
            dedupe=dedupe,
        )
        check_instance("webhooks", webhooks, WebhookOptions)
        check_instance("tracing", tracing, Tracing)
        self._app = self
        self._dsn, self.schema = dsn, schema
        self.source = check_name("source", source)
        self.generation = check_generation(generation_from_environment() if generation is None else generation)
        self.rules = Rules(dead_on=dead_on, retry_on=retry_on, block_on=block_on, park_on=park_on, classify=classify)
        self.sync = SyncHoldfast(self)
        self.events = Events(self)
        self.webhooks = Webhooks(self, webhooks)
        self.projectors = Projectors(self)
        self._max_payload = max_payload
        self.validate = check_flag("validate", validate)
        self._queue_policies = dict(queues or {})
        self._probes = dict(probes or {})
        self._dedupe = dedupe
        self._keep = None if keep is None else to_timedelta(keep, name="keep")
        self._binding: _Binding | None = None
        self._breakers = Breakers(StoreCircuits(lambda: self.store, self._make_tables))
        self._redactions = DeclaredRedactions(redact)
        self.meter = Meter()
        self._alerts = Alerts(tuple(alerts), ask=self._alert_turn, called=self.meter.alerted)
        self._tracing = tracing or Tracing()
        self._exported = False
        self._workers: set[Worker] = set()
        self._hints = CommitHints(lambda: self.store)
        self._prepared: tuple[str, ...] | None = None
        self._preparing = threading.Lock()

    @property
    def dsn(self) -> str:
        """Where the store is. Looked up when it is first needed, so that importing an app needs no environment."""
        if not (dsn := self._dsn or os.environ.get("HOLDFAST_DSN")):
            raise ConfigurationError(
                "no store was named; pass Holdfast('sqlite:///app.db') or set HOLDFAST_DSN, for instance to "
                "postgresql://user@host/database"
            )
        return dsn

    @property
    def store(self) -> Store:
        return self._bound_to.store

    @property
    def _producer(self) -> Producer:
        return self._bound_to.producer

    @property
    def _bound_to(self) -> "_Binding":
        if self._binding is None:
            store = open_store(self.dsn, self.schema)
            producer = Producer(
                store,
                self.source,
                generation=self.generation,
                max_payload=self._max_payload,
                committed=self._wake,
                secret=self._redactions.add,
                validate=self.validate,
                declared=self.event_types,
            )
            window = self._dedupe or StoreDedupe(store)
            reactions = Reactions(self.reactions, self, store, self._redactions)
            self._binding = _Binding(store, producer, window, reactions)
        return self._binding

    def rebind(self, dsn: str | None, schema: str = "holdfast") -> None:
        """Moves the app to another store; what is open on the old one is the caller's to close. For tests."""
        self._dsn, self.schema = dsn, schema
        self._binding = self._prepared = None
        self._redactions.forget()
        self._breakers.invalidate()

    async def publish(
        self,
        event: object,
        payload: object = None,
        /,
        *,
        conn: Any,
        key: str | None = None,
        headers: Mapping[str, object] | None = None,
        occurred_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        validate: bool | None = None,
    ) -> Published:
        """Stores an event with a delivery for everyone subscribed, in `conn`'s transaction: both or neither.

        `conn=None` says aloud that it commits on its own. The same `key` again stores nothing and returns the first
        message; with another payload it raises `KeyConflict`.

        A payload that does not fit its event class raises `InvalidPayload`; `validate=False`, here or on the app, skips that.
        `retry` overrides, for this message, the policies of the consumers that are subscribed now.
        """
        message = self._producer.build(
            event, payload, key=key, headers=headers, occurred_at=occurred_at, retry=retry, validate=validate
        )
        return (await self._publish([message], conn))[0]

    async def publish_many(
        self,
        events: Sequence[object],
        *,
        conn: Any,
        headers: Mapping[str, object] | None = None,
        retry: RetryPolicy | None = None,
        validate: bool | None = None,
    ) -> list[Published]:
        """Stores many events at once; each is an instance, or a pair of name (or class) and payload."""
        messages = self._many(events, conn, headers=headers, retry=retry, validate=validate)
        return await self._publish(messages, conn, "hf.publish_many")

    def _many(self, events: Sequence[object], conn: Any, **options: Any) -> Messages:
        return self._producer.build_many(events, at_once=conn is not None or bool(self.reactions), **options)

    async def _publish(self, messages: Messages, conn: Any, call: str = "hf.publish") -> list[Published]:
        joined = None if conn is None else await self._producer.bind(conn, call)
        await self._prepare(joined)
        with self._tracing.publishing(messages) as messages:
            written = self._bound_to.reactions.plan(messages, conn)
            published = await self._producer.publish(messages, conn, joined, trusted=self._is_prepared)
        written(published)
        self.meter.published(len(published))
        return published

    def _publish_sync(self, messages: Messages, conn: Any, call: str = "hf.publish") -> list[Published]:
        joined = None if conn is None else self._producer.bind_sync(conn, call)
        self._prepare_sync(joined)
        with self._tracing.publishing(messages) as messages:
            written = self._bound_to.reactions.plan(messages, conn)
            published = self._producer.publish_sync(messages, conn, joined, trusted=self._is_prepared)
        written(published)
        self.meter.published(len(published))
        return published

    async def work(self, options: WorkerOptions | None = None, *, stop: asyncio.Event | None = None) -> None:
        """Runs a worker in this event loop until `stop` is set, or until idle if the options say so."""
        check_instance("options", options, WorkerOptions)
        check_instance("stop", stop, asyncio.Event)
        await run_worker(self, options, stop)

    def run(self, *, until_idle: bool = False, options: WorkerOptions | None = None) -> None:
        """Runs a worker until it is interrupted, or with `until_idle` until nothing is due within a minute.

        Waits through retry waits, ignores cron. Blocks; inside an event loop use `await hf.work(...)`.
        """
        check_instance("options", options, WorkerOptions)
        options = options or WorkerOptions()
        if until_idle:
            options = replace(options, until_idle=True, cron=False)
        if running_loop() is not None:
            raise TypeError("hf.run() blocks and an event loop is running here; use `await hf.work(...)`")
        run_loop(self._run(options))

    async def _run(self, options: WorkerOptions) -> None:
        stop = asyncio.Event()
        parent = parent_pid()
        watching = None if parent is None else asyncio.create_task(watch_parent(parent, stop))
        with stopped_by_signals(stop, self._stop_workers):
            try:
                await self.work(options, stop=stop)
            finally:
                if watching is not None:
                    watching.cancel()
                await self.close()

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None, *, workers: WorkerOptions | None = None) -> AsyncIterator[None]:
        """Opens the store for an application's life, and closes it; runs a worker in its loop if given options.

        `FastAPI(lifespan=hf.lifespan)`
        """
        check_instance("workers", workers, WorkerOptions)
        await self._prepare(None)
        stop = asyncio.Event()
        working = None if workers is None else asyncio.create_task(self.work(workers, stop=stop))
        if working is not None:
            working.add_done_callback(log_if_failed)
        try:
            yield
        finally:
            stop.set()
            try:
                if working is not None:
                    await working
            finally:
                await self.close()

    def breaker(self, name: str, **options: Unpack[BreakerOptions]) -> CircuitBreaker:
        """The circuit breaker of this name, kept in the store for all processes; the options are those given first."""
        return self._breakers.named(name, options)

    @property
    def ops(self) -> Operations:
        """What operators see and do: `await hf.ops.stats()`, blocking as `hf.ops.sync.stats()`."""
        return Operations(self.store, self._make_tables)

    def _make_tables(self) -> None:
        if self._embedded and self._prepared is None:
            self.store.migrate()

    async def close(self) -> None:
        """Closes the store's connections; they open again when needed."""
        await self._hints.drain()
        await self._bound_to.reactions.finish()
        await self.store.close()

    @property
    def _is_prepared(self) -> bool:
        """Whether everything declared is registered and committed; in a caller's transaction it may not stay."""
        return self._redactions.stored and self._prepared == tuple(self.handlers)

    async def _prepare(self, joined: AsyncConnection | None) -> None:
        if self._is_prepared:
            return
        if joined is None or not isinstance(self.store, SqliteStore):
            await Threads.run_once("holdfast-prepare", self._prepare_own)
            return
        await migrate_async(self.store, joined)
        await run_on_async(self._registration(), self.store.dialect, joined)

    def _prepare_sync(self, joined: Connection | None) -> None:
        """Makes tables (SQLite) and registers subscriptions before the first publish.

        On SQLite, inside the caller's transaction when it handed one in: it holds the only write lock there is.
        """
        if self._is_prepared:
            return
        if joined is None or not isinstance(self.store, SqliteStore):
            self._prepare_own()
            return
        migrate_blocking(self.store, joined)
        run_on(self._registration(), self.store.dialect, joined)

    def _prepare_own(self) -> None:
        with self._preparing:
            declared = tuple(self.handlers)
            if not self._is_prepared:
                if self._embedded:
                    self.store.migrate()
                else:
                    self.store.check_schema()
                registration, secret = self._registration(), self._redactions.own
                self.store.run_sync(registration)
                self._prepared = declared
                self._redactions.learn(secret)

    def _registration(self) -> Operation[bool]:
        handlers = self.handlers.values()
        self._redactions.add(one for handler in handlers if handler.event is not None for one in handler.event.redact)
        registration = register(
            [handler.declaration for handler in handlers],
            [subscription for handler in handlers for subscription in handler.subscriptions],
            self.generation,
            self._redactions.own,
        )
        return with_projectors(registration, projector_names(handlers))

    @property
    def _embedded(self) -> bool:
        return isinstance(self.store, SqliteStore)

    def _default_retry(self, queue: str) -> RetryPolicy:
        return self._queue_policies.get(queue) or RetryPolicy.exponential()

    async def _alert_turn(self, consumer: str, fingerprint: str, alike: int, quiet: timedelta) -> AlertDecision:
        return await self.store.run(decide_alert(consumer, fingerprint, alike, quiet))

    def _wake(self) -> None:
        for worker in list(self._workers):
            worker.wake()
        self._hints.send()
