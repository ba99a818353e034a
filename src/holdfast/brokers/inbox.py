"""The inbox: stores each record as a message with one delivery, which the engine runs like any other."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.brokers.decoder import MISSING_ID_PREFIX, RecordDecoder
from holdfast.brokers.protocol import Record
from holdfast.brokers.retrying_store import RetryingStore
from holdfast.core.decide import decide
from holdfast.core.errors import KeyConflict, StoreError, UnreadableRecord
from holdfast.core.failures.report import ErrorReport, report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.identity import delivery_id
from holdfast.core.message import SOURCE_MESSAGE_ID, NewMessage
from holdfast.core.outcome import Failed
from holdfast.core.retry import RetryPolicy
from holdfast.stores.deliveries.settle import Settlement
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.intake import IntakeReadiness, readiness, take_in, take_in_settled
from holdfast.stores.messages.publish import Published

log = get_logger("holdfast.brokers")

BATCH_SIZE = 500
MAX_BACKLOG = 10_000
"""Fetching pauses at this many unfinished deliveries of the consumer, and resumes at half of them."""

_CHECK_SECONDS = 0.5
_CHECK_RECORDS = 2_000

OnDeadLetter = Callable[[NewMessage, ErrorReport], None]
"""Called with a raw message after it is stored as a dead letter."""

OnStored = Callable[[Sequence[NewMessage], Sequence[Published]], None]
"""Called after the commit with the messages of a batch and their results."""


class _ReadAttempt(NamedTuple):
    """The attempt counts of a record that never ran: reading it was its only attempt."""

    attempts: int = 1
    max_attempts: int | None = None
    holds: int = 0
    expiries: int = 0


_READ_ATTEMPT = _ReadAttempt()


class UnreadableRecords:
    """Stores records that cannot become messages, unchanged, as dead letters of their consumer."""

    def __init__(self, store: RetryingStore, decoder: RecordDecoder, worker: str, on_dead_letter: OnDeadLetter) -> None:
        self._store, self._decoder, self._worker, self._on_dead_letter = store, decoder, worker, on_dead_letter
        self._fanout = Fanout()

    async def keep(self, record: Record, error: Exception) -> None:
        """Returns after the record and its error are durable; raises if the store rejects them."""
        raw, error_report = self._decoder.raw(record), report(error)
        try:
            id = await self._write(raw, error_report)
        except KeyConflict:
            # A stream that was deleted and created again reuses ids: this is a different record.
            raw = self._decoder.raw(record, unique=True)
            id = await self._write(raw, error_report)
        if id is not None:
            self._on_dead_letter(raw._replace(id=id), error_report)

    async def _write(self, raw: NewMessage, error: ErrorReport) -> UUID | None:
        id = delivery_id(raw.id, self._decoder.address.consumer)
        failed = Failed(error, Verdict.dead())
        change = decide(_READ_ATTEMPT, failed, RetryPolicy.none(), 0.0)
        settlement = Settlement(id, 0, change, failed.name, error, keep_run=True)
        return await self._store.run(take_in_settled(raw, settlement, self._worker, self._fanout))


class MissingIdWarning:
    """Logs once that the records of a source have no id, so that each redelivery is a new message."""

    def __init__(self, consumer: str) -> None:
        self._consumer, self._is_logged = consumer, False

    def check(self, message: NewMessage) -> None:
        if not self._is_logged and (message.key or "").startswith(MISSING_ID_PREFIX):
            self._is_logged = True
            log.warning(
                "record id missing",
                consumer=self._consumer,
                source=message.source,
                hint="a redelivered record without an id runs again; set an id in the sender of the records",
            )


class Backpressure:
    """Reads the state and the backlog of a consumer from the store, at most twice a second."""

    def __init__(self, store: RetryingStore, consumer: str, queue: str) -> None:
        self._store, self._consumer, self._queue = store, consumer, queue
        self._check_at, self._records_since = 0.0, 0
        self._is_full = False
        self.known: IntakeReadiness | None = None
        """None before the first answer, and while the store is unavailable."""

    def count(self, records: int) -> None:
        """Counts records that were handled since the last check."""
        self._records_since += records

    async def readiness(self) -> IntakeReadiness | None:
        """The consumer's state, at most half a second old; None while the store is unavailable."""
        if time.monotonic() >= self._check_at or self._records_since >= _CHECK_RECORDS:
            self.known = await self._store.run_once(readiness(self._consumer, self._queue, MAX_BACKLOG))
            self._check_at, self._records_since = time.monotonic() + _CHECK_SECONDS, 0
        return self.known

    @property
    def is_full(self) -> bool:
        """Whether the backlog is so long that no more records should be fetched."""
        if self.known is not None:
            backlog = self.known.backlog
            if (is_full := backlog >= (MAX_BACKLOG // 2 if self._is_full else MAX_BACKLOG)) and not self._is_full:
                log.warning("intake paused", consumer=self._consumer, waiting=backlog)
            self._is_full = is_full
        return self._is_full


class Inbox:
    """Stores records in batches, each with a delivery for the consumer. Deliveries are not ordered."""

    batch_size = max_in_flight = BATCH_SIZE

    @property
    def is_paused(self) -> bool:
        """Always false: a paused consumer still collects deliveries."""
        return False

    def __init__(
        self,
        store: RetryingStore,
        decoder: RecordDecoder,
        unreadable: UnreadableRecords,
        fanout: Fanout,
        on_stored: OnStored,
    ) -> None:
        self._store, self._decoder, self._unreadable, self._on_stored = store, decoder, unreadable, on_stored
        self._backpressure = Backpressure(store, decoder.address.consumer, decoder.address.queue)
        self._fanout = fanout
        self._missing_id = MissingIdWarning(decoder.address.consumer)

    async def ready(self) -> bool:
        return await self._backpressure.readiness() is not None and not self._backpressure.is_full

    async def handle(self, records: Sequence[Record]) -> None:
        """Returns after each record is stored: as a message with its delivery, or unchanged as a dead letter."""
        readable: list[tuple[Record, NewMessage]] = []
        for record in records:
            try:
                message = self._decoder.message(record)
            except UnreadableRecord as error:
                await self._unreadable.keep(record, error)
            else:
                if message is not None:
                    self._missing_id.check(message)
                    readable.append((record, message))
        await self._store_all(readable)
        self._backpressure.count(len(records))

    async def _store_all(self, readable: Sequence[tuple[Record, NewMessage]]) -> None:
        if not readable:
            return
        messages = [message for _, message in readable]
        try:
            stored = await self._store.run(take_in(messages, self._fanout))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001
            if len(readable) > 1:
                # A record that the store rejects must not block the others.
                half = len(readable) // 2
                await self._store_all(readable[:half])
                await self._store_all(readable[half:])
                return
            ((record, message),) = readable
            if isinstance(error, KeyConflict):
                error = key_conflict(message, record, error.message_id)
            await self._unreadable.keep(record, error)
        else:
            self._on_stored(messages, stored)


class EventInbox(Inbox):
    """Stores records as events: each subscriber gets a delivery.

    A pause stops fetching. A long backlog of one consumer does not, because it would also stop the events of all
    others.
    """

    async def ready(self) -> bool:
        known = await self._backpressure.readiness()
        return known is not None and not known.held

    @property
    def is_paused(self) -> bool:
        return self._backpressure.known is not None and self._backpressure.known.held


def key_conflict(message: NewMessage, record: Record, first: UUID) -> UnreadableRecord:
    """The error for a record whose id or key belongs to a message with other content."""
    if not message.addressed and message.headers.get(SOURCE_MESSAGE_ID) != message.key:
        return UnreadableRecord(
            message.source,
            record.id,
            f"its key {message.key!r} belongs to an event with other content (message {first}). Discard it if it is a "
            "duplicate; otherwise take key= from a value that differs",
        )
    return UnreadableRecord(
        message.source,
        record.id,
        f"its id belongs to a message with other content (message {first}). Either the stream was deleted and created "
        "again, or another broker has a stream with the same name; give the consumer another origin=",
    )
