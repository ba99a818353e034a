"""Identifiers: time-ordered message ids, and delivery ids derived from message and consumer.

A delivery id *is* the pair (message, consumer), so the primary key alone guarantees one delivery per
pair, without a second unique index. It keeps the first 64 bits of the message id, so the
deliveries of a message lie next to each other and in the order of publishing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from struct import iter_unpack
from uuid import UUID, SafeUUID

_LOW_12, _LOW_62 = (1 << 12) - 1, (1 << 62) - 1
_VERSION_7, _VARIANT = 0x7000 << 64, 0b10 << 62
_blank, _set = object.__new__, object.__setattr__
# Looked up once: a lookup on the class takes as long as the rest of the function.
_UNKNOWN = SafeUUID.unknown


def uuid7(unix_ms: int, random_bits: int) -> UUID:
    """Return the UUIDv7 of a Unix time in milliseconds and 74 random bits, both given by the caller."""
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError(f"unix_ms {unix_ms} does not fit in 48 bits; pass milliseconds since 1970")
    if not 0 <= random_bits < 1 << 74:
        raise ValueError("random_bits does not fit in 74 bits; pass getrandbits(74)")
    high = unix_ms << 16 | 0x7000 | random_bits >> 62
    return uuid_of(high << 64 | _VARIANT | random_bits & _LOW_62)


def uuid7_at(unix_ns: int, random_bits: int) -> UUID:
    """Return the UUIDv7 of a Unix time in nanoseconds and 62 random bits.

    The twelve bits after the milliseconds hold their fraction (RFC 9562, method 3), so ids that are created more than
    a quarter of a microsecond apart sort by their time.
    """
    return uuid7(unix_ns // 1_000_000, (_ticks(unix_ns) & _LOW_12) << 62 | random_bits)


def uuid7s(unix_ns: int, random: bytes) -> list[UUID]:
    """Return a UUIDv7 for each eight random bytes, in ascending order. Each one is a quarter of a microsecond later than
    the one before it, so the ids of their deliveries ascend too."""
    pairs = enumerate(iter_unpack(">Q", random), _ticks(unix_ns))
    return uuids_of(
        (tick >> 12) << 80 | _VERSION_7 | (tick & _LOW_12) << 64 | _VARIANT | low & _LOW_62 for tick, (low,) in pairs
    )


def time_after(id: UUID) -> int:
    """Return the earliest Unix time in nanoseconds whose ids are all above this one."""
    tick = (id.int >> 80 << 12 | id.int >> 64 & _LOW_12) + 1
    return -(tick * -1_000_000 // 4096)


def _ticks(unix_ns: int) -> int:
    """The time in units of 1/4096 of a millisecond."""
    return unix_ns * 4096 // 1_000_000


def first_id(at: datetime, skew: timedelta = timedelta(0)) -> UUID:
    """Return the lowest id of messages and deliveries created `skew` after this time: ids begin with their time."""
    return uuid7(max(0, int((at.timestamp() + skew.total_seconds()) * 1000)), 0)


def uuid_of(number: int) -> UUID:
    """Return `UUID(int=number)` in half the time: the constructor checks all other forms of an id first."""
    made = _blank(UUID)
    _set(made, "int", number)
    _set(made, "is_safe", _UNKNOWN)
    return made


def uuids_of(numbers: Iterable[int]) -> list[UUID]:
    """Return `uuid_of` each number."""
    ids: list[UUID] = []
    for number in numbers:
        made = _blank(UUID)
        _set(made, "int", number)
        _set(made, "is_safe", _UNKNOWN)
        ids.append(made)
    return ids


def delivery_id(message_id: UUID, consumer: str) -> UUID:
    """Return the id of the delivery of `message_id` to `consumer`; the same in every process and release."""
    return uuid_of(message_id.int ^ _consumer_bits(consumer))


def delivery_ids(message_ids: Iterable[UUID], consumer: str) -> list[UUID]:
    """Return the `delivery_id` of each message."""
    bits = _consumer_bits(consumer)
    return uuids_of(id.int ^ bits for id in message_ids)


def delivery_range(message_id: UUID) -> tuple[UUID, UUID]:
    """Return the lowest and the highest delivery id that can belong to `message_id`.

    Another message of the same millisecond may share the range: narrow an index scan with it, and
    still compare the message id.
    """
    low = message_id.int & ~_LOW_62
    return UUID(int=low), UUID(int=low | _LOW_62)


# Never change this hash: stored delivery ids depend on it.
@lru_cache(maxsize=4096)
def _consumer_bits(consumer: str) -> int:
    digest = blake2b(consumer.encode(), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big") & _LOW_62
