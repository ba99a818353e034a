"""Converts a Kafka message to a record."""

from datetime import UTC, datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from holdfast.brokers.endpoint import header_text
from holdfast.brokers.offsets import TrackedOffset
from holdfast.brokers.protocol import Record


def record_of(message: Message, tracked: TrackedOffset) -> Record:
    """The record, identified by partition, offset and time."""
    key, (kind, milliseconds) = message.key(), message.timestamp()
    has_time = kind != TIMESTAMP_NOT_AVAILABLE
    id = f"{tracked.partition}-{tracked.offset}"
    return Record(
        stream=message.topic() or "",
        # With the time, a record of a topic that was created again does not get the id of an earlier record.
        id=f"{id}-{milliseconds}" if has_time else id,
        body=message.value() or b"",
        headers={name: header_text(value) for name, value in dict(message.headers() or ()).items()},
        key=None if key is None else header_text(key),
        at=time_of(milliseconds) if has_time else None,
        receipt=tracked,
        partition=tracked.partition,
        offset=tracked.offset,
    )


def time_of(milliseconds: int) -> datetime | None:
    """The time of a record; None if it is out of range."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # Some producers send microseconds. A record that could not be decoded would stop its partition.
        return None
