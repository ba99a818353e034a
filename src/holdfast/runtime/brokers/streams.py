"""What a worker reads from brokers: the records of `@hf.consumer(..., source=...)` and of `hf.ingest`."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from holdfast.brokers.decoder import RecordDecoder, record_of
from holdfast.brokers.inbox import EventInbox, Inbox, UnreadableRecords, key_conflict
from holdfast.brokers.intake import Intake
from holdfast.brokers.protocol import Lag
from holdfast.brokers.retrying_store import RetryingStore
from holdfast.core.errors import KeyConflict
from holdfast.core.events import payload
from holdfast.core.failures.report import ErrorReport
from holdfast.core.identity import delivery_id, uuid7_at
from holdfast.core.message import Address, NewMessage
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.telemetry.propagation import propagated
from holdfast.engine.handlers.context import IDLE_TIMEOUT, Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.alert import Alerts, DeadLetterAlert
from holdfast.engine.worker.options import WorkerOptions, instance_id
from holdfast.runtime.brokers.dead_letter_forwarder import DeadLetterForwarder
from holdfast.runtime.brokers.direct_consumer import DirectConsumer
from holdfast.runtime.brokers.source import BrokerSource
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.intake import forget_handled, report_intake, take_in_completing
from holdfast.stores.messages.publish import Published
from holdfast.stores.protocol import Store

_CUT_OFF_SECONDS = 2.0


async def reprocess_raw(runtime: Runtime, context: Context) -> None:
    """Decodes a stored raw record again.

    Its message is stored, unless it exists, in the transaction that completes the raw one.
    """
    name = context.consumer
    decoder = _decoder(runtime, runtime.handlers[name], runtime.broker_sources[name])
    record = record_of(payload.decode(context.invocation.payload))
    message = decoder.message(record)
    if message is None:
        return
    context.completing = True
    try:
        stored = await runtime.store.run(take_in_completing(context.claim, IDLE_TIMEOUT, message, _fanout(runtime)))
    except KeyConflict as error:
        raise key_conflict(message, record, error.message_id) from error
    _on_stored(runtime, [message], [stored])


class BrokerStreams:
    """Runs the intakes from brokers in a worker's queues."""

    def __init__(self, runtime: Runtime, options: WorkerOptions) -> None:
        self._limit = options.idle_limit.total_seconds()
        self._grace = options.grace.total_seconds()
        self._direct: list[DirectConsumer] = []
        sources = runtime.broker_sources
        self._forwarder = DeadLetterForwarder(
            runtime.store,
            runtime.alerts,
            {name: one.dead_letters for name, one in sources.items() if one.dead_letters is not None},
        )
        self._intakes = [
            self._intake(runtime, handler, sources[name], options)
            for name, handler in runtime.handlers.items()
            if name in sources and not options.suspects and (options.queues is None or handler.queue in options.queues)
        ]
        self._running: list[asyncio.Task[None]] = []

    def start(self, stop: asyncio.Event, failed: Callable[[], None]) -> None:
        """Receives records until `stop`; calls `failed` if an intake ends with an error, which `check` raises."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not stop.is_set():
                failed()

        self._forwarder.start()
        for intake in self._intakes:
            task = asyncio.create_task(intake.run(stop), name="holdfast-intake")
            task.add_done_callback(ended)
            self._running.append(task)

    def receiving(self) -> bool:
        """Whether more records may arrive."""
        return bool(self._running) and not all(intake.idle(self._limit) for intake in self._intakes)

    async def end(self, force_stop: asyncio.Event) -> None:
        """Waits for running handlers, and cancels them after the grace or once `force_stop` is set."""
        if self._running:
            forced = asyncio.create_task(force_stop.wait())
            ended = asyncio.create_task(asyncio.wait(self._running))
            await asyncio.wait({forced, ended}, timeout=self._grace + 5.0, return_when=asyncio.FIRST_COMPLETED)
            for intake in self._intakes:
                intake.cut_off()
            _, late = await asyncio.wait(self._running, timeout=_CUT_OFF_SECONDS)
            for task in (forced, ended, *late):
                task.cancel()
            await asyncio.wait(self._running, timeout=5.0)
        for direct in self._direct:
            direct.close()
        await self._forwarder.end()

    def check(self) -> None:
        """Raises the error that ended an intake, if any."""
        for task in self._running:
            if task.done() and not task.cancelled():
                task.result()

    def _intake(self, runtime: Runtime, handler: Handler, source: BrokerSource, options: WorkerOptions) -> Intake:
        worker, decoder = instance_id(), _decoder(runtime, handler, source)
        store = RetryingStore(runtime.store, handler.name)
        unreadable = UnreadableRecords(store, decoder, worker, partial(_alert, runtime.alerts, handler))
        record_handler: DirectConsumer | Inbox
        if source.direct:
            record_handler = DirectConsumer(runtime, handler, decoder, store, unreadable, worker, source.concurrency)
            self._direct.append(record_handler)
        else:
            inbox = Inbox if source.events is None else EventInbox
            record_handler = inbox(store, decoder, unreadable, _fanout(runtime), partial(_on_stored, runtime))

        async def report(lag: Lag | None, problem: str | None) -> None:
            await store.run_once(
                report_intake(
                    handler.name,
                    source.source.name,
                    direct=source.direct,
                    waiting=None if lag is None else lag.waiting,
                    unacknowledged=None if lag is None else lag.unacknowledged,
                    problem=problem,
                )
            )

        return Intake(
            source.source,
            handler.name,
            record_handler,
            report,
            grace=options.grace.total_seconds(),
            until_idle=options.until_idle,
        )


class HandledKeyPruner:
    """Removes the handled keys of direct consumers after the retention of deliveries."""

    interval = timedelta(minutes=10)

    def __init__(self, store: Store, sources: Mapping[str, BrokerSource], keep: timedelta) -> None:
        self._store, self._keep = store, keep
        self._consumers = [name for name, source in sources.items() if source.direct]

    async def perform(self, worker: str) -> None:
        if self._consumers:
            while await self._store.run(forget_handled(self._consumers, self._keep)):
                pass


def _decoder(runtime: Runtime, handler: Handler, source: BrokerSource) -> RecordDecoder:
    return RecordDecoder(
        origin=source.origin,
        patterns=source.patterns,
        address=Address(consumer=handler.name, queue=handler.queue, priority=handler.priority),
        generation=runtime.generation,
        max_bytes=runtime.max_payload,
        fresh=_fresh_id,
        events=source.events,
    )


def _fanout(runtime: Runtime) -> Fanout:
    """Subscriptions with the key functions of this app's consumers."""
    return Fanout(flows=runtime.registration.flows)


def _on_stored(runtime: Runtime, messages: Sequence[NewMessage], stored: Sequence[Published]) -> None:
    """Starts the reactions to new events, and wakes the workers."""
    runtime.reactions.published(messages, stored, None)
    runtime.meter.published(sum(one.created for one in stored))
    runtime.notifier.notify()


def _fresh_id() -> UUID:
    return uuid7_at(time.time_ns(), secrets.randbits(62))


def _alert(alerts: Alerts, handler: Handler, raw: NewMessage, error: ErrorReport) -> None:
    alerts.dead(
        DeadLetterAlert(
            event_id=raw.id,
            delivery_id=delivery_id(raw.id, handler.name),
            event_type=raw.type,
            source=raw.source,
            target=handler.name,
            queue=handler.queue,
            handler=handler.name,
            last_error=error.message,
            error_type=error.type,
            fingerprint=error.fingerprint,
            attempts=1,
            correlation=log_fields(raw.headers if handler.trusts_headers else propagated(raw.headers)),
        )
    )
