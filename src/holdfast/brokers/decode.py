"""From a broker's record to a message: what it is and what tells it apart, or why it cannot be read.

A record that cannot be read becomes a message too, of the type `holdfast.raw`, that holds it as it came.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.brokers import cloudevents
from holdfast.brokers.identity import is_identity
from holdfast.brokers.protocol import Record
from holdfast.core.errors import InvalidKey, InvalidPayload, UnreadableRecord
from holdfast.core.events import payload
from holdfast.core.events.pattern import ANY, matches
from holdfast.core.events.payload import MAX_HEADER_BYTES, MAX_HEADERS
from holdfast.core.key import check_key
from holdfast.core.message import RAW_TYPE, SOURCE_MESSAGE_ID, Address, NewMessage, new_message
from holdfast.core.names import MAX_NAME, check_name
from holdfast.core.text import storable

MOST_RAW = 64 * 1024 * 1024
"""A longer body is kept up to here: databases do not take everything that a broker does."""

NAMELESS = "fresh:"
"""What the key of a record begins with that nothing tells apart: each hand-over of it is a message of its own."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:/-]")
# About the record's bytes, and what only Holdfast sets.
_NOT_CARRIED = frozenset({"content-type", SOURCE_MESSAGE_ID})
_RAW_ENVELOPE = 4096 + 8 * MAX_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the records of one consumer's source are read.

    `origin` goes before the stream's name in a message's source. `patterns` say which types the consumer takes; a
    record that names no type has the only one there is. `fresh` makes message ids. Headers that name a user, a tenant or
    their rights are carried only with `trust_identity`: anyone who can write to the stream can set them.
    """

    origin: str
    patterns: tuple[str, ...]
    address: Address
    generation: int
    max_bytes: int
    fresh: Callable[[], UUID]
    trust_identity: bool = False

    def message(self, record: Record, id: UUID | None = None) -> NewMessage | None:
        """The message a record is; none when it is of a type that the consumer does not take.

        `UnreadableRecord` for one that cannot be stored as a message. Nothing is said here about the shape of its
        payload: that is for the handler, and fails as any other.
        """
        if record.lost is not None:
            raise self._unreadable(record, record.lost)
        try:
            found = cloudevents.decode(record)
            if found is None:
                type, body, headers = self._only_type(record), payload.decode(record.body), record.headers
                occurred_at = record.at
            else:
                type, body, headers, occurred_at = found.type, found.data, found.headers, found.occurred_at
            if not any(matches(pattern, type) for pattern in self.patterns):
                return None
            if type == RAW_TYPE:
                # Read anew, it would speak for any stream that its sender names in it.
                raise self._unreadable(record, f"only Holdfast itself makes messages of the type {RAW_TYPE}")
            key = self._key(record.id if found is None else f"{found.source}#{found.id}")
            kept = self._carried(headers, None if record.id == key else _text(record.id))
            return self._new(id or self.fresh(), type, record, body, key, kept, occurred_at, self.max_bytes)
        except UnreadableRecord:
            raise
        except Exception as error:
            # Whatever a decoder makes of strange bytes: one record must not stop the stream.
            raise self._unreadable(record, getattr(error, "problem", None) or str(error) or repr(error)) from error

    def raw(self, record: Record, *, anew: bool = False) -> NewMessage:
        """The record as it came, as a message. Replayed, it is read anew with `record_of`.

        `anew` tells it apart from every other, also from one of the same id.
        """
        kept = {
            "stream": record.stream,
            "id": _text(record.id),
            "key": _text(record.key),
            "headers": _headers(record.headers),
            "body": base64.b64encode(record.body[:MOST_RAW]).decode(),
            "size": len(record.body),
            "at": None if record.at is None else record.at.isoformat(),
            "lost": record.lost,
        }
        key = self._key(None if record.id is None or anew else f"raw:{record.id}")
        room = _RAW_ENVELOPE + 2 * MOST_RAW
        return self._new(self.fresh(), RAW_TYPE, record, kept, key, self._carried(record.headers), record.at, room)

    def source_of(self, stream: str) -> str:
        """A message's source; a stream's name that has other characters, or too many, is told apart by a hash."""
        name = f"{self.origin}:{stream}"
        if len(name) <= MAX_NAME and not _NOT_IN_NAMES.search(name):
            return check_name("source", name)
        mark = hashlib.sha256(stream.encode(errors="surrogatepass")).hexdigest()[:12]
        return check_name("source", f"{_NOT_IN_NAMES.sub('-', name)[: MAX_NAME - 13]}-{mark}")

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

    def _carried(self, given: Mapping[str, str], source_message_id: str | None = None) -> dict[str, str]:
        """The headers of a record that its message keeps, and with it the handler's calls and events."""
        first = {} if source_message_id is None else {SOURCE_MESSAGE_ID: source_message_id}
        kept = {
            name: value
            for name, value in given.items()
            if name.lower() not in _NOT_CARRIED and (self.trust_identity or not is_identity(name))
        }
        return _headers(first | kept)

    def _key(self, told_apart: str | None) -> str:
        """What tells a record from others of its stream, in the form of a key; chance where the broker says nothing."""
        if told_apart is None:
            return f"{NAMELESS}{self.fresh()}"
        try:
            return check_key(told_apart)
        except InvalidKey:
            return f"sha256:{hashlib.sha256(told_apart.encode(errors='surrogatepass')).hexdigest()}"

    def _only_type(self, record: Record) -> str:
        (pattern, *others) = self.patterns
        if others or pattern == ANY or pattern.endswith(".*"):
            raise self._unreadable(
                record, "it does not say its type, and the consumer takes several; send CloudEvents, or name one type"
            )
        return pattern

    def _unreadable(self, record: Record, problem: str) -> UnreadableRecord:
        return UnreadableRecord(self.source_of(record.stream), _text(record.id), problem)


def record_of(kept: object) -> Record:
    """The record inside a raw message's payload."""
    if not isinstance(kept, dict) or not isinstance(kept.get("body"), str):
        raise InvalidPayload("$.body", "this is no raw record; discard it")
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
    )


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    """As many of a record's headers as a message can carry: one that cannot be stored is left out, not refused."""
    kept: dict[str, str] = {}
    size = 0
    for name, value in given.items():
        size += len(name.encode(errors="replace")) + len(value.encode(errors="replace"))
        if len(kept) == MAX_HEADERS or size > MAX_HEADER_BYTES:
            break
        if name and storable(name) and storable(value):
            kept[name] = value
    return kept


def _text(value: str | None) -> str | None:
    return value if value is None or storable(value) else value.encode(errors="backslashreplace").decode()
