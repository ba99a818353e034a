"""Converts an AMQP message to a record."""

from collections.abc import Mapping

from aiormq.abc import DeliveredMessage

from holdfast.brokers.endpoint import header_text
from holdfast.brokers.protocol import Record

KEY = "key"
_DELIVERY_COUNT = "x-delivery-count"


def record_of(queue: str, message: DeliveredMessage, receipt: object) -> Record:
    properties = message.header.properties
    # Without the delivery count: a record must be equal on each delivery.
    headers = {
        name: header_text(value) for name, value in (properties.headers or {}).items() if name != _DELIVERY_COUNT
    }
    if properties.content_type:
        headers["content-type"] = properties.content_type
    return Record(
        stream=queue,
        id=properties.message_id or None,
        body=message.body,
        headers=headers,
        key=headers.get(KEY),
        at=properties.timestamp,
        delivery_count=_delivery_count(properties.headers or {}, redelivered=bool(message.redelivered)),
        receipt=receipt,
    )


def _delivery_count(headers: Mapping[str, object], *, redelivered: bool) -> int:
    count = headers.get(_DELIVERY_COUNT)  # only quorum queues send it
    return count + 1 if isinstance(count, int) else 2 if redelivered else 1
