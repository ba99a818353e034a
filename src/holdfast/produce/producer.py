"""The producer: builds messages and writes them where the caller says."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.core.correlation import correlation
from holdfast.core.errors import ConfigurationError, StoreError
from holdfast.core.event import VERSION_HEADER, EventType, event_type, is_typed_dict, redactions_of, validate
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.payload import MAX_BYTES, encode
from holdfast.core.redact import Redaction
from holdfast.produce.commit import after_commit
from holdfast.stores.connection import AsyncConnection, Connection, run_on, run_on_async
from holdfast.stores.durability import durable, durable_async
from holdfast.stores.joining import join, join_sync
from holdfast.stores.overview import Subscribed, subscribed
from holdfast.stores.protocol import Store
from holdfast.stores.publish import STREAMED, Fanout, Messages, Published, Unmade, publish, publish_alone, write_first

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
    ) -> None:
        self.store, self.source, self.generation = store, source, generation
        self._max_payload = max_payload
        self._committed, self._secret = committed, secret
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
        chance: int | None = None,
        key_scope: str | None = None,
    ) -> NewMessage:
        """A checked message: `event` is an instance of an event class, or the class or name with its `payload`.

        `chance` are the 74 random bits of its id, for who makes many and has asked the system for all of them at once.
        """
        type, body, version, secret = _named(event, payload)
        if secret:
            self._secret(secret)
        carried: dict[str, object] = dict(correlation())
        if headers:
            carried |= headers
        if version is not None:
            carried.pop(VERSION_HEADER, None)
            if version != 1:
                carried[VERSION_HEADER] = str(version)
        return new_message(
            id=_id(self._random.getrandbits(74) if chance is None else chance),
            type=type,
            source=self.source,
            payload=body,
            key=key,
            headers=carried,
            generation=self.generation,
            occurred_at=occurred_at,
            addressed=addressed,
            max_bytes=self._max_payload,
            key_scope=key_scope,
        )

    def build_many(self, events: Sequence[object], headers: Mapping[str, object] | None, *, at_once: bool) -> Messages:
        """Checked messages of instances, or of pairs of name (or class) and payload: made `at_once`, or, where there
        are many, while they are written."""

        def make() -> Iterator[NewMessage]:
            # What is alike in all messages of a type is checked with the first of them.
            first: dict[tuple[str, int | None], NewMessage] = {}
            for event, chance in zip(events, _chances(len(events)), strict=True):
                name, payload = event if type(event) is tuple else (event, None)
                named, body, version, _ = _named(name, payload)
                if (like := first.get((named, version))) is None:
                    like = first[named, version] = self.build(name, payload, headers=headers, chance=chance)
                    yield like
                else:
                    text = encode(body, max_bytes=self._max_payload)
                    yield NewMessage(_id(chance), named, like.source, text, None, like.headers, like.generation)

        if at_once or len(events) < STREAMED:
            return list(make())
        # What is secret must be known before the first of them is written.
        kinds: set[object] = set(map(type, events))
        if tuple in kinds:
            kinds |= {event[0] for event in events if type(event) is tuple}
        if secret := redactions_of(kinds):
            self._secret(secret)
        return Unmade(make)

    async def publish(
        self,
        messages: Messages,
        conn: Any,
        joined: AsyncConnection | None = None,
        *,
        trusted: bool = True,
    ) -> list[Published]:
        """Writes in the caller's transaction, or with `conn=None` in one of its own.

        `joined` is what `join` gave for this connection, if it was asked before. `trusted` says that the subscriptions
        seen there are committed: those of a transaction that still may roll back must not be remembered.
        """
        if trusted and self._must_ask():
            with contextlib.suppress(StoreError):
                self._certain(await self.store.run(subscribed()))
        fanout = self._fanout if trusted else Fanout()
        if conn is None:
            alone = publish_alone(messages, fanout)
            stored = await self.store.run(alone) if alone else None
            if stored is None:
                stored = await self.store.run(publish(messages, fanout, own=True))
            self._hint()
            return stored
        adapter = joined or await self.join(conn)
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
                self._certain(self.store.run_sync(subscribed()))
        fanout = self._fanout if trusted else Fanout()
        if conn is None:
            alone = publish_alone(messages, fanout)
            stored = self.store.run_sync(alone) if alone else None
            if stored is None:
                stored = self.store.run_sync(publish(messages, fanout, own=True))
            self._hint()
            return stored
        adapter = joined or self.join_sync(conn)
        published = run_on(publish(messages, fanout), self.store.dialect, adapter)
        after_commit(conn, self._hint)
        return published

    async def join(self, conn: Any, call: str = "hf.publish") -> AsyncConnection:
        """The caller's connection, ready to be written to: in a transaction, and on SQLite with the write lock held.

        `call` is what the user called, named in the `TypeError` for a connection of the other colour.
        """
        adapter = await join(self.store, conn, call)
        if adapter.database == "sqlite":
            with _made_later():
                await run_on_async(write_first(), self.store.dialect, adapter)
            if not self._doubted:
                self._doubted = not await durable_async(adapter)
        return adapter

    def join_sync(self, conn: Any, call: str = "hf.publish") -> Connection:
        """`join`, blocking."""
        adapter = join_sync(self.store, conn, call)
        if adapter.database == "sqlite":
            with _made_later():
                run_on(write_first(), self.store.dialect, adapter)
            if not self._doubted:
                self._doubted = not durable(adapter)
        return adapter

    def doubt(self, consumer: str) -> None:
        """A consumer was subscribed in a caller's transaction: until that is known to be committed, lists that name it
        are not remembered, or else a rollback would leave it in them for ever."""
        self._fanout.unsure.add(consumer)

    def _certain(self, known: Iterable[Subscribed]) -> None:
        """These are committed: another connection has seen them."""
        self._fanout.unsure.difference_update(one.consumer for one in known)

    def _must_ask(self) -> bool:
        """Whether it is time to look if what was in doubt is committed; what was rolled back stays, and does no harm."""
        if not self._fanout.unsure or time.monotonic() < self._asked_at + _ASK_SECONDS:
            return False
        self._asked_at = time.monotonic()
        return True

    def _hint(self) -> None:
        if self._committed is not None:
            self._committed()


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


def _named(event: object, payload: object) -> tuple[str, object, int | None, tuple[Redaction, ...]]:
    """Type, payload, version and what is secret; a plain name says its version in a header, if at all."""
    if isinstance(event, str):
        return event, {} if payload is None else payload, None, ()
    if isinstance(event, type):
        known = event_type(event)
        if payload is None:
            raise ConfigurationError(
                f"{known.name} is published without a payload; pass an instance, or the class and one"
            )
        return known.name, _checked(known, payload), known.version, known.redact
    if payload is not None:
        raise ConfigurationError("an event that is an instance is its own payload; pass only one of them")
    known = event_type(type(event))
    return known.name, event, known.version, known.redact


def _checked(known: EventType, payload: object) -> object:
    """A dict given for a class must fit it: bad input is refused at the door."""
    # A TypedDict is no class to ask about instances: its values are dicts.
    if not isinstance(payload, dict) and not is_typed_dict(known.cls) and isinstance(payload, known.cls):
        return payload
    return validate(known.cls, payload)
