"""Relays: send events from the store to a broker, in order, and record progress only after the broker confirmed them.

One process at a time runs a relay, by a lease in the store. After a crash between sending and recording, the next
process sends the same events again with the same ids: no event is lost, and receivers can deduplicate.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from holdfast._log import get_logger
from holdfast.brokers.cloudevents import Mode, encode
from holdfast.brokers.protocol import OutgoingRecord, Sender, Target
from holdfast.core.errors import BrokerUnavailable, ConfigurationError, LogRewound, StoreUnavailable, TerminalError
from holdfast.core.failures.report import report
from holdfast.core.message import Message
from holdfast.stores.event_log.log import EventFilter, LogPage, LogReader
from holdfast.stores.event_log.position import (
    PositionLease,
    Reader,
    is_paused,
    move_position,
    release_position,
    take_position,
)
from holdfast.stores.event_log.relay import mark_relayed
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages_with

log = get_logger("holdfast.relay")

_IDLE = 0.5
_MIN_PAUSE, _MAX_PAUSE = 0.2, 5.0
_MARK_EVERY = 5.0
_RELEASE_SECONDS = 2.0

KeyOf = Callable[[Message], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Which events are sent where. `key` returns the broker's ordering key; the default is the event's key."""

    name: str
    wanted: EventFilter
    target: Target
    queue: str
    priority: int
    key: KeyOf | None = None
    mode: Mode = Mode.STRUCTURED
    from_now: bool = False
    lease: timedelta = timedelta(seconds=15)

    def __post_init__(self) -> None:
        if self.lease < timedelta(seconds=1):
            raise ConfigurationError(f"relay {self.name}: a lease of {self.lease} is too short; give 1 s or more")

    @property
    def detail(self) -> dict[str, object]:
        """The configuration that operators see."""
        return {"events": list(self.wanted.patterns), "to": self.target.name}

    def encode(self, message: Message) -> OutgoingRecord:
        key: object = None if self.key is None else self.key(message)
        if key is not None and not isinstance(key, str):
            # The broker's client would fail for the whole batch, on every attempt.
            raise TypeError(f"key= of relay {self.name} returned {type(key).__name__} for {message.id}; return text")
        return encode(message, key=key, mode=self.mode)

    async def send_again(self, store: Store, message_id: UUID) -> None:
        """Sends one event that was rejected before; raises `TerminalError` if the broker rejects it again."""
        found = (await store.run(messages_with([message_id]))).get(message_id)
        if found is None:
            raise TerminalError(f"event {message_id} is no longer in the store; it was pruned")
        async with self.target.open() as sender:
            (rejection,) = await sender.send([self.encode(found)])
        if rejection is not None:
            raise TerminalError(f"{self.target.name} rejects it: {rejection}")


class _LeaseLost(Exception):
    """Another process may run the relay now."""


class RelayRunner:
    """Runs a relay while this process owns its lease, until cancelled. Survives outages of the broker and the store."""

    def __init__(self, store: Store, relay: Relay, owner: str, generation: int) -> None:
        self._store, self._relay, self._owner, self._generation = store, relay, owner, generation
        self._woken = asyncio.Event()
        self._waiting: list[asyncio.Event] = []
        self._waiting_briefly: list[asyncio.Event] = []
        self._waiting_before_read: list[asyncio.Event] = []
        self._lease_until = 0.0
        self._pause = _MIN_PAUSE
        self._last_error: str | None = None

    def wake(self) -> None:
        """Makes the relay read the log now, because there may be new events."""
        self._woken.set()

    async def caught_up(self, *, patient: bool = True) -> None:
        """Waits until everything committed before this call is relayed; returns at once if this process cannot relay now.

        Without `patient` it also returns when the broker or the store is unavailable.
        """
        reached = asyncio.Event()
        self._waiting.append(reached)
        if not patient:
            self._waiting_briefly.append(reached)
        self._woken.set()
        await reached.wait()

    async def run(self) -> None:
        """Acquires the lease when it is free, and relays while this process holds it."""
        while True:
            try:
                held = await self._take()
                if held is None:
                    self._reach(list(self._waiting))
                    await self._rest(self._relay.lease.total_seconds() / 3)
                    continue
                await self._hold(held)
            except _LeaseLost as lost:
                log.warning("relay lease lost", consumer=self._relay.name, reason=str(lost))
            except (BrokerUnavailable, StoreUnavailable, LogRewound) as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001
                self._note(error, expected=False)
            await self._rest(self._pause)
            self._pause = min(self._pause * 2, _MAX_PAUSE)

    async def _take(self) -> PositionLease | None:
        relay, started = self._relay, time.monotonic()
        operation = take_position(
            Reader.RELAY, relay.name, self._owner, relay.lease, from_now=relay.from_now, detail=relay.detail
        )
        task = asyncio.ensure_future(self._store.run(operation))
        try:
            held = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The transaction may commit after the cancellation, and the lease would hold until it expires.
            # No error of the store may replace the cancellation: the worker would never stop.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    if (held := await task) is not None:
                        await self._store.run(release_position(held))
            raise
        self._lease_until = started + relay.lease.total_seconds()
        return held

    async def _hold(self, held: PositionLease) -> None:
        """Relays and renews the lease until one of them fails; then releases the lease."""
        pumping = asyncio.create_task(self._pump(held), name=f"holdfast-relay-{held.name}")
        renewing = asyncio.create_task(self._renew(held), name=f"holdfast-relay-lease-{held.name}")
        try:
            ended, _ = await asyncio.wait({pumping, renewing}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            pumping.cancel()
            renewing.cancel()
            await asyncio.gather(pumping, renewing, return_exceptions=True)
            # So that the next process does not wait until the lease expires.
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._store.run(release_position(held))

    async def _renew(self, held: PositionLease) -> None:
        lease = self._relay.lease
        while True:
            await asyncio.sleep(lease.total_seconds() / 4)
            started = time.monotonic()
            try:
                if not await self._store.run(move_position(held, None, lease)):
                    raise _LeaseLost("another process owns the relay")
            except StoreUnavailable:
                if time.monotonic() > self._lease_until:
                    raise _LeaseLost("the lease could not be renewed in time") from None
            else:
                self._lease_until = started + lease.total_seconds()

    async def _pump(self, held: PositionLease) -> None:
        reader = LogReader(self._store, self._relay.wanted, held.cursor)
        marked, marked_at = held.cursor, time.monotonic()
        async with self._relay.target.open() as sender:
            page = await self._read(reader)
            while True:
                while await self._store.run(is_paused(held.name)):
                    self._reach(list(self._waiting))
                    await self._rest(_IDLE)
                if page.events:
                    page_sent = page
                    rejected, page = await self._send_and_read(sender, page, reader)
                    await self._mark(held, page_sent, rejected)
                    marked, marked_at = page_sent.cursor, time.monotonic()
                    continue
                caught_up = bool(self._waiting_before_read) and not page.more
                if page.cursor != marked and (caught_up or time.monotonic() - marked_at > _MARK_EVERY):
                    # Moves past events that do not match, so that they are not read again and can be pruned.
                    await self._mark(held, page, [])
                    marked, marked_at = page.cursor, time.monotonic()
                if not page.more:
                    self._reach(self._waiting_before_read)
                    await self._rest(_IDLE)
                page = await self._read(reader)

    async def _read(self, reader: LogReader) -> LogPage:
        # A caller that starts to wait during the read may have published an event that this page misses.
        self._waiting_before_read = list(self._waiting)
        return await reader.read()

    def _reach(self, waiting: list[asyncio.Event]) -> None:
        for reached in waiting:
            reached.set()
        self._waiting = [reached for reached in self._waiting if not reached.is_set()]
        self._waiting_briefly = [reached for reached in self._waiting_briefly if not reached.is_set()]

    async def _send_and_read(self, sender: Sender, page: LogPage, reader: LogReader) -> tuple[list[Message], LogPage]:
        """Sends a page while it reads the next one; returns the rejected events and the next page."""
        reading = asyncio.create_task(self._read(reader))
        try:
            rejected = await self._send(sender, page.events)
            return rejected, await reading
        finally:
            reading.cancel()

    async def _send(self, sender: Sender, events: Sequence[Message]) -> list[Message]:
        if time.monotonic() > self._lease_until:
            raise _LeaseLost("this process was suspended for longer than its lease")
        outgoing: list[OutgoingRecord] = []
        sent: list[Message] = []
        rejected: list[Message] = []
        for event in events:
            try:
                outgoing.append(self._relay.encode(event))
                sent.append(event)
            except Exception as error:  # noqa: BLE001
                # The `key` function failed: only this event is rejected.
                self._reject(event, repr(error), rejected)
        answers = await sender.send(outgoing) if outgoing else []
        for event, rejection in zip(sent, answers, strict=True):
            if rejection is not None:
                self._reject(event, rejection, rejected)
        self._note(None)
        return rejected

    def _reject(self, event: Message, reason: str, rejected: list[Message]) -> None:
        log.warning(
            "event not relayed", consumer=self._relay.name, event_id=str(event.id), event_type=event.type, error=reason
        )
        rejected.append(event)

    async def _mark(self, held: PositionLease, page: LogPage, rejected: Sequence[Message]) -> None:
        relay = self._relay
        kept = await self._store.run(
            mark_relayed(
                held,
                page.cursor,
                relay.lease,
                passed=len(page.events) - len(rejected),
                refused=rejected,
                queue=relay.queue,
                priority=relay.priority,
                generation=self._generation,
            )
        )
        if not kept:
            raise _LeaseLost("another process owns the relay")

    async def _rest(self, seconds: float) -> None:
        """Waits for a wake-up, for about `seconds`."""
        # Not wait_for: before Python 3.12 it drops a cancellation that arrives together with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):  # noqa: S311
                await self._woken.wait()
        self._woken.clear()

    def _note(self, error: Exception | None, *, expected: bool = True) -> None:
        """Logs once that the relay stalled, and once that it resumed."""
        if error is not None:
            self._reach(self._waiting_briefly)
        error_name = None if error is None else type(error).__name__
        if error is None:
            self._pause = _MIN_PAUSE
            if self._last_error is not None:
                log.info("relay resumed", consumer=self._relay.name, to=self._relay.target.name)
        elif error_name != self._last_error:
            details = report(error)
            fields = {"consumer": self._relay.name, "to": self._relay.target.name, "error": details.message}
            if expected and not isinstance(error, LogRewound):
                log.warning("relay stalled", **fields)
            else:
                log.error("relay stalled", **fields, error_type=details.type, stack_trace=details.trace)
        self._last_error = error_name
