"""A worker in this process: the app's handlers with everything that runs beside them, from start to drained end."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from holdfast._log import background, get_logger
from holdfast.app.family import worker_command
from holdfast.app.locate import spec_of
from holdfast.app.loop import store_is_ready, then
from holdfast.app.opening import open_store
from holdfast.app.redaction import SecretsDuty
from holdfast.app.relays import Relays
from holdfast.app.streams import ForgetDuty, Streams
from holdfast.app.telemetry import export_once
from holdfast.app.webhooks import Served
from holdfast.core.errors import StoreUnavailable
from holdfast.core.message import Address, NewMessage
from holdfast.engine.cron import CronDuty, Schedule
from holdfast.engine.handler import Handler
from holdfast.engine.options import WorkerOptions
from holdfast.engine.periodic import first
from holdfast.engine.pruner import PruneDuty
from holdfast.engine.surroundings import Duty, Surroundings
from holdfast.engine.suspects import SuspectDuty
from holdfast.engine.worker import Worker
from holdfast.ops.plan_runner import PlanRunner
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


log = get_logger("holdfast.worker")


async def work(app: "Holdfast", options: WorkerOptions | None, stop: asyncio.Event | None) -> None:
    """Runs a worker in this event loop until `stop` is set, or until idle if the options say so."""
    # Held to the very end: the last lines are written when all the rest is done.
    with background.running():
        await _work(app, options or WorkerOptions(), stop)


async def _work(app: "Holdfast", chosen: WorkerOptions, stop: asyncio.Event | None) -> None:
    if not chosen.generation:
        chosen = replace(chosen, generation=app.generation)
    with app.store.engine_lock():
        if not await store_is_ready(lambda: app._prepare(None), stop, patient=not chosen.until_idle):
            return
        # A renewal that hangs is given up in time for another; the second connection is for the next life of the worker,
        # which must not wait for a renewal of the last one.
        lease_store = open_store(app.dsn, app.schema, role="holdfast-lease", pool_size=2, patience=chosen.lease / 4)
        served = Served(app)
        suspects = None if chosen.suspects else _suspects(app, chosen, served.handlers)
        relays = Relays(app, chosen)
        streams = Streams(app, chosen)
        around = replace(
            surroundings(app, lease_store, chosen, suspects, served), woken=relays.wake, bringing=streams.bringing
        )
        worker = Worker(around, chosen)
        app._workers.add(worker)
        stopper = None if stop is None else asyncio.create_task(then(stop, worker.stop))
        try:
            loading = asyncio.create_task(_load(app, served))
            try:
                await first(loading, worker.stopping.wait())
            finally:
                loading.cancel()
            if not loading.done():
                return
            loading.result()
            _warn_if_idle(app, chosen, served.handlers)
            export_once(app)
            relays.start()
            streams.start(worker.stopping, worker.stop)
            if chosen.until_idle:
                # What a broker refuses is work for this worker.
                await relays.caught_up(stop, patient=False)
            await worker.run()
            if chosen.until_idle:
                await relays.caught_up(stop)
        finally:
            worker.stopping.set()
            await streams.end(worker.hurry)
            await relays.stop()
            app._workers.discard(worker)
            if stopper is not None:
                stopper.cancel()
            if suspects is not None:
                await asyncio.to_thread(suspects.stop)
            await served.close()
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


async def _load(app: "Holdfast", served: Served) -> None:
    """Loads what a worker needs to know before its first delivery."""
    await served.load()
    with contextlib.suppress(StoreUnavailable):
        await SecretsDuty(app.store, app._secrets).perform("")


def _suspects(app: "Holdfast", options: WorkerOptions, handlers: Mapping[str, Handler]) -> SuspectDuty:
    def command() -> list[str] | None:
        spec = spec_of(app)
        return None if spec is None else worker_command(spec, options, suspects=True)

    queues = None if options.queues is None else list(options.queues)
    return SuspectDuty(app.store, handlers, options.generation, queues, command)


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


def surroundings(
    app: "Holdfast", lease_store: Store, options: WorkerOptions, suspects: SuspectDuty | None, served: Served
) -> Surroundings:
    """What a worker of this app has around it."""
    duties: list[Duty] = [served, SecretsDuty(app.store, app._secrets)]
    if suspects is not None:
        duties.append(suspects)
    if app.schedules and options.cron:
        duties.append(CronDuty(app.store, app.schedules, partial(occurrence, app)))
    if app._keep is not None:
        duties.append(PruneDuty(app.store, app._keep))
        duties.append(ForgetDuty(app, app._keep))
    duties.append(PlanRunner(app.store))
    return Surroundings(
        store=app.store,
        lease_store=lease_store,
        handlers=served.handlers,
        rules=app.rules,
        alerts=app._alerts,
        window=app._bound_to.window,
        publisher=app,
        probes=app._probes,
        duties=tuple(duties),
        meter=app.meter,
        tracing=app._tracing,
        redactor=lambda: app._secrets.redactor,
    )
