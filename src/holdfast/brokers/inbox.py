"""The inbox: records become messages with a delivery each, which the engine then runs as any other."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.brokers.decode import NAMELESS, Reading
from holdfast.brokers.persist import Persisting
from holdfast.brokers.protocol import Record
from holdfast.core.decide import decide
from holdfast.core.errors import KeyConflict, StoreError, UnreadableRecord
from holdfast.core.failures.report import ErrorReport, report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.core.outcome import Failed
from holdfast.core.retry import RetryPolicy
from holdfast.stores.deliveries.settle import Settlement
from holdfast.stores.messages.intake import Readiness, readiness, take_in, take_in_settled
from holdfast.stores.messages.publish import Fanout

log = get_logger("holdfast.brokers")

BATCH = 500
MOST_WAITING = 10_000
"""No more is taken in while so many deliveries of the consumer wait, until half of them are done."""

_LOOK_SECONDS = 0.5
_LOOK_RECORDS = 2_000

Buried = Callable[[NewMessage, ErrorReport], None]
"""Called with a raw message once it is durable as a dead letter."""


class _FirstRun(NamedTuple):
    """How a record counts that was never run: reading it was its one attempt."""

    attempts: int = 1
    max_attempts: int | None = None
    holds: int = 0
    expiries: int = 0


_FIRST_RUN = _FirstRun()


class RawLetters:
    """Keeps records that cannot become messages, as they came, as dead letters of their consumer."""

    def __init__(self, store: Persisting, reading: Reading, worker: str, buried: Buried) -> None:
        self._store, self._reading, self._worker, self._buried = store, reading, worker, buried
        self._fanout = Fanout()

    async def keep(self, record: Record, error: Exception) -> None:
        """Returns once the record is durable with what is wrong with it; raises if the store refuses it."""
        raw, told = self._reading.raw(record), report(error)
        try:
            id = await self._write(raw, told)
        except KeyConflict:
            # A stream that was deleted and made again counts from the start: this one is another.
            raw = self._reading.raw(record, anew=True)
            id = await self._write(raw, told)
        if id is not None:
            self._buried(raw._replace(id=id), told)

    async def _write(self, raw: NewMessage, error: ErrorReport) -> UUID | None:
        id = delivery_id(raw.id, self._reading.address.consumer)
        failed = Failed(error, Verdict.dead())
        change = decide(_FIRST_RUN, failed, RetryPolicy.none(), 0.0)
        settlement = Settlement(id, 0, change, failed.name, error, keep_run=True)
        return await self._store.run(take_in_settled(raw, settlement, self._worker, self._fanout))


class Nameless:
    """Says once that a source's records cannot be told apart: each time one is handed over it is a new message."""

    def __init__(self, consumer: str) -> None:
        self._consumer, self._said = consumer, False

    def look(self, message: NewMessage) -> None:
        if not self._said and (message.key or "").startswith(NAMELESS):
            self._said = True
            log.warning(
                "record id missing",
                consumer=self._consumer,
                source=message.source,
                hint="a redelivered record without an id runs again; set an id where the records are sent",
            )


class Gate:
    """Back-pressure: how a consumer stands in the store, asked now and then."""

    def __init__(self, store: Persisting, consumer: str, queue: str) -> None:
        self._store, self._consumer, self._queue = store, consumer, queue
        self._ask_at, self._since = 0.0, 0
        self._full = False
        self.known: Readiness | None = None
        """None before the first answer, and while the store is out."""

    def passed(self, records: int) -> None:
        """Counts what went through since the last look."""
        self._since += records

    async def look(self) -> Readiness | None:
        """How the consumer stands, at most half a second old; none while the store is out."""
        if time.monotonic() >= self._ask_at or self._since >= _LOOK_RECORDS:
            self.known = await self._store.ask(readiness(self._consumer, self._queue, MOST_WAITING))
            self._ask_at, self._since = time.monotonic() + _LOOK_SECONDS, 0
        return self.known

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should come."""
        if self.known is not None:
            backlog = self.known.backlog
            if (full := backlog >= (MOST_WAITING // 2 if self._full else MOST_WAITING)) and not self._full:
                log.warning("intake paused", consumer=self._consumer, waiting=backlog)
            self._full = full
        return self._full


class Inbox:
    """Stores records in batches, each with a delivery for the consumer. Deliveries have no order among themselves."""

    batch = bound = BATCH

    def __init__(self, store: Persisting, reading: Reading, letters: RawLetters, stored: Callable[[], None]) -> None:
        self._store, self._reading, self._letters, self._stored = store, reading, letters, stored
        self._gate = Gate(store, reading.address.consumer, reading.address.queue)
        self._fanout = Fanout()
        self._nameless = Nameless(reading.address.consumer)

    async def ready(self) -> bool:
        """Whether more may come. A paused consumer goes on collecting work."""
        return await self._gate.look() is not None and not self._gate.full

    @property
    def closed(self) -> bool:
        """Whether nothing will come however long one waits."""
        return False

    async def take(self, records: Sequence[Record]) -> None:
        """Returns once each record is stored: as a message with its delivery, or raw as a dead letter."""
        readable: list[tuple[Record, NewMessage]] = []
        for record in records:
            try:
                message = self._reading.message(record)
            except UnreadableRecord as error:
                await self._letters.keep(record, error)
            else:
                if message is not None:
                    self._nameless.look(message)
                    readable.append((record, message))
        await self._store_all(readable)
        self._gate.passed(len(records))
        if readable:
            self._stored()

    async def _store_all(self, readable: Sequence[tuple[Record, NewMessage]]) -> None:
        if not readable:
            return
        try:
            await self._store.run(take_in([message for _, message in readable], self._fanout))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001
            if len(readable) > 1:
                # One that the store refuses must not hold up the others.
                for one in readable:
                    await self._store_all([one])
                return
            ((record, message),) = readable
            if isinstance(error, KeyConflict):
                error = conflict(message, record, error.message_id)
            await self._letters.keep(record, error)


def conflict(message: NewMessage, record: Record, first: UUID) -> UnreadableRecord:
    """What is wrong with a record whose id was another content's before."""
    return UnreadableRecord(
        message.source,
        record.id,
        f"its id was given to another content before (message {first}); was the stream deleted and made again, or "
        "has another broker a stream of this name? Then give the consumer another origin=",
    )
