"""Converts a JetStream message to a record."""

from typing import TYPE_CHECKING

from holdfast.brokers.protocol import Record

if TYPE_CHECKING:
    from nats.aio.msg import Msg

SUBJECT = "nats-subject"
"""The header with the subject of a record; a stream can contain many subjects."""


def record_of(msg: "Msg") -> Record:
    metadata = msg.metadata
    return Record(
        stream=metadata.stream,
        # With the time, because a stream that is deleted and created again counts from one again.
        id=f"{metadata.sequence.stream}-{int(metadata.timestamp.timestamp() * 1_000_000)}",
        body=msg.data,
        headers={**(msg.headers or {}), SUBJECT: msg.subject},
        at=metadata.timestamp,
        delivery_count=metadata.num_delivered,
        receipt=msg.reply,
        offset=metadata.sequence.stream,
    )
