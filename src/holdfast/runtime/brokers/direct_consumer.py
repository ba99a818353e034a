"""Runs a handler directly on broker records. A record is stored only if its handler fails.

A record is acknowledged after the handler succeeds, or once its failure is durable as a delivery that is retried or dead.
If the process dies before that, the broker delivers the record again.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from uuid import UUID

from holdfast._log import get_logger
from holdfast.brokers.decoder import RecordDecoder
from holdfast.brokers.inbox import Backpressure, MissingIdWarning, UnreadableRecords, key_conflict
from holdfast.brokers.protocol import Record
from holdfast.brokers.retrying_store import RetryingStore
from holdfast.core.change import Deliver
from holdfast.core.decide import budget
from holdfast.core.errors import KeyConflict, StoreError, UnreadableRecord
from holdfast.core.identity import uuid7
from holdfast.core.key import check_key
from holdfast.core.message import NewMessage
from holdfast.core.outcome import Succeeded
from holdfast.core.redaction.redact import hiding
from holdfast.engine.execution.consumer_blocker import ConsumerBlocker
from holdfast.engine.execution.invocation import MessageInvocation
from holdfast.engine.execution.runner import FinishedRun, Runner
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.settlement.builder import SettlementBuilder
from holdfast.engine.telemetry.log_fields import delivery_fields
from holdfast.runtime.runtime import Runtime
from holdfast.stores.deliveries.settle import ClaimState
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.intake import KnownRecord, look_up, record_handled, take_in, take_in_settled
from holdfast.stores.operation import Operation

log = get_logger("holdfast.brokers")

_MAX_DELIVERY_COUNT = 5


class DirectContext(Context):
    """A record as its handler sees it. There is no delivery yet: `complete` records its key as handled."""

    __slots__ = ("message",)

    message: NewMessage

    def _completion(self, key: str | None) -> Operation[None]:
        keys = [found for found in (self.key, key) if found is not None]
        return record_handled(self.consumer, self.source, [check_key(found) for found in keys], self.delivery_id)


class DirectConsumer:
    """Runs a consumer's handler on each record, up to `max_in_flight` at the same time."""

    batch_size = 1

    def __init__(
        self,
        runtime: Runtime,
        handler: Handler,
        decoder: RecordDecoder,
        store: RetryingStore,
        unreadable: UnreadableRecords,
        worker: str,
        max_in_flight: int,
    ) -> None:
        self._runtime, self._handler, self._decoder, self._store = runtime, handler, decoder, store
        self._unreadable, self._worker, self.max_in_flight = unreadable, worker, max_in_flight
        self._settlements = SettlementBuilder(worker, runtime.alerts, runtime.meter, {handler.name: handler})
        self._backpressure = Backpressure(store, handler.name, handler.queue)
        self._threads = Threads("holdfast-direct")
        self._runner = Runner(runtime.rules, runtime.dedupe, self._threads, self._claim_state, runtime.tracing)
        self._blocker = ConsumerBlocker(store, worker, runtime.probes, self._threads)
        self._fanout = Fanout()
        self._missing_id = MissingIdWarning(handler.name)

    async def ready(self) -> bool:
        """Whether more records may run: not while the consumer is paused or blocked, or the store is unavailable."""
        known = await self._backpressure.readiness()
        return known is not None and not known.held and not self._backpressure.is_full

    @property
    def is_paused(self) -> bool:
        """Whether the consumer is paused."""
        return self._backpressure.known is not None and self._backpressure.known.held

    def close(self) -> None:
        """Ends the threads that are free."""
        self._threads.close()

    async def handle(self, records: Sequence[Record]) -> None:
        """Runs the handler; returns once it succeeded or its failure is durable."""
        (record,) = records
        try:
            message = self._decoder.message(record)
        except UnreadableRecord as error:
            await self._unreadable.keep(record, error)
            return
        if message is None:
            return
        self._missing_id.check(message)
        try:
            known = await self._known(message)
            if not known.taken and record.delivery_count > _MAX_DELIVERY_COUNT:
                await self._set_aside(record, message)
                return
        except KeyConflict as error:
            await self._unreadable.keep(record, key_conflict(message, record, error.message_id))
            return
        if known.taken:
            log.info(
                "duplicate skipped",
                consumer=self._handler.name,
                source=message.source,
                idempotency_key=message.key,
                delivery_count=record.delivery_count,
            )
            return
        # Another consumer may have stored the same record: it is one message.
        message = message._replace(id=known.message_id or _stable_id(message, record))
        with hiding(self._runtime.redactions.redactor.hide(message.type, message.payload)):
            await self._run(record, message)
        self._backpressure.count(1)

    async def _set_aside(self, record: Record, message: NewMessage) -> None:
        """Stores a record that may crash its workers as a delivery: then its runs are counted, and a suspect one runs alone."""
        log.warning(
            "redelivery limit reached",
            consumer=self._handler.name,
            source=message.source,
            idempotency_key=message.key,
            delivery_count=record.delivery_count,
        )
        await self._store.run(take_in([message], self._fanout))
        self._runtime.notifier.notify()

    async def _run(self, record: Record, message: NewMessage) -> None:
        handler, invocation = self._handler, MessageInvocation.of(message, self._handler.name, self._handler.queue)
        context = DirectContext(
            invocation, self._worker, self._runtime.store, self._runtime.publisher, budget(invocation, handler.retry)
        )
        context.message = message
        run = await self._runner.run(handler, context)
        if isinstance(run.outcome, Succeeded):
            self._runtime.meter.settled(invocation, Deliver.name, run.elapsed)
        else:
            await self._keep(record, context, run)
        if run.thread is not None:
            # Nothing can stop it, so its slot is not free.
            await asyncio.wait({run.thread})

    async def _claim_state(self, context: "DirectContext") -> ClaimState:
        return ClaimState.SETTLED if (await self._known(context.message)).taken else ClaimState.HELD

    async def _keep(self, record: Record, context: DirectContext, run: FinishedRun) -> None:
        """Stores a failure as a delivery, in the state that `decide` returns."""
        message, invocation = context.message, context.invocation
        outcome = await self._blocker.found(invocation.consumer, run.outcome)
        _, ack = self._settlements.build(invocation, outcome, self._handler.retry, run.elapsed)
        try:
            kept = await self._store.run(take_in_settled(message, ack.settlement, self._worker, self._fanout))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001
            why = key_conflict(message, record, error.message_id) if isinstance(error, KeyConflict) else error
            await self._unreadable.keep(record, why)
            return
        if kept is None:
            log.info("failure already stored", **delivery_fields(invocation, self._handler))
        elif ack.written is not None:
            ack.written()
        self._runtime.notifier.notify()

    async def _known(self, message: NewMessage) -> KnownRecord:
        return await self._store.run(look_up(self._handler.name, message))


def _stable_id(message: NewMessage, record: Record) -> UUID:
    """The same id for each delivery of the record, if the broker reports when it received the record."""
    if record.at is None:
        return message.id
    mark = hashlib.sha256(f"{message.source} {message.key}".encode()).digest()
    return uuid7(max(0, int(record.at.timestamp() * 1000)), int.from_bytes(mark[:10], "big") >> 6)
