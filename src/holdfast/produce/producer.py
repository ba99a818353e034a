"""The producer: builds messages, and writes them in the caller's transaction or a separate one."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from secrets import token_hex
from typing import Any, Protocol, TypeVar
from uuid import UUID

from holdfast.core.errors import ConfigurationError, StoreError
from holdfast.core.events.event import VERSION_HEADER, EventType, EventTypes, event_type, is_typed_dict, redactions_of
from holdfast.core.events.payload import MAX_BYTES, check_headers, encode_many
from holdfast.core.flow import FlowSettings
from holdfast.core.identity import time_after, uuid7_at, uuid7s
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.redaction.redact import Redaction
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.correlation import correlation
from holdfast.produce.commit import BoundConnection
from holdfast.stores.connections.caller_transaction import bind, bind_sync
from holdfast.stores.connections.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.connections.durability import durable, durable_async
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import (
    LAZY,
    LazyMessages,
    Messages,
    Published,
    publish,
    publish_single,
    take_write_lock,
)
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import SubscriptionRecord, subscriptions

_CONFIRM_SECONDS = 1.0
_PART = 500
"""How many payloads are written as JSON at once."""

T = TypeVar("T")


class Registers(Protocol):
    """Stores what the app declares before the first write."""

    @property
    def is_complete(self) -> bool: ...

    @property
    def flows(self) -> Mapping[str, FlowSettings]: ...

    async def prepare(self, conn: AsyncConnection | None = None) -> None: ...

    def prepare_sync(self, conn: Connection | None = None) -> None: ...


class Producer:
    """Writes messages into a store, without a buffer: a message belongs to the transaction that publishes it."""

    def __init__(
        self,
        store: Store,
        source: str,
        *,
        generation: int = 0,
        max_payload: int = MAX_BYTES,
        registration: Registers,
        notify: Callable[[], None] = lambda: None,
        redact: Callable[[tuple[Redaction, ...]], None] = lambda _: None,
        validate: bool = True,
        declared: EventTypes | None = None,
    ) -> None:
        self.store, self.source, self.generation = store, source, generation
        self._max_payload = max_payload
        self._registration, self._notify, self._redact = registration, notify, redact
        self.validate = validate
        self._declared = EventTypes() if declared is None else declared
        self._fanout = Fanout(flows=registration.flows)
        self._random = random.SystemRandom()
        self.warns_of_durability = True
        self._confirmed_at = float("-inf")

    def new_id(self) -> UUID:
        """A new id. Ids sort by their creation time, also within a millisecond."""
        return uuid7_at(time.time_ns(), self._random.getrandbits(62))

    def new_ids(self, number: int, after: UUID | None = None) -> list[UUID]:
        """New ids in ascending order, all above `after`."""
        earliest = 0 if after is None else time_after(after)
        return uuid7s(max(time.time_ns(), earliest), os.urandom(8 * number))

    def build(
        self,
        event: object,
        payload: object = None,
        *,
        key: str | None = None,
        headers: Mapping[str, object] | None = None,
        occurred_at: datetime | None = None,
        addressed: Iterable[Address] = (),
        retry: RetryPolicy | None = None,
        key_scope: str | None = None,
        validate: bool | None = None,
    ) -> NewMessage:
        """A checked message: `event` is an instance of an event class, or the class or name with its `payload`.

        `validate` says whether the payload must fit the class; it defaults to the producer's option.
        """
        checks = self.validate if validate is None else validate
        type, body, known, unchecked = _named(event, payload, checks)
        carried: dict[str, object] = dict(correlation())
        if headers:
            carried |= headers if isinstance(headers, Mapping) else check_headers(headers)
        if known is not None:
            self._declared.add(known)
            if known.redact:
                self._redact(known.redact)
            carried.pop(VERSION_HEADER, None)
            if known.version != 1:
                carried[VERSION_HEADER] = str(known.version)
        message = new_message(
            id=self.new_id(),
            type=type,
            source=self.source,
            payload=body,
            key=key,
            headers=carried,
            generation=self.generation,
            occurred_at=occurred_at,
            addressed=addressed,
            retry=retry,
            max_bytes=self._max_payload,
            key_scope=key_scope,
        )
        if unchecked and known is not None:
            known.check(message.payload)
        return message

    def build_many(
        self,
        events: Sequence[object],
        headers: Mapping[str, object] | None,
        *,
        at_once: bool,
        retry: RetryPolicy | None = None,
        validate: bool | None = None,
    ) -> Messages:
        """Validates events, which are instances or pairs of name (or class) and payload, and builds their messages. Many
        messages are built while they are written, unless `at_once`."""
        checks = self.validate if validate is None else validate
        _check_events(events)
        events = events if isinstance(events, list | tuple) else list(events)
        # Values that all messages of a type share are checked with the first of them.
        first: dict[str | type, NewMessage] = {}
        newest: UUID | None = None

        def make(part: Sequence[object]) -> Sequence[NewMessage]:
            nonlocal newest
            if len(part) == 1 and newest is None:
                return [self.build(*_pair(part[0]), headers=headers, retry=retry, validate=checks)]
            ids = self.new_ids(len(part), newest)
            newest = ids[-1]
            if (plain := _plain(part)) is not None:
                # The payloads are written here, so the pattern has none.
                if (called := plain[0]) not in first:
                    first[called] = self.build(called, {}, headers=headers, retry=retry, validate=checks)
                return AlikeMessages(first[called], ids, self.encode_all(plain[1]))
            described = _described(part, checks)
            kinds = [name if known is None else known.cls for name, _, known, _ in described]
            for kind in dict.fromkeys(kinds):
                if kind not in first:
                    name, payload = _pair(part[kinds.index(kind)])
                    first[kind] = self.build(name, payload, headers=headers, retry=retry, validate=checks)
            texts = self.encode_all([body for _, body, _, _ in described])
            for (_, _, known, unchecked), text in zip(described, texts, strict=True):
                if unchecked and known is not None:
                    known.check(text)
            if kinds.count(kinds[0]) == len(kinds):
                return AlikeMessages(first[kinds[0]], ids, texts)
            made = zip(kinds, ids, texts, strict=True)
            return [first[kind]._replace(id=id, payload=text) for kind, id, text in made]

        if not events:
            return []
        if at_once or retry is not None or len(events) < LAZY or not self.store.dialect.streams:
            return make(events)
        # The redactions must be known before the first message is written.
        kinds: set[object] = set(map(type, events))
        if tuple in kinds:
            kinds |= {event[0] for event in events if type(event) is tuple}
        if secret := redactions_of(kinds):
            self._redact(secret)
        return LazyMessages(lambda: (make(events[at : at + _PART]) for at in range(0, len(events), _PART)))

    def encode_all(self, payloads: Sequence[object]) -> list[str]:
        """The checked JSON texts of many payloads."""
        parts = (payloads[at : at + _PART] for at in range(0, len(payloads), _PART))
        return [text for part in parts for text in encode_many(part, token_hex(16), max_bytes=self._max_payload)]

    async def bind(self, conn: Any, call: str) -> BoundConnection[AsyncConnection]:
        """The caller's connection, ready for writes: in a transaction, and on SQLite with the write lock.

        `call` is what the user called, named in the `TypeError` for a blocking connection.
        """
        adapter = await bind(self.store, conn, call)
        if adapter.database == "sqlite":
            with _tables_created_later():
                await run_on_async(take_write_lock(), self.store.dialect, adapter)
            if self.warns_of_durability:
                self.warns_of_durability = await durable_async(adapter)
        return BoundConnection(conn, adapter)

    def bind_sync(self, conn: Any, call: str) -> BoundConnection[Connection]:
        """`bind`, blocking."""
        adapter = bind_sync(self.store, conn, call)
        if adapter.database == "sqlite":
            with _tables_created_later():
                run_on(take_write_lock(), self.store.dialect, adapter)
            if self.warns_of_durability:
                self.warns_of_durability = durable(adapter)
        return BoundConnection(conn, adapter)

    async def publish(self, messages: Messages, bound: BoundConnection[AsyncConnection] | None) -> list[Published]:
        """Registers the app's declarations, writes in the caller's transaction or a separate one, and wakes workers."""
        if not (trusted := self._registration.is_complete):
            await self._registration.prepare(None if bound is None else bound.adapter)
            trusted = self._registration.is_complete
        if trusted and self._fanout.uncommitted and self._must_confirm():
            with contextlib.suppress(StoreError):
                self._confirm(await self.store.run(subscriptions()))
        fanout = self._fanout if trusted else Fanout(flows=self._registration.flows)
        if bound is None:
            # Without a transaction if one statement is enough.
            single = publish_single(messages, fanout)
            stored = None if single is None else await self.store.run(single)
            if stored is None:
                stored = await self.store.run(publish(messages, fanout, own=True))
            self._notify()
        else:
            stored = await run_on_async(publish(messages, fanout), self.store.dialect, bound.adapter)
            bound.after_commit(self._notify)
        return stored

    def publish_sync(self, messages: Messages, bound: BoundConnection[Connection] | None) -> list[Published]:
        """`publish`, blocking."""
        if not (trusted := self._registration.is_complete):
            self._registration.prepare_sync(None if bound is None else bound.adapter)
            trusted = self._registration.is_complete
        if trusted and self._fanout.uncommitted and self._must_confirm():
            with contextlib.suppress(StoreError):
                self._confirm(self.store.run_sync(subscriptions()))
        fanout = self._fanout if trusted else Fanout(flows=self._registration.flows)
        if bound is None:
            single = publish_single(messages, fanout)
            stored = None if single is None else self.store.run_sync(single)
            if stored is None:
                stored = self.store.run_sync(publish(messages, fanout, own=True))
            self._notify()
        else:
            stored = run_on(publish(messages, fanout), self.store.dialect, bound.adapter)
            bound.after_commit(self._notify)
        return stored

    async def start(self, runs: Operation[T], bound: BoundConnection[AsyncConnection] | None) -> T:
        """Registers the app's declarations, starts runs in the caller's transaction or a separate one, and wakes workers."""
        if not self._registration.is_complete:
            await self._registration.prepare(None if bound is None else bound.adapter)
        if bound is None:
            stored = await self.store.run(runs)
            self._notify()
        else:
            stored = await run_on_async(runs, self.store.dialect, bound.adapter)
            bound.after_commit(self._notify)
        return stored

    def start_sync(self, runs: Operation[T], bound: BoundConnection[Connection] | None) -> T:
        """`start`, blocking."""
        if not self._registration.is_complete:
            self._registration.prepare_sync(None if bound is None else bound.adapter)
        if bound is None:
            stored = self.store.run_sync(runs)
            self._notify()
        else:
            stored = run_on(runs, self.store.dialect, bound.adapter)
            bound.after_commit(self._notify)
        return stored

    @property
    def fanout(self) -> Fanout:
        """The subscriptions for an operation that publishes; those of an app that is not registered are not cached."""
        return self._fanout if self._registration.is_complete else Fanout(flows=self._registration.flows)

    async def run(self, operation: Operation[T], bound: BoundConnection[AsyncConnection] | None, consumer: str) -> T:
        """Runs an operation that subscribes a consumer, in the caller's transaction or a separate one."""
        await self._registration.prepare(None if bound is None else bound.adapter)
        if bound is None:
            return await self.store.run(operation)
        self._fanout.uncommitted.add(consumer)
        return await run_on_async(operation, self.store.dialect, bound.adapter)

    def run_sync(self, operation: Operation[T], bound: BoundConnection[Connection] | None, consumer: str) -> T:
        """`run`, blocking."""
        self._registration.prepare_sync(None if bound is None else bound.adapter)
        if bound is None:
            return self.store.run_sync(operation)
        self._fanout.uncommitted.add(consumer)
        return run_on(operation, self.store.dialect, bound.adapter)

    def _confirm(self, known: Iterable[SubscriptionRecord]) -> None:
        """Marks these subscriptions as committed: another connection has read them."""
        self._fanout.uncommitted.difference_update(one.consumer for one in known)

    def _must_confirm(self) -> bool:
        """Whether to query the subscriptions that a caller's transaction may not have committed.

        Until they are confirmed, lists that name them are not cached: after a rollback the cache would still contain
        them. A subscription that was rolled back stays unconfirmed, which is harmless.
        """
        if time.monotonic() < self._confirmed_at + _CONFIRM_SECONDS:
            return False
        self._confirmed_at = time.monotonic()
        return True


def _check_events(events: Sequence[object]) -> None:
    if type(events) is list:
        return
    if not isinstance(events, Collection) or isinstance(events, str | bytes | Mapping) or hasattr(events, "_fields"):
        raise ConfigurationError(
            f"publish_many takes a list of events, not {type(events).__name__}; give instances, or tuples of a name "
            "and a payload"
        )


def _pair(event: object) -> tuple[object, object]:
    """Name or class and payload of an event of `publish_many`; an instance is both."""
    if type(event) is not tuple:
        return event, None
    if len(event) != 2:
        raise ConfigurationError(f"publish_many got {event!r}; give tuples of a name and a payload")
    return event[0], event[1]


def _plain(events: Sequence[object]) -> tuple[str, list[object]] | None:
    """The name and the payloads of events with one name and without a class, as most batches are; None for others."""
    name, _ = _pair(events[0])
    if type(name) is not str:
        return None
    alike = [one[1] for one in events if type(one) is tuple and len(one) == 2 and one[0] is name]
    return None if len(alike) < len(events) else (name, [{} if payload is None else payload for payload in alike])


def _described(events: Sequence[object], checks: bool) -> list[tuple[str, object, EventType | None, bool]]:
    """What `_named` returns for each event."""
    pairs = list(map(_pair, events))
    name = pairs[0][0]
    # Most batches have one name without a class.
    if type(name) is str and all(other is name for other, _ in pairs):
        return [(name, {} if payload is None else payload, None, False) for _, payload in pairs]
    return [_named(name, payload, checks) for name, payload in pairs]


@contextlib.contextmanager
def _tables_created_later() -> Iterator[None]:
    """Ignores that the first publish into a new file finds no table to lock: creating the tables takes the lock."""
    try:
        yield
    except Exception as error:
        if "no such table" not in str(error):
            raise


def _named(event: object, payload: object, checks: bool) -> tuple[str, object, EventType | None, bool]:
    """Type, payload, event class, and whether the payload must still be checked against the class.

    A plain name has no class; a header may state its version.
    """
    if isinstance(event, str):
        return event, {} if payload is None else payload, None, False
    if isinstance(event, type):
        known = event_type(event)
        if payload is None:
            raise ConfigurationError(
                f"{known.name} is published without a payload; pass an instance, or the class and a payload"
            )
        # A TypedDict does not support isinstance: its values are dicts.
        if not isinstance(payload, dict) and not is_typed_dict(event) and isinstance(payload, event):
            return known.name, payload, known, checks and not known.checks_itself
        # Invalid input is rejected here, and defaults are added.
        return known.name, known.build(payload) if checks else payload, known, False
    if payload is not None:
        raise ConfigurationError("an event instance is the payload; leave the second argument out")
    known = event_type(type(event))
    return known.name, event, known, checks and not known.checks_itself
