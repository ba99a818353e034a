"""Decodes a broker's record into a message.

A record that cannot be decoded becomes a message of the type `holdfast.raw`, which contains the record unchanged.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.brokers import cloudevents
from holdfast.brokers.ingestion import EventRule
from holdfast.brokers.protocol import Record
from holdfast.core.errors import InvalidKey, InvalidPayload, UnreadableRecord
from holdfast.core.events import payload
from holdfast.core.events.pattern import ANY, matches
from holdfast.core.events.payload import MAX_HEADER_BYTES, MAX_HEADERS, indexable
from holdfast.core.key import check_key
from holdfast.core.message import (
    PROVENANCE,
    RAW_TYPE,
    SOURCE_EVENT_ID,
    SOURCE_MESSAGE_ID,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_STREAM,
    Address,
    NewMessage,
    new_message,
)
from holdfast.core.values.names import MAX_NAME, check_name
from holdfast.core.values.text import storable

MAX_RAW_BYTES = 64 * 1024 * 1024
"""A longer body is cut here: a database does not accept values of every size that a broker accepts."""

MISSING_ID_PREFIX = "fresh:"
"""Prefix of the random key of a record without an id: each redelivery of it is a new message."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:/-]")
# About the record's bytes, and what only Holdfast sets.
_NOT_KEPT = PROVENANCE | {"content-type"}
_RAW_ENVELOPE = 4096 + 8 * MAX_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDecoder:
    """Decodes the records of one consumer's source.

    `origin` is the prefix of a message's source, before the name of the stream. `patterns` are the types that the
    consumer handles; if there is only one, a record without a type has that type. `fresh` creates message ids. With
    `events` a record becomes an event for all subscribers; only unreadable records go to `address`.
    """

    origin: str
    patterns: tuple[str, ...]
    address: Address
    generation: int
    max_bytes: int
    fresh: Callable[[], UUID]
    events: EventRule | None = None

    def message(self, record: Record, id: UUID | None = None) -> NewMessage | None:
        """The record as a message; None if the consumer does not handle its type.

        Raises `UnreadableRecord` if it cannot be stored as a message. The payload of an event is validated; for a single
        consumer it is not, because an invalid payload fails in the handler, like any other error.
        """
        if record.lost is not None:
            raise self._unreadable(record, record.lost)
        try:
            event = cloudevents.decode(record)
            if event is None:
                type, body, headers = self._only_type(record), payload.decode(record.body), record.headers
                occurred_at = record.at
            else:
                type, body, headers, occurred_at = event.type, event.data, event.headers, event.occurred_at
            if not any(matches(pattern, type) for pattern in self.patterns):
                return None
            if type == RAW_TYPE:
                # Its stored record would be decoded as if it came from any stream that the sender names.
                raise self._unreadable(record, f"only Holdfast creates messages of type {RAW_TYPE}; send another type")
            identity = record.id if event is None else f"{event.source}#{event.id}"
            if self.events is None:
                key = self._key(identity)
                provenance: dict[str, object] = {} if record.id == key else {SOURCE_MESSAGE_ID: record.id}
            else:
                key = self.events.key_of(record, body, headers) or self._key(identity)
                headers = self.events.kept_headers(headers, is_plain=event is None)
                provenance = _provenance(record) | (
                    {} if event is None or identity == key else {SOURCE_EVENT_ID: identity}
                )
            kept = self._kept_headers(headers, provenance)
            message = self._new(id or self.fresh(), type, record, body, key, kept, occurred_at, self.max_bytes)
            if self.events is None:
                return message
            self.events.check(message)
            return message._replace(addressed=())
        except UnreadableRecord:
            raise
        except Exception as error:
            # Any error of a decoder: one record must not stop the stream.
            raise self._unreadable(record, getattr(error, "problem", None) or str(error) or repr(error)) from error

    def raw(self, record: Record, *, unique: bool = False) -> NewMessage:
        """The unchanged record as a message; a replay decodes it again with `record_of`.

        With `unique` its key differs from every other, even from a record with the same id.
        """
        kept = {
            "stream": record.stream,
            "id": _text(record.id),
            "key": _text(record.key),
            "headers": _headers(record.headers),
            "body": base64.b64encode(record.body[:MAX_RAW_BYTES]).decode(),
            "size": len(record.body),
            "at": None if record.at is None else record.at.isoformat(),
            "lost": record.lost,
        }
        provenance: dict[str, object] = {}
        if self.events is not None:
            kept |= {"partition": record.partition, "offset": record.offset}
            provenance = _provenance(record)
        key = self._key(None if record.id is None or unique else f"raw:{record.id}")
        room = _RAW_ENVELOPE + 2 * MAX_RAW_BYTES
        headers = self._kept_headers(record.headers, provenance)
        return self._new(self.fresh(), RAW_TYPE, record, kept, key, headers, record.at, room)

    def source_of(self, stream: str) -> str:
        """The source of a message. A stream name that is too long or has other characters gets a hash as its suffix."""
        name = f"{self.origin}:{stream}"
        if len(name) <= MAX_NAME and not _NOT_IN_NAMES.search(name):
            return check_name("source", name)
        suffix = hashlib.sha256(stream.encode(errors="surrogatepass")).hexdigest()[:12]
        return check_name("source", f"{_NOT_IN_NAMES.sub('-', name)[: MAX_NAME - 13]}-{suffix}")

    def _new(
        self,
        id: UUID,
        type: str,
        record: Record,
        body: object,
        key: str,
        headers: Mapping[str, str],
        occurred_at: datetime | None,
        max_bytes: int,
    ) -> NewMessage:
        return new_message(
            id=id,
            type=type,
            source=self.source_of(record.stream),
            payload=body,
            key=key,
            headers=headers,
            generation=self.generation,
            occurred_at=occurred_at,
            addressed=[self.address],
            max_bytes=max_bytes,
        )

    def _kept_headers(self, given: Mapping[str, str], provenance: Mapping[str, object]) -> dict[str, str]:
        """The headers of a record that its message keeps, after those that Holdfast sets."""
        first = {name: _text(str(value)) or "" for name, value in provenance.items() if value is not None}
        kept = {name: value for name, value in given.items() if name.lower() not in _NOT_KEPT}
        return _headers(first | kept)

    def _key(self, identity: str | None) -> str:
        """The message key that identifies a record in its stream; random if the broker has no id."""
        if identity is None:
            return f"{MISSING_ID_PREFIX}{self.fresh()}"
        try:
            return check_key(identity)
        except InvalidKey:
            return f"sha256:{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()}"

    def _only_type(self, record: Record) -> str:
        (pattern, *others) = self.patterns
        if others or pattern == ANY or pattern.endswith(".*"):
            raise self._unreadable(
                record,
                "it has no type, and the consumer handles several types; send CloudEvents, or give the consumer one type",
            )
        return pattern

    def _unreadable(self, record: Record, problem: str) -> UnreadableRecord:
        return UnreadableRecord(self.source_of(record.stream), _text(record.id), problem)


def record_of(kept: object) -> Record:
    """The record inside a raw message's payload."""
    if not isinstance(kept, dict) or not isinstance(kept.get("body"), str):
        raise InvalidPayload("$.body", "the payload is not a stored raw record; discard the delivery")
    size, body = kept.get("size"), base64.b64decode(kept["body"])
    lost = kept.get("lost")
    if lost is None and size != len(body):
        lost = f"only the first {len(body):,} of its {size:,} bytes were kept"
    at = kept.get("at")
    return Record(
        stream=str(kept.get("stream")),
        id=kept.get("id"),
        body=body,
        headers=kept.get("headers") or {},
        key=kept.get("key"),
        at=None if at is None else datetime.fromisoformat(at),
        lost=lost,
        partition=kept.get("partition"),
        offset=kept.get("offset"),
    )


def _provenance(record: Record) -> dict[str, object]:
    """The position of a record in its broker."""
    return {
        SOURCE_MESSAGE_ID: record.id,
        SOURCE_STREAM: record.stream,
        SOURCE_PARTITION: record.partition,
        SOURCE_OFFSET: record.offset,
    }


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    """As many headers as a message can have. A header that cannot be stored is dropped; the record is not rejected."""
    kept: dict[str, str] = {}
    size = 0
    for name, value in given.items():
        size += len(name.encode(errors="replace")) + len(value.encode(errors="replace"))
        if len(kept) == MAX_HEADERS or size > MAX_HEADER_BYTES:
            break
        if name and storable(name) and storable(value) and indexable(name, value):
            kept[name] = value
    return kept


def _text(value: str | None) -> str | None:
    return value if value is None or storable(value) else value.encode(errors="backslashreplace").decode()
