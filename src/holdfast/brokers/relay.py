"""Relays: events from the store to a broker, in order, marked only after the broker has confirmed them.

One process at a time runs a relay, by a lease in the store. Killed between sending and marking, the next one sends the
same events again under the same ids: nothing is lost, and receivers can tell.
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
from holdfast.brokers.protocol import Outgoing, Sender, Target
from holdfast.core.errors import BrokerUnavailable, ConfigurationError, LogRewound, StoreUnavailable, TerminalError
from holdfast.core.failures.report import report
from holdfast.core.message import Message
from holdfast.stores.event_log.log import LogReader, Page, Wanted
from holdfast.stores.event_log.position import Held, Reader, is_paused, move_position, release_position, take_position
from holdfast.stores.event_log.relay import mark_relayed
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages_with

log = get_logger("holdfast.relay")

_IDLE = 0.5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_MARK_EVERY = 5.0
_PARTING = 2.0

KeyOf = Callable[[Message], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Which events go where. `key` says what keeps its order at the broker; by default an event's own key."""

    name: str
    wanted: Wanted
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
        """What operators are told of it."""
        return {"events": list(self.wanted.patterns), "to": self.target.name}

    def encode(self, message: Message) -> Outgoing:
        key: object = None if self.key is None else self.key(message)
        if key is not None and not isinstance(key, str):
            # The broker's client would fail with the whole batch, and again with the next.
            raise TypeError(f"key= of relay {self.name} returned {type(key).__name__} for {message.id}; return text")
        return encode(message, key=key, mode=self.mode)

    async def send_again(self, store: Store, message_id: UUID) -> None:
        """Sends one event that could not be sent with the others; `TerminalError` when the broker refuses it again."""
        found = (await store.run(messages_with([message_id]))).get(message_id)
        if found is None:
            raise TerminalError(f"event {message_id} is gone from the store; it was pruned")
        async with self.target.open() as sender:
            (refusal,) = await sender.send([self.encode(found)])
        if refusal is not None:
            raise TerminalError(f"{self.target.name} refuses it: {refusal}")


class _Lost(Exception):
    """Another process runs the relay now, or may."""


class Relaying:
    """Runs a relay whenever this process is the one to: until cancelled, through every outage of broker and store."""

    def __init__(self, store: Store, relay: Relay, owner: str, generation: int) -> None:
        self._store, self._relay, self._owner, self._generation = store, relay, owner, generation
        self._woken = asyncio.Event()
        self._waiting: list[asyncio.Event] = []
        self._impatient: list[asyncio.Event] = []
        self._asked_before_reading: list[asyncio.Event] = []
        self._lasts_until = 0.0
        self._pause = _SHORTEST_PAUSE
        self._trouble: str | None = None

    def wake(self) -> None:
        """There may be events."""
        self._woken.set()

    async def caught_up(self, *, patient: bool = True) -> None:
        """Waits until everything committed before this call was relayed, or is another's or nobody's to relay now.

        Who is not patient waits for no broker and no store that is out.
        """
        reached = asyncio.Event()
        self._waiting.append(reached)
        if not patient:
            self._impatient.append(reached)
        self._woken.set()
        await reached.wait()

    async def run(self) -> None:
        """Takes the lease whenever it is free, and relays under it."""
        while True:
            try:
                held = await self._take()
                if held is None:
                    self._reach(list(self._waiting))
                    await self._rest(self._relay.lease.total_seconds() / 3)
                    continue
                await self._hold(held)
            except _Lost as lost:
                log.warning("relay lease lost", consumer=self._relay.name, reason=str(lost))
            except (BrokerUnavailable, StoreUnavailable, LogRewound) as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001
                self._note(error, expected=False)
            await self._rest(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _take(self) -> Held | None:
        relay, started = self._relay, time.monotonic()
        operation = take_position(
            Reader.RELAY, relay.name, self._owner, relay.lease, from_now=relay.from_now, detail=relay.detail
        )
        taking = asyncio.ensure_future(self._store.run(operation))
        try:
            held = await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The transaction may commit after the cancellation, and the lease would hold until it expires.
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_PARTING):
                    if (held := await taking) is not None:
                        await self._store.run(release_position(held))
            raise
        self._lasts_until = started + relay.lease.total_seconds()
        return held

    async def _hold(self, held: Held) -> None:
        """Relays and renews the lease, until one of them fails; then gives the lease back."""
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
            # The next one need not wait for the lease to run out.
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_PARTING):
                    await self._store.run(release_position(held))

    async def _renew(self, held: Held) -> None:
        lease = self._relay.lease
        while True:
            await asyncio.sleep(lease.total_seconds() / 4)
            started = time.monotonic()
            try:
                if not await self._store.run(move_position(held, None, lease)):
                    raise _Lost("another process owns the relay")
            except StoreUnavailable:
                if time.monotonic() > self._lasts_until:
                    raise _Lost("the lease could not be renewed in time") from None
            else:
                self._lasts_until = started + lease.total_seconds()

    async def _pump(self, held: Held) -> None:
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
                    refused, page = await self._send_and_read(sender, page, reader)
                    await self._mark(held, page_sent, refused)
                    marked, marked_at = page_sent.cursor, time.monotonic()
                    continue
                caught_up = bool(self._asked_before_reading) and not page.more
                if page.cursor != marked and (caught_up or time.monotonic() - marked_at > _MARK_EVERY):
                    # Events that are not wanted are not looked at again either, nor kept for it.
                    await self._mark(held, page, [])
                    marked, marked_at = page.cursor, time.monotonic()
                if not page.more:
                    self._reach(self._asked_before_reading)
                    await self._rest(_IDLE)
                page = await self._read(reader)

    async def _read(self, reader: LogReader) -> Page:
        # Whoever asks while it is read may have published what this page does not show.
        self._asked_before_reading = list(self._waiting)
        return await reader.read()

    def _reach(self, asked: list[asyncio.Event]) -> None:
        for reached in asked:
            reached.set()
        self._waiting = [reached for reached in self._waiting if not reached.is_set()]
        self._impatient = [reached for reached in self._impatient if not reached.is_set()]

    async def _send_and_read(self, sender: Sender, page: Page, reader: LogReader) -> tuple[list[Message], Page]:
        """Sends a page while the next one is read; returns what the broker refused, and that page."""
        reading = asyncio.create_task(self._read(reader))
        try:
            refused = await self._send(sender, page.events)
            return refused, await reading
        finally:
            reading.cancel()

    async def _send(self, sender: Sender, events: Sequence[Message]) -> list[Message]:
        if time.monotonic() > self._lasts_until:
            raise _Lost("this process stood still for longer than its lease")
        outgoing: list[Outgoing] = []
        sent: list[Message] = []
        refused: list[Message] = []
        for event in events:
            try:
                outgoing.append(self._relay.encode(event))
                sent.append(event)
            except Exception as error:  # noqa: BLE001
                # The function that names its key cannot deal with it: that is this event's failure alone.
                self._refuse(event, repr(error), refused)
        answers = await sender.send(outgoing) if outgoing else []
        for event, refusal in zip(sent, answers, strict=True):
            if refusal is not None:
                self._refuse(event, refusal, refused)
        self._note(None)
        return refused

    def _refuse(self, event: Message, reason: str, refused: list[Message]) -> None:
        log.warning(
            "event not relayed", consumer=self._relay.name, event_id=str(event.id), event_type=event.type, error=reason
        )
        refused.append(event)

    async def _mark(self, held: Held, page: Page, refused: Sequence[Message]) -> None:
        relay = self._relay
        kept = await self._store.run(
            mark_relayed(
                held,
                page.cursor,
                relay.lease,
                passed=len(page.events) - len(refused),
                refused=refused,
                queue=relay.queue,
                priority=relay.priority,
                generation=self._generation,
            )
        )
        if not kept:
            raise _Lost("another process owns the relay")

    async def _rest(self, seconds: float) -> None:
        """Waits for a wake-up, about so long."""
        # Not wait_for: before Python 3.12 it takes a wake-up that comes with a cancellation for the end of the wait.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):  # noqa: S311
                await self._woken.wait()
        self._woken.clear()

    def _note(self, error: Exception | None, *, expected: bool = True) -> None:
        """Says once that a relay is held up, and once that it goes on."""
        if error is not None:
            self._reach(self._impatient)
        trouble = None if error is None else type(error).__name__
        if error is None:
            self._pause = _SHORTEST_PAUSE
            if self._trouble is not None:
                log.info("relay resumed", consumer=self._relay.name, to=self._relay.target.name)
        elif trouble != self._trouble:
            told = report(error)
            known = {"consumer": self._relay.name, "to": self._relay.target.name, "error": told.message}
            if expected and not isinstance(error, LogRewound):
                log.warning("relay stalled", **known)
            else:
                log.error("relay stalled", **known, error_type=told.type, stack_trace=told.trace)
        self._trouble = trouble
