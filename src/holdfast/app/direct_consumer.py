"""A handler straight from the stream: nothing is stored unless it fails, and then what a worker needs to go on.

A record is acknowledged after the handler's success, or once its failure is durable as a delivery that will be retried
or is dead. Whoever dies before that is handed it again.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.brokers.decoder import RecordDecoder
from holdfast.brokers.inbox import Backpressure, MissingIdWarning, UnreadableRecords, key_conflict
from holdfast.brokers.protocol import Record
from holdfast.brokers.retrying_store import RetryingStore
from holdfast.core.change import Deliver
from holdfast.core.decide import budget
from holdfast.core.errors import KeyConflict, StoreError, UnreadableRecord
from holdfast.core.failures.report import report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.identity import delivery_id, uuid7
from holdfast.core.key import check_key
from holdfast.core.message import NewMessage
from holdfast.core.outcome import Failed, Outcome, Succeeded
from holdfast.core.redaction.redact import hiding
from holdfast.engine.consumer_blocker import ConsumerBlocker
from holdfast.engine.context import Context
from holdfast.engine.executor import RolledBack
from holdfast.engine.handler import Handler
from holdfast.engine.invocation import RunResult, invoke
from holdfast.engine.log_fields import delivery_fields
from holdfast.engine.settlement import SettlementBuilder
from holdfast.engine.threads import Threads
from holdfast.engine.tracing import traced
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.messages.intake import Known, look_up, record_handled, take_in, take_in_settled
from holdfast.stores.messages.publish import Fanout
from holdfast.stores.operation import Operation

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.brokers")

_MAX_DELIVERY_COUNT = 5


class DirectContext(Context):
    """A record as its handler sees it. There is no delivery yet: `complete` records its key as handled."""

    __slots__ = ()

    def _completion(self, key: str | None) -> Operation[None]:
        keys = [found for found in (self.key, key) if found is not None]
        return record_handled(self.consumer, self.source, [check_key(found) for found in keys], self.delivery_id)


class DirectConsumer:
    """Runs a consumer's handler on each record, up to `max_in_flight` at the same time."""

    batch_size = 1

    def __init__(
        self,
        app: "Holdfast",
        handler: Handler,
        decoder: RecordDecoder,
        store: RetryingStore,
        unreadable: UnreadableRecords,
        worker: str,
        max_in_flight: int,
    ) -> None:
        self._app, self._handler, self._decoder, self._store = app, handler, decoder, store
        self._unreadable, self._worker, self.max_in_flight = unreadable, worker, max_in_flight
        self._settlements = SettlementBuilder(worker, app._alerts, app.meter)
        self._backpressure = Backpressure(store, handler.name, handler.queue)
        self._threads = Threads("holdfast-direct")
        self._blocker = ConsumerBlocker(store, worker, app._probes, self._threads)
        self._fanout = Fanout()
        self._missing_id = MissingIdWarning(handler.name)

    async def ready(self) -> bool:
        """Whether more may be run: not while the consumer is paused or blocked, and not while the store is out."""
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
        """Runs the handler; returns once the record is done with, or its failure is durable."""
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
        # One message, whoever takes it in: another consumer may have stored it.
        message = message._replace(id=known.message_id or _stable_id(message, record))
        with hiding(self._app._redactions.redactor.hide(message.type, message.payload)):
            await self._run(record, message)
        self._backpressure.count(1)

    async def _set_aside(self, record: Record, message: NewMessage) -> None:
        """Stores a record that may be what its workers died of: the engine counts its runs, and runs it apart."""
        log.warning(
            "redelivery limit reached",
            consumer=self._handler.name,
            source=message.source,
            idempotency_key=message.key,
            delivery_count=record.delivery_count,
        )
        await self._store.run(take_in([message], self._fanout))
        self._app._wake()

    async def _run(self, record: Record, message: NewMessage) -> None:
        handler, claimed = self._handler, _as_claimed(message, self._handler)
        context = DirectContext(claimed, self._worker, self._app.store, self._app, budget(claimed, handler.retry))
        started = time.monotonic()
        result, _ = await traced(self._app._tracing, claimed, lambda: self._invoke(claimed, context))
        outcome = await self._stored_outcome(message, context, result)
        elapsed = time.monotonic() - started
        if isinstance(outcome, Succeeded):
            self._app.meter.settled(claimed, Deliver.name, elapsed)
        else:
            await self._keep(record, message, claimed, outcome, elapsed)
        if result.thread is not None:
            # Nothing can stop it, so its slot is not free.
            await asyncio.wait({result.thread})

    async def _invoke(self, claimed: Claimed, context: Context) -> RunResult:
        task = asyncio.current_task()
        assert task is not None
        try:
            window = self._app._bound_to.window
            return await invoke(self._handler, claimed, context, self._app.rules, self._threads, window)
        except asyncio.CancelledError as cancelled:
            if task.cancelling():
                raise
            # The handler let a cancellation of its own escape.
            return RunResult(Failed(report(cancelled), Verdict.retry()), cancelled)

    async def _stored_outcome(self, message: NewMessage, context: Context, result: RunResult) -> Outcome:
        """How it result; for a handler that completed by itself the store says that."""
        if not context.completing:
            return result.outcome
        if context.already_handled or (await self._known(message)).taken:
            return Succeeded()
        if isinstance(result.outcome, Succeeded):
            why = RolledBack("the handler called ctx.complete() and returned, but its transaction did not commit")
            return Failed(report(why), Verdict.retry())
        return result.outcome

    async def _keep(
        self, record: Record, message: NewMessage, claimed: Claimed, outcome: Outcome, elapsed: float
    ) -> None:
        """Makes a failure durable, as the one decision about it says."""
        outcome = await self._blocker.found(claimed.consumer, outcome)
        _, ack = self._settlements.build(claimed, outcome, self._handler.retry, elapsed)
        try:
            kept = await self._store.run(take_in_settled(message, ack.settlement, self._worker, self._fanout))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001
            why = key_conflict(message, record, error.message_id) if isinstance(error, KeyConflict) else error
            await self._unreadable.keep(record, why)
            return
        if kept is None:
            log.info("failure already stored", **delivery_fields(claimed))
        elif ack.written is not None:
            ack.written()
        self._app._wake()

    async def _known(self, message: NewMessage) -> Known:
        return await self._store.run(look_up(self._handler.name, message))


def _stable_id(message: NewMessage, record: Record) -> UUID:
    """The same id whenever the record is handed over again, where the broker says when it got it."""
    if record.at is None:
        return message.id
    mark = hashlib.sha256(f"{message.source} {message.key}".encode()).digest()
    return uuid7(max(0, int(record.at.timestamp() * 1000)), int.from_bytes(mark[:10], "big") >> 6)


def _as_claimed(message: NewMessage, handler: Handler) -> Claimed:
    """A record in the form in which the engine runs things: its first attempt, held by nobody."""
    return Claimed(
        id=delivery_id(message.id, handler.name),
        message_id=message.id,
        consumer=handler.name,
        queue=handler.queue,
        priority=handler.priority,
        generation=message.generation,
        attempts=1,
        max_attempts=None,
        fence=0,
        holds=0,
        expiries=0,
        suspect=False,
        run_at=_now(message),
        retry=None,
        type=message.type,
        source=message.source,
        key=message.key,
        payload=message.payload,
        headers=_json(message),
        occurred_at=_now(message),
        message_generation=message.generation,
    )


def _now(message: NewMessage) -> datetime:
    # For people: nothing is decided by it.
    return message.occurred_at or datetime.now(UTC)


def _json(message: NewMessage) -> str:
    return orjson.dumps(message.headers).decode() if message.headers else "{}"
