"""The producer: builds messages and writes them where the caller says."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.core.errors import ConfigurationError, StoreError
from holdfast.core.events.event import VERSION_HEADER, EventType, EventTypes, event_type, is_typed_dict, redactions_of
from holdfast.core.events.payload import MAX_BYTES, check_headers, encode
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.redaction.redact import Redaction
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.correlation import correlation
from holdfast.produce.commit import after_commit
from holdfast.stores.connections.binding import bind, bind_sync
from holdfast.stores.connections.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.connections.durability import durable, durable_async
from holdfast.stores.messages.publish import (
    STREAMED,
    Fanout,
    LazyMessages,
    Messages,
    Published,
    publish,
    publish_single,
    take_write_lock,
)
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import SubscriptionRecord, subscriptions

_ASK_SECONDS = 1.0


class Producer:
    """Writes messages into a store. Never buffers: a message belongs to the transaction it is published in."""

    def __init__(
        self,
        store: Store,
        source: str,
        *,
        generation: int = 0,
        max_payload: int = MAX_BYTES,
        committed: Callable[[], None] | None = None,
        secret: Callable[[tuple[Redaction, ...]], None] = lambda _: None,
        validate: bool = True,
        declared: EventTypes | None = None,
    ) -> None:
        self.store, self.source, self.generation = store, source, generation
        self._max_payload = max_payload
        self._committed, self._secret = committed, secret
        self._validate = validate
        self._declared = EventTypes() if declared is None else declared
        self._fanout = Fanout()
        self._random = random.SystemRandom()
        self._doubted = False
        self._asked_at = float("-inf")

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
        chance: int | None = None,
        key_scope: str | None = None,
        validate: bool | None = None,
    ) -> NewMessage:
        """A checked message: `event` is an instance of an event class, or the class or name with its `payload`.

        `chance` are the 74 random bits of its id, for a caller that makes many and drew them all at once. `validate`
        says whether the payload must fit the class; as the producer was told if not given.
        """
        checks = self._validate if validate is None else validate
        type, body, known, unchecked = _named(event, payload, checks)
        carried: dict[str, object] = dict(correlation())
        if headers:
            carried |= headers if isinstance(headers, Mapping) else check_headers(headers)
        if known is not None:
            self._declared.add(known)
            if known.redact:
                self._secret(known.redact)
            carried.pop(VERSION_HEADER, None)
            if known.version != 1:
                carried[VERSION_HEADER] = str(known.version)
        message = new_message(
            id=_id(self._random.getrandbits(74) if chance is None else chance),
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
        """Checked messages of instances, or of pairs of name (or class) and payload: made `at_once`, or, where there
        are many, while they are written."""

        checks = self._validate if validate is None else validate
        _check_events(events)

        def make() -> Iterator[NewMessage]:
            # What is alike in all messages of a type is checked with the first of them.
            first: dict[str | type, NewMessage] = {}
            for event, chance in zip(events, _chances(len(events)), strict=True):
                if type(event) is tuple and len(event) != 2:
                    raise ConfigurationError(f"publish_many got {event!r}; a tuple is a name and a payload")
                name, payload = event if type(event) is tuple else (event, None)
                named, body, known, unchecked = _named(name, payload, checks)
                kind = named if known is None else known.cls
                if (like := first.get(kind)) is None:
                    like = self.build(name, payload, headers=headers, retry=retry, chance=chance, validate=checks)
                    first[kind] = like
                    yield like
                else:
                    text = encode(body, max_bytes=self._max_payload)
                    if unchecked and known is not None:
                        known.check(text)
                    yield NewMessage(
                        _id(chance), named, like.source, text, None, like.headers, like.generation, retry=like.retry
                    )

        if at_once or retry is not None or len(events) < STREAMED:
            return list(make())
        # What is secret must be known before the first of them is written.
        kinds: set[object] = set(map(type, events))
        if tuple in kinds:
            kinds |= {event[0] for event in events if type(event) is tuple}
        if secret := redactions_of(kinds):
            self._secret(secret)
        return LazyMessages(make)

    async def publish(
        self,
        messages: Messages,
        conn: Any,
        joined: AsyncConnection | None = None,
        *,
        trusted: bool = True,
    ) -> list[Published]:
        """Writes in the caller's transaction, or with `conn=None` in one of its own.

        `joined` is what `bind` gave for this connection, if it was asked before. `trusted` says that the subscriptions
        seen there are committed: those of a transaction that still may roll back must not be remembered.
        """
        if trusted and self._must_ask():
            with contextlib.suppress(StoreError):
                self._certain(await self.store.run(subscriptions()))
        fanout = self._fanout if trusted else Fanout()
        if conn is None:
            alone = publish_single(messages, fanout)
            stored = await self.store.run(alone) if alone else None
            if stored is None:
                stored = await self.store.run(publish(messages, fanout, own=True))
            self._hint()
            return stored
        adapter = joined or await self.bind(conn)
        published = await run_on_async(publish(messages, fanout), self.store.dialect, adapter)
        after_commit(conn, self._hint)
        return published

    def publish_sync(
        self,
        messages: Messages,
        conn: Any,
        joined: Connection | None = None,
        *,
        trusted: bool = True,
    ) -> list[Published]:
        """`publish`, blocking."""
        if trusted and self._must_ask():
            with contextlib.suppress(StoreError):
                self._certain(self.store.run_sync(subscriptions()))
        fanout = self._fanout if trusted else Fanout()
        if conn is None:
            alone = publish_single(messages, fanout)
            stored = self.store.run_sync(alone) if alone else None
            if stored is None:
                stored = self.store.run_sync(publish(messages, fanout, own=True))
            self._hint()
            return stored
        adapter = joined or self.bind_sync(conn)
        published = run_on(publish(messages, fanout), self.store.dialect, adapter)
        after_commit(conn, self._hint)
        return published

    async def bind(self, conn: Any, call: str = "hf.publish") -> AsyncConnection:
        """The caller's connection, ready to be written to: in a transaction, and on SQLite with the write lock held.

        `call` is what the user called, named in the `TypeError` for a connection of the other colour.
        """
        adapter = await bind(self.store, conn, call)
        if adapter.database == "sqlite":
            with _made_later():
                await run_on_async(take_write_lock(), self.store.dialect, adapter)
            if not self._doubted:
                self._doubted = not await durable_async(adapter)
        return adapter

    def bind_sync(self, conn: Any, call: str = "hf.publish") -> Connection:
        """`bind`, blocking."""
        adapter = bind_sync(self.store, conn, call)
        if adapter.database == "sqlite":
            with _made_later():
                run_on(take_write_lock(), self.store.dialect, adapter)
            if not self._doubted:
                self._doubted = not durable(adapter)
        return adapter

    def doubt(self, consumer: str) -> None:
        """A consumer was subscribed in a caller's transaction: until that is known to be committed, lists that name it
        are not remembered, or else a rollback would leave it in them for ever."""
        self._fanout.uncommitted.add(consumer)

    def _certain(self, known: Iterable[SubscriptionRecord]) -> None:
        """These are committed: another connection has seen them."""
        self._fanout.uncommitted.difference_update(one.consumer for one in known)

    def _must_ask(self) -> bool:
        """Whether it is time to look if what was in doubt is committed; what was rolled back stays, and does no harm."""
        if not self._fanout.uncommitted or time.monotonic() < self._asked_at + _ASK_SECONDS:
            return False
        self._asked_at = time.monotonic()
        return True

    def _hint(self) -> None:
        if self._committed is not None:
            self._committed()


def _check_events(events: Sequence[object]) -> None:
    if not isinstance(events, Collection) or isinstance(events, str | bytes | Mapping) or hasattr(events, "_fields"):
        raise ConfigurationError(
            f"publish_many takes a list of events, and got a {type(events).__name__}; give instances, or tuples of a name "
            "and a payload"
        )


def _id(chance: int) -> UUID:
    return uuid7(time.time_ns() // 1_000_000, chance)


def _chances(number: int) -> Iterator[int]:
    """So many times 74 random bits: the system takes almost as long for ten bytes as for thousands."""
    while number > 0:
        part = min(number, 500)
        drawn = os.urandom(10 * part)
        yield from (int.from_bytes(drawn[at : at + 10], "big") >> 6 for at in range(0, 10 * part, 10))
        number -= part


@contextlib.contextmanager
def _made_later() -> Iterator[None]:
    """The first publish into a new file finds no table to lock; making them is a write."""
    try:
        yield
    except Exception as error:
        if "no such table" not in str(error):
            raise


def _named(event: object, payload: object, checks: bool) -> tuple[str, object, EventType | None, bool]:
    """Type, payload, its class, and whether the payload is yet to be checked against it.

    A plain name has no class; it says its version in a header, if at all.
    """
    if isinstance(event, str):
        return event, {} if payload is None else payload, None, False
    if isinstance(event, type):
        known = event_type(event)
        if payload is None:
            raise ConfigurationError(
                f"{known.name} is published without a payload; pass an instance, or the class and one"
            )
        # A TypedDict is no class to ask about instances: its values are dicts.
        if not isinstance(payload, dict) and not is_typed_dict(event) and isinstance(payload, event):
            return known.name, payload, known, checks and not known.checks_itself
        # Bad input is refused here, and what it leaves out is completed.
        return known.name, known.build(payload) if checks else payload, known, False
    if payload is not None:
        raise ConfigurationError("an event that is an instance is its own payload; pass only one of them")
    known = event_type(type(event))
    return known.name, event, known, checks and not known.checks_itself
