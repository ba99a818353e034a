"""`@hf.consumer(..., source=...)`: what a worker takes in from brokers, beside the deliveries it runs."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.app.dead_letter_forwarder import DeadLetterForwarder
from holdfast.app.direct_consumer import DirectConsumer
from holdfast.brokers.decoder import RecordDecoder, record_of
from holdfast.brokers.inbox import Inbox, UnreadableRecords, key_conflict
from holdfast.brokers.intake import Intake
from holdfast.brokers.protocol import Lag, Source, Target
from holdfast.brokers.retrying_store import RetryingStore
from holdfast.core.errors import ConfigurationError, KeyConflict
from holdfast.core.events import payload
from holdfast.core.failures.report import ErrorReport
from holdfast.core.identity import delivery_id, uuid7
from holdfast.core.message import Address, NewMessage
from holdfast.core.names import check_name
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.engine.alert import DeadLetterAlert
from holdfast.engine.context import IDLE_TIMEOUT, Context
from holdfast.engine.handler import Handler
from holdfast.engine.options import WorkerOptions, instance_id
from holdfast.stores.messages.intake import forget_handled, report_intake, take_in_completing
from holdfast.stores.messages.publish import Fanout

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.app.router import Router

_MOST_AT_ONCE = 1_000
_CUT_OFF_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSource:
    """Where a consumer's records come from. `direct` runs its handler straight from there, `concurrency` at a time.

    `trust_identity` carries the user and the tenant that a record names.
    """

    source: Source
    patterns: tuple[str, ...]
    origin: str
    direct: bool
    concurrency: int
    dead_letters: Target | None = None
    trust_identity: bool = False


def broker_source(
    name: str,
    source: Source,
    patterns: tuple[str, ...],
    *,
    direct: bool,
    concurrency: int,
    origin: str | None,
    dead_letters: Target | None,
    trust_identity: bool,
) -> BrokerSource:
    """A consumer's source as it was asked for, checked."""
    for word, place in {"source": source, "dead_letters": dead_letters}.items():
        if place is not None and not callable(getattr(place, "open", None)):
            raise ConfigurationError(
                f"consumer {name}: {word}= is {place!r}; give a place at a broker, such as "
                "redis.stream('payments', group='shop')"
            )
    if getattr(source, "group", "") is None:
        raise ConfigurationError(
            f"consumer {name}: source {source.name} has no group=; give the group that reads it, such as 'shop'"
        )
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_AT_ONCE:
        raise ConfigurationError(f"consumer {name}: concurrency is {concurrency!r}; give 1 to {_MOST_AT_ONCE:,}")
    known = origin if origin is not None else source.name.partition(":")[0]
    return BrokerSource(
        source=source,
        patterns=patterns,
        origin=check_name("source", known),
        direct=direct,
        concurrency=concurrency,
        dead_letters=dead_letters,
        trust_identity=trust_identity,
    )


async def reprocess_raw(router: "Router", name: str, context: Context) -> None:
    """Reads a record anew that was kept raw: stored as a message, if it is absent, as the raw one is done."""
    app = router._bound()
    decoder, record = (
        _decoder(app, app.handlers[name], app.broker_sources[name]),
        record_of(payload.decode(context.invocation.payload)),
    )
    message = decoder.message(record)
    if message is None:
        return
    context.completing = True
    try:
        await app.store.run(take_in_completing(context.claim, IDLE_TIMEOUT, message, Fanout()))
    except KeyConflict as error:
        raise key_conflict(message, record, error.message_id) from error
    app._wake()


class Streams:
    """The intakes that a worker runs: those of consumers in its queues."""

    def __init__(self, app: "Holdfast", options: WorkerOptions) -> None:
        self._limit = options.idle_limit.total_seconds()
        self._grace = options.grace.total_seconds()
        self._direct: list[DirectConsumer] = []
        self._forwarder = DeadLetterForwarder(
            app, {name: feed.dead_letters for name, feed in app.broker_sources.items() if feed.dead_letters is not None}
        )
        self._intakes = [
            self._intake(app, handler, app.broker_sources[name], options)
            for name, handler in app.handlers.items()
            if name in app.broker_sources
            and not options.suspects
            and (options.queues is None or handler.queue in options.queues)
        ]
        self._running: list[asyncio.Task[None]] = []

    def start(self, stop: asyncio.Event, failed: Callable[[], None]) -> None:
        """Takes records in until `stop`; calls `failed` if an intake cannot go on at all, and `check` then raises."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not stop.is_set():
                failed()

        self._forwarder.start()
        for intake in self._intakes:
            task = asyncio.create_task(intake.run(stop), name="holdfast-intake")
            task.add_done_callback(ended)
            self._running.append(task)

    def receiving(self) -> bool:
        """Whether records may still come."""
        return bool(self._running) and not all(intake.idle(self._limit) for intake in self._intakes)

    async def end(self, force_stop: asyncio.Event) -> None:
        """Waits for what is under way, and cuts off what takes longer than the grace, or `force_stop` is set."""
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
        """Raises what ended an intake, if something did."""
        for task in self._running:
            if task.done() and not task.cancelled():
                task.result()

    def _intake(self, app: "Holdfast", handler: Handler, feed: BrokerSource, options: WorkerOptions) -> Intake:
        worker, decoder = instance_id(), _decoder(app, handler, feed)
        store = RetryingStore(app.store, handler.name)
        unreadable = UnreadableRecords(store, decoder, worker, partial(_alert, app, handler))
        record_handler: DirectConsumer | Inbox
        if feed.direct:
            record_handler = DirectConsumer(app, handler, decoder, store, unreadable, worker, feed.concurrency)
            self._direct.append(record_handler)
        else:
            record_handler = Inbox(store, decoder, unreadable, app._wake)

        async def report(lag: Lag | None, problem: str | None) -> None:
            await store.run_once(
                report_intake(
                    handler.name,
                    feed.source.name,
                    direct=feed.direct,
                    waiting=None if lag is None else lag.waiting,
                    unacknowledged=None if lag is None else lag.unacknowledged,
                    problem=problem,
                )
            )

        return Intake(
            feed.source,
            handler.name,
            record_handler,
            report,
            grace=options.grace.total_seconds(),
            until_idle=options.until_idle,
        )


class HandledKeyPruner:
    """Forgets what handlers that run straight from a stream have handled, as long ago as deliveries are pruned."""

    interval = timedelta(minutes=10)

    def __init__(self, app: "Holdfast", keep: timedelta) -> None:
        self._store, self._keep = app.store, keep
        self._consumers = [name for name, feed in app.broker_sources.items() if feed.direct]

    async def perform(self, worker: str) -> None:
        if self._consumers:
            while await self._store.run(forget_handled(self._consumers, self._keep)):
                pass


def _decoder(app: "Holdfast", handler: Handler, feed: BrokerSource) -> RecordDecoder:
    return RecordDecoder(
        origin=feed.origin,
        patterns=feed.patterns,
        address=Address(consumer=handler.name, queue=handler.queue, priority=handler.priority),
        generation=app.generation,
        max_bytes=app._max_payload,
        fresh=_fresh_id,
        trust_identity=feed.trust_identity,
    )


def _fresh_id() -> UUID:
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


def _alert(app: "Holdfast", handler: Handler, raw: NewMessage, error: ErrorReport) -> None:
    app._alerts.dead(
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
            correlation=log_fields(raw.headers),
        )
    )
