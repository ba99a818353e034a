"""Runs a worker in this process: the app's handlers, broker consumers, relays and periodic tasks."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from holdfast._log import background, get_logger
from holdfast.app.telemetry import export_once
from holdfast.app.worker.app_loader import app_spec
from holdfast.app.worker.supervisor import worker_command
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events.payload import decode
from holdfast.core.message import Address, NewMessage
from holdfast.core.values.duration import MAX_DURATION
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.engine.maintenance.cron import CronRunner, Schedule
from holdfast.engine.maintenance.pruner import Pruner
from holdfast.engine.maintenance.quarantine import QuarantineRunner
from holdfast.engine.worker.deps import PeriodicTask, WorkerDeps
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.periodic import first
from holdfast.engine.worker.process_limits import ProcessLimits
from holdfast.engine.worker.worker import Worker
from holdfast.engine.workflows.loader import has_steps
from holdfast.engine.workflows.sweeper import RunSweeper
from holdfast.ops.plans import PlanRunner
from holdfast.runtime.brokers.relays import Relays
from holdfast.runtime.brokers.streams import BrokerStreams, HandledKeyPruner
from holdfast.runtime.endpoint_handlers import EndpointHandlers
from holdfast.runtime.loop import call_when_set, lock_engine, wait_for_store
from holdfast.runtime.redactions import RedactionRefresher
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.schedule import StoredSchedule
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


log = get_logger("holdfast.worker")


async def run_worker(
    app: "Holdfast",
    runtime: Runtime,
    options: WorkerOptions | None,
    stop: asyncio.Event | None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Runs a worker in this event loop until `stop` is set, or until idle if the options say so.

    It calls `on_ready` when the app is loaded and the store was reached.
    """
    # Until the very end: the last log lines are written when everything else is done.
    with background.running():
        await _work(app, runtime, options or WorkerOptions(), stop, on_ready)


async def _work(
    app: "Holdfast",
    runtime: Runtime,
    options: WorkerOptions,
    stop: asyncio.Event | None,
    on_ready: Callable[[], None],
) -> None:
    if not options.generation:
        options = replace(options, generation=runtime.generation)
    with contextlib.ExitStack() as engine:
        for prepare in (partial(lock_engine, engine, runtime.store), runtime.registration.prepare):
            if not await wait_for_store(prepare, stop, patient=not options.until_idle):
                return
        # A renewal that hangs is cancelled early enough to repeat it. The second connection is for the next session, which
        # must not wait for a renewal of the last one.
        lease_store = app._open_store(role="holdfast-lease", pool_size=2, patience=options.lease / 4)
        endpoints = EndpointHandlers(runtime.store, runtime.handlers, app.webhooks.options)
        quarantine = None if options.suspects else _quarantine(app, runtime.store, options, endpoints.handlers)
        relays = Relays(runtime, options)
        streams = BrokerStreams(runtime, options)
        deps = replace(
            worker_deps(runtime, app.cron_schedules, lease_store, options, quarantine, endpoints),
            woken=relays.wake,
            receiving=streams.receiving,
        )
        if options.recycles:
            limits = ProcessLimits(runtime.meter, options, lambda: worker.drain())
            deps = replace(deps, periodic_tasks=(*deps.periodic_tasks, limits))
        worker = Worker(deps, options)
        runtime.notifier.workers.add(worker)
        stopper = None if stop is None else asyncio.create_task(call_when_set(stop, worker.stop))
        try:
            loading = asyncio.create_task(_load(runtime, endpoints))
            try:
                await first(loading, worker.stopping.wait())
            finally:
                loading.cancel()
            if not loading.done():
                return
            loading.result()
            _warn_if_idle(options, endpoints.handlers)
            export_once(app)
            relays.start()
            streams.start(worker.stopping, worker.stop)
            if options.until_idle:
                # A message that a broker refuses becomes a delivery for this worker.
                await relays.caught_up(stop, patient=False)
            on_ready()
            await worker.run()
            if options.until_idle:
                await relays.caught_up(stop)
        finally:
            worker.stopping.set()
            await streams.end(worker.force_stop)
            await relays.stop()
            runtime.notifier.workers.discard(worker)
            if stopper is not None:
                stopper.cancel()
            if quarantine is not None:
                await asyncio.to_thread(quarantine.stop)
            await endpoints.close()
            await lease_store.close()
        streams.check()


def _warn_if_idle(options: WorkerOptions, handlers: Mapping[str, Handler]) -> None:
    """Logs a warning for a worker that will run nothing, because a module was not imported or a queue is misspelt."""
    if options.suspects:
        return
    if not handlers:
        log.warning(
            "no handlers",
            hint="import the modules that declare handlers, and call hf.include(router) for each router",
        )
    elif options.queues is not None:
        served = {handler.queue for handler in handlers.values()}
        if unknown := sorted(set(options.queues) - served):
            log.warning(
                "queues without handlers",
                queues=unknown,
                handler_queues=sorted(served),
                hint=_queue_hint(unknown, served),
            )


def _queue_hint(unknown: Sequence[str], served: Set[str]) -> str:
    near = [match for one in unknown for match in get_close_matches(one, sorted(served), n=1)]
    advice = f"; did you mean {', '.join(near)}?" if near else ""
    return f"only jobs enqueued with using(queue=...) reach these queues{advice}"


async def _load(runtime: Runtime, endpoints: EndpointHandlers) -> None:
    """Loads endpoints and redactions before the first delivery."""
    await endpoints.load()
    with contextlib.suppress(StoreUnavailable):
        await RedactionRefresher(runtime.store, runtime.redactions).perform("")


def _quarantine(
    app: "Holdfast", store: Store, options: WorkerOptions, handlers: Mapping[str, Handler]
) -> QuarantineRunner:
    def command() -> list[str] | None:
        spec = app_spec(app)
        return None if spec is None else worker_command(spec, options, suspects=True)

    queues = None if options.queues is None else list(options.queues)
    return QuarantineRunner(store, handlers, options.generation, queues, command)


def occurrence(runtime: Runtime, schedule: StoredSchedule, at: datetime) -> NewMessage:
    """The job that a schedule fires at a time; its key prevents that several schedulers enqueue it."""
    handler = runtime.handlers[schedule.job]
    return runtime.producer.build(
        f"job.{schedule.job}",
        {} if schedule.args is None else decode(schedule.args),
        key=f"cron:{schedule.name}:{at.isoformat()}",
        key_scope=f"job.{schedule.job}",
        headers={"scheduled_for": at.isoformat()},
        addressed=[Address(consumer=handler.name, queue=handler.queue, priority=handler.priority)],
    )


def worker_deps(
    runtime: Runtime,
    schedules: Mapping[str, Schedule],
    lease_store: Store,
    options: WorkerOptions,
    quarantine: QuarantineRunner | None,
    endpoints: EndpointHandlers,
) -> WorkerDeps:
    """The dependencies of a worker of this app."""
    store = runtime.store
    periodic_tasks: list[PeriodicTask] = [endpoints, RedactionRefresher(store, runtime.redactions)]
    if quarantine is not None:
        periodic_tasks.append(quarantine)
    if options.cron and any(handler.kind is Kind.JOB for handler in runtime.handlers.values()):
        build, flows = partial(occurrence, runtime), runtime.registration.flows
        periodic_tasks.append(CronRunner(store, schedules, runtime.handlers, build, flows))
    if runtime.retention is not None or any(handler.keep is not None for handler in runtime.handlers.values()):
        periodic_tasks.append(Pruner(store, runtime.retention or MAX_DURATION))
    if runtime.retention is not None:
        periodic_tasks.append(HandledKeyPruner(store, runtime.broker_sources, runtime.retention))
    if has_steps(runtime.handlers):
        periodic_tasks.append(RunSweeper(store))
    periodic_tasks.append(PlanRunner(store))
    return WorkerDeps(
        store=store,
        lease_store=lease_store,
        handlers=endpoints.handlers,
        rules=runtime.rules,
        alerts=runtime.alerts,
        window=runtime.dedupe,
        publisher=runtime.publisher,
        probes=runtime.probes,
        periodic_tasks=tuple(periodic_tasks),
        meter=runtime.meter,
        tracing=runtime.tracing,
        batches={name: handler for name, handler in runtime.handlers.items() if handler.batch is not None},
        redactor=lambda: runtime.redactions.redactor,
        max_result=runtime.max_payload,
        announce_result=runtime.notifier.announce_result,
    )
