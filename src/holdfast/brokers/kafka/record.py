"""A Kafka message as a record."""

from datetime import UTC, datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from holdfast.brokers.offsets import TrackedOffset
from holdfast.brokers.protocol import Record


def record_of(message: Message, handed: TrackedOffset) -> Record:
    """The record, identified by partition, offset and time."""
    key, (kind, milliseconds) = message.key(), message.timestamp()
    known = kind != TIMESTAMP_NOT_AVAILABLE
    id = f"{handed.partition}-{handed.offset}"
    return Record(
        stream=message.topic() or "",
        # With its time, a record of a topic that was created again is not taken for the earlier one.
        id=f"{id}-{milliseconds}" if known else id,
        body=message.value() or b"",
        headers={name: _text(value) for name, value in dict(message.headers() or ()).items()},
        key=None if key is None else _text(key),
        at=time_of(milliseconds) if known else None,
        receipt=handed,
    )


def time_of(milliseconds: int) -> datetime | None:
    """The time of a record; None if it is out of range."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # Somebody's clock counts in microseconds. A record that could not be read would stop its partition.
        return None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value or ""
