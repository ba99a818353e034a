"""A worker in this process: the app's handlers with everything that runs beside them, from start to drained end."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from holdfast._log import background, get_logger
from holdfast.app.app_loader import app_spec
from holdfast.app.loop import call_when_set, wait_for_store
from holdfast.app.redaction import RedactionRefresher
from holdfast.app.relays import Relays
from holdfast.app.store_factory import open_store
from holdfast.app.streams import HandledKeyPruner, Streams
from holdfast.app.supervisor import worker_command
from holdfast.app.telemetry import export_once
from holdfast.app.webhooks import EndpointHandlers
from holdfast.core.errors import StoreUnavailable
from holdfast.core.message import Address, NewMessage
from holdfast.engine.cron import CronRunner, Schedule
from holdfast.engine.deps import PeriodicTask, WorkerDeps
from holdfast.engine.handler import Handler
from holdfast.engine.options import WorkerOptions
from holdfast.engine.periodic import first
from holdfast.engine.pruner import Pruner
from holdfast.engine.quarantine import QuarantineRunner
from holdfast.engine.worker import Worker
from holdfast.ops.plan_runner import PlanRunner
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


log = get_logger("holdfast.worker")


async def run_worker(app: "Holdfast", options: WorkerOptions | None, stop: asyncio.Event | None) -> None:
    """Runs a worker in this event loop until `stop` is set, or until idle if the options say so."""
    # Held to the very end: the last lines are written when all the rest is done.
    with background.running():
        await _work(app, options or WorkerOptions(), stop)


async def _work(app: "Holdfast", options: WorkerOptions, stop: asyncio.Event | None) -> None:
    if not options.generation:
        options = replace(options, generation=app.generation)
    with app.store.engine_lock():
        if not await wait_for_store(lambda: app._prepare(None), stop, patient=not options.until_idle):
            return
        # A renewal that hangs is given up in time for another; the second connection is for the next life of the worker,
        # which must not wait for a renewal of the last one.
        lease_store = open_store(app.dsn, app.schema, role="holdfast-lease", pool_size=2, patience=options.lease / 4)
        endpoints = EndpointHandlers(app)
        quarantine = None if options.suspects else _quarantine(app, options, endpoints.handlers)
        relays = Relays(app, options)
        streams = Streams(app, options)
        deps = replace(
            worker_deps(app, lease_store, options, quarantine, endpoints),
            woken=relays.wake,
            receiving=streams.receiving,
        )
        worker = Worker(deps, options)
        app._workers.add(worker)
        stopper = None if stop is None else asyncio.create_task(call_when_set(stop, worker.stop))
        try:
            loading = asyncio.create_task(_load(app, endpoints))
            try:
                await first(loading, worker.stopping.wait())
            finally:
                loading.cancel()
            if not loading.done():
                return
            loading.result()
            _warn_if_idle(app, options, endpoints.handlers)
            export_once(app)
            relays.start()
            streams.start(worker.stopping, worker.stop)
            if options.until_idle:
                # What a broker refuses is work for this worker.
                await relays.caught_up(stop, patient=False)
            await worker.run()
            if options.until_idle:
                await relays.caught_up(stop)
        finally:
            worker.stopping.set()
            await streams.end(worker.force_stop)
            await relays.stop()
            app._workers.discard(worker)
            if stopper is not None:
                stopper.cancel()
            if quarantine is not None:
                await asyncio.to_thread(quarantine.stop)
            await endpoints.close()
            await lease_store.close()
        streams.check()


def _warn_if_idle(app: "Holdfast", options: WorkerOptions, handlers: Mapping[str, Handler]) -> None:
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
                hint="only jobs enqueued with using(queue=...) reach these queues",
            )


async def _load(app: "Holdfast", endpoints: EndpointHandlers) -> None:
    """Loads what a worker needs to know before its first delivery."""
    await endpoints.load()
    with contextlib.suppress(StoreUnavailable):
        await RedactionRefresher(app.store, app._redactions).perform("")


def _quarantine(app: "Holdfast", options: WorkerOptions, handlers: Mapping[str, Handler]) -> QuarantineRunner:
    def command() -> list[str] | None:
        spec = app_spec(app)
        return None if spec is None else worker_command(spec, options, suspects=True)

    queues = None if options.queues is None else list(options.queues)
    return QuarantineRunner(app.store, handlers, options.generation, queues, command)


def occurrence(app: "Holdfast", schedule: Schedule, at: datetime) -> NewMessage:
    """The job that a schedule fires at a time; its key makes it one however many fire it."""
    handler = app.handlers[schedule.name]
    return app._producer.build(
        f"job.{schedule.name}",
        {},
        key=f"cron:{schedule.name}:{at.isoformat()}",
        key_scope=f"job.{schedule.name}",
        headers={"scheduled_for": at.isoformat()},
        addressed=[Address(consumer=handler.name, queue=handler.queue, priority=handler.priority)],
    )


def worker_deps(
    app: "Holdfast",
    lease_store: Store,
    options: WorkerOptions,
    quarantine: QuarantineRunner | None,
    endpoints: EndpointHandlers,
) -> WorkerDeps:
    """What a worker of this app has deps it."""
    periodic_tasks: list[PeriodicTask] = [endpoints, RedactionRefresher(app.store, app._redactions)]
    if quarantine is not None:
        periodic_tasks.append(quarantine)
    if app.schedules and options.cron:
        periodic_tasks.append(CronRunner(app.store, app.schedules, partial(occurrence, app)))
    if app._keep is not None:
        periodic_tasks.append(Pruner(app.store, app._keep))
        periodic_tasks.append(HandledKeyPruner(app, app._keep))
    periodic_tasks.append(PlanRunner(app.store))
    return WorkerDeps(
        store=app.store,
        lease_store=lease_store,
        handlers=endpoints.handlers,
        rules=app.rules,
        alerts=app._alerts,
        window=app._bound_to.window,
        publisher=app,
        probes=app._probes,
        periodic_tasks=tuple(periodic_tasks),
        meter=app.meter,
        tracing=app._tracing,
        redactor=lambda: app._redactions.redactor,
    )
