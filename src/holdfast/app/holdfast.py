"""`Holdfast`, the object that applications use: it connects the parts and chooses the store."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from holdfast.app.app_options import check_app_options, check_instance, declared_queues, names_worker_options
from holdfast.app.breakers import Breakers
from holdfast.app.context_manager import NoContextManager
from holdfast.app.declaration.flow_options import check_key_is_public
from holdfast.app.declaration.handler_options import check_flag
from holdfast.app.declaration.router import Router
from holdfast.app.events import Events
from holdfast.app.jobs.group import Group, JobCall, new_group
from holdfast.app.jobs.group_handle import GroupHandle
from holdfast.app.jobs.job_handle import wait_for_result
from holdfast.app.jobs.schedules import Schedules
from holdfast.app.projectors import Projectors
from holdfast.app.sync import SyncHoldfast
from holdfast.app.webhooks import Webhooks
from holdfast.app.worker.environment_check import warn_about_environment
from holdfast.app.worker.service_manager import ServiceManager
from holdfast.app.worker.worker_runner import run_worker
from holdfast.app.workflows.signal_types import FORCE, check_signal
from holdfast.core.encryption import Cipher
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import MAX_BYTES, decode
from holdfast.core.failures.classify import Classifier, Rules
from holdfast.core.flow import Queue, retention
from holdfast.core.message import check_generation
from holdfast.core.redaction.redact import Redaction
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.arguments import checks_options, requires_conn
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.alert import AlertHook, Alerts
from holdfast.engine.telemetry.meter import Meter
from holdfast.engine.telemetry.tracing import Tracing
from holdfast.engine.worker.deps import Probe
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.parent_watchdog import parent_pid, watch_parent
from holdfast.idempotency.dedupe import Dedupe, StoreDedupe
from holdfast.ops.service import Operations
from holdfast.outbound.breaker import BreakerOptions, CircuitBreaker
from holdfast.outbound.circuits import StoreCircuits
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.produce.producer import Producer
from holdfast.runtime.ambient_transaction import AmbientTransaction
from holdfast.runtime.commit_notifier import CommitNotifier
from holdfast.runtime.completion import CompletionWatcher
from holdfast.runtime.loop import call_when_set, log_if_failed, run_loop, running_loop, stopped_by_signals
from holdfast.runtime.reactions import Reactions
from holdfast.runtime.redactions import DeclaredRedactions
from holdfast.runtime.registration import Registration
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.store_factory import generation_from_environment, open_store, use_cipher
from holdfast.stores.admin.alert import AlertDecision, decide_alert
from holdfast.stores.messages.publish import Published
from holdfast.stores.protocol import Store

Classes = tuple[type[BaseException], ...]


class Holdfast(NoContextManager, Router):
    """Reliable events, jobs and commands on one database.

    Examples:
        >>> hf = Holdfast("sqlite:///shop.db")

    `dsn` is `sqlite:///path` or `postgresql://…`, by default the environment variable `HOLDFAST_DSN`. `source` names
    this producer: the key of an event is unique within its source, the key of a job within the name of the job.
    Connections open at their first use.
    """

    @checks_options
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
        queues: Mapping[str, RetryPolicy] | Sequence[Queue] | None = None,
        alerts: Sequence[AlertHook] = (),
        probes: Mapping[str, Probe] | None = None,
        dedupe: Dedupe | None = None,
        cipher: Cipher | None = None,
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
            alerts=alerts,
            probes=probes,
            dedupe=dedupe,
            cipher=cipher,
        )
        check_instance("webhooks", webhooks, WebhookOptions)
        check_instance("tracing", tracing, Tracing)
        self._dsn, self.schema = dsn, schema
        self.source = check_name("source", source)
        self.generation = check_generation(generation_from_environment() if generation is None else generation)
        self.rules = Rules(dead_on=dead_on, retry_on=retry_on, block_on=block_on, park_on=park_on, classify=classify)
        self.sync = SyncHoldfast(lambda: self._runtime)
        self.events = Events(lambda: self._runtime)
        self.webhooks = Webhooks(lambda: self._runtime, self.source, webhooks)
        self.projectors = Projectors(lambda: self._runtime)
        self.schedules = Schedules(lambda: self._runtime, self.cron_schedules, self.source)
        self._max_payload = max_payload
        self.validate = check_flag("validate", validate)
        self._queues = declared_queues(queues)
        self._queue_policies = {queue.name: queue.retry for queue in self._queues}
        self._queue_keeps = {q.name: retention("keep", q.keep) for q in self._queues if q.keep is not None}
        self._probes = dict(probes or {})
        self._dedupe = dedupe
        self.cipher = cipher
        """Encrypts payloads, results, stored responses and webhook secrets; None: they are stored as they are."""
        self._keep = None if keep is None else to_timedelta(keep, name="keep")
        self._bound: Runtime | None = None
        self._ambient: AmbientTransaction | None = None
        self._breakers = Breakers(StoreCircuits(lambda: self.store, lambda: self._runtime.registration.create_tables()))
        self._redactions = DeclaredRedactions(redact)
        self.meter = Meter()
        self._alerts = Alerts(tuple(alerts), ask=self._decide_alert, called=self.meter.alerted)
        self._tracing = tracing or Tracing()

    @property
    def dsn(self) -> str:
        """The address of the store. It is read at its first use, so that importing an app needs no environment."""
        if not (dsn := self._dsn or os.environ.get("HOLDFAST_DSN")):
            raise ConfigurationError(
                "no store is configured; pass Holdfast('sqlite:///app.db') or set HOLDFAST_DSN, for instance to "
                "postgresql://user@host/database; commands of holdfast also take --dsn"
            )
        return dsn

    @property
    def store(self) -> Store:
        return self._runtime.store

    @property
    def _runtime(self) -> Runtime:
        if self._bound is None:
            store = use_cipher(self._open_store(), self.cipher)
            registration = Registration(store, self.handlers, self._redactions, self.generation, self._queues)
            completions = CompletionWatcher(store)
            notifier = CommitNotifier(store, completions)
            producer = Producer(
                store,
                self.source,
                generation=self.generation,
                max_payload=self._max_payload,
                registration=registration,
                notify=notifier.notify,
                redact=self._redactions.add,
                validate=self.validate,
                declared=self.event_types,
            )
            self._bound = Runtime(
                store=store,
                producer=producer,
                registration=registration,
                reactions=Reactions(self.reactions, self, store, self._redactions),
                notifier=notifier,
                completions=completions,
                dedupe=self._dedupe or StoreDedupe(store),
                publisher=self,
                handlers=self.handlers,
                broker_sources=self.broker_sources,
                relays=self.relays,
                rules=self.rules,
                probes=self._probes,
                alerts=self._alerts,
                meter=self.meter,
                tracing=self._tracing,
                redactions=self._redactions,
                generation=self.generation,
                max_payload=self._max_payload,
                retention=self._keep,
                limited_queues={queue.name for queue in self._queues if queue.limit is not None},
                ambient=self._ambient,
            )
        return self._bound

    def _open_store(self, **options: Any) -> Store:
        return open_store(self.dsn, self.schema, **options)

    def _add(self, handler: Handler) -> None:
        check_key_is_public(handler, self._redactions.own)
        super()._add(handler)

    @property
    def _redacted(self) -> frozenset[Redaction]:
        return self._redactions.own

    def rebind(self, dsn: str | None, schema: str = "holdfast") -> None:
        """Moves the app to another store, for tests. The caller closes the old one."""
        self._dsn, self.schema = dsn, schema
        self._bound = None
        self._redactions.forget()
        self._breakers.invalidate()

    @requires_conn
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
        """Stores an event and a delivery for each subscribed consumer, in `conn`'s transaction, which the caller commits.

        Without a subscribed consumer, the event is stored with no delivery; a consumer that subscribes later gets it.
        `conn=None` commits in a separate transaction. A repeated `key` stores nothing and returns the first message; with
        another payload it raises `KeyConflict`.

        A payload that does not fit its event class raises `InvalidPayload`; `validate=False`, here or on the app, skips the check.
        `retry` overrides, for this message, the policies of the consumers that are subscribed now.
        """
        runtime = self._runtime
        message = runtime.producer.build(
            event, payload, key=key, headers=headers, occurred_at=occurred_at, retry=retry, validate=validate
        )
        return (await runtime.publish([message], conn))[0]

    @requires_conn
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
        runtime = self._runtime
        messages = runtime.build_many(events, conn, headers=headers, retry=retry, validate=validate)
        return await runtime.publish(messages, conn, "hf.publish_many")

    async def result(self, id: UUID, *, consumer: str | None = None, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Waits for a delivery of the message `id` to end and returns what its handler returned, as JSON values.

        `id` is what `enqueue` or `publish` returned; the result of an event needs its `consumer`. The handler keeps its
        results with `result=`. The errors are those of `JobHandle.result`.
        """
        runtime = self._runtime
        return decode(await runtime.completions.run(wait_for_result(runtime, id, consumer, timeout)))

    def group(self, calls: Iterable[JobCall], /, *, on_failure: str = "dead") -> Group:
        """Jobs that are enqueued together: `await hf.group([resize.call(i) for i in images]).then(report).enqueue()`.

        The job in `then` runs once, after all of them have ended. If one of them failed or was cancelled, it becomes a dead
        letter (`on_failure="dead"`), is discarded (`"skip"`), or still runs (`"run"`).
        """
        return new_group(lambda: self._runtime, calls, on_failure)

    def group_handle(self, id: UUID) -> GroupHandle:
        """The handle of a group that was enqueued elsewhere; `id` is the id of its handle."""
        return GroupHandle(lambda: self._runtime, id)

    @names_worker_options
    @checks_options
    async def work(self, options: WorkerOptions | None = None, *, stop: asyncio.Event | None = None) -> None:
        """Runs a worker in this event loop until `stop` is set, or until idle if the options say so."""
        check_instance("options", options, WorkerOptions)
        check_instance("stop", stop, asyncio.Event)
        await run_worker(self, self._runtime, options, stop)

    @names_worker_options
    @checks_options
    def run(self, *, until_idle: bool = False, options: WorkerOptions | None = None) -> None:
        """Runs a worker until it is interrupted, or with `until_idle` until nothing is due within a minute.

        With `until_idle` it waits for retries and ignores cron. It blocks; in an event loop use `await hf.work(...)`.
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
        if not options.suspects:
            warn_about_environment(self.store)
        parent, service = parent_pid(), ServiceManager.from_environment()
        watching = [
            asyncio.create_task(service.keep_alive()),
            asyncio.create_task(call_when_set(stop, service.stopping)),
        ]
        if parent is not None:
            watching.append(asyncio.create_task(watch_parent(parent, stop)))
        with stopped_by_signals(stop, self._stop_workers):
            try:
                await run_worker(self, self._runtime, options, stop, service.ready)
            finally:
                for task in watching:
                    task.cancel()
                await self.close()

    def _stop_workers(self) -> None:
        for worker in self._runtime.notifier.workers:
            worker.stop()

    @checks_options
    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None, *, workers: WorkerOptions | None = None) -> AsyncIterator[None]:
        """Opens the store at the start of an application and closes it at the end; with `workers` it also runs a worker.

        `FastAPI(lifespan=hf.lifespan)`
        """
        check_instance("workers", workers, WorkerOptions)
        await self._runtime.registration.prepare()
        stop = asyncio.Event()
        if workers is not None:
            warn_about_environment(self.store)
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
        """The circuit breaker of this name, stored for all processes; the options of the first call apply."""
        return self._breakers.named(name, options)

    @property
    def ops(self) -> Operations:
        """Queries and actions for operators: `await hf.ops.stats()`, blocking as `hf.ops.sync.stats()`."""
        return Operations(self.store, self._runtime.registration.create_tables, self._check_signal)

    def _check_signal(self, workflow: str, signal: str, payload: object) -> None:
        """Raises `InvalidPayload` for a payload that the declared workflow cannot take; an unknown workflow passes."""
        if (declaration := self.workflows.get(workflow)) is not None:
            check_signal(declaration, self.handlers, signal, payload, FORCE)

    async def close(self) -> None:
        """Closes the store's connections; they reopen at the next use."""
        await self._runtime.notifier.drain()
        await asyncio.to_thread(self._runtime.completions.close)
        await self._runtime.reactions.finish()
        await self.store.close()

    def _default_retry(self, queue: str) -> RetryPolicy:
        return self._queue_policies.get(queue) or RetryPolicy.exponential()

    def _default_keep(self, queue: str) -> timedelta | None:
        return self._queue_keeps.get(queue)

    async def _decide_alert(self, consumer: str, fingerprint: str, alike: int, quiet: timedelta) -> AlertDecision:
        return await self.store.run(decide_alert(consumer, fingerprint, alike, quiet))
