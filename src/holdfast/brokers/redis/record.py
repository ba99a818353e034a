"""Converts an entry of a Redis stream to a record."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast.brokers.protocol import Record

BODY, KEY = "body", "key"
TRIMMED = "it was trimmed or deleted from the stream before it was read; its content is lost"


def record_of(stream: str, id: Any, fields: Mapping[bytes, bytes] | None, delivery_count: int) -> Record:
    """The record; `fields` is None for an entry whose content the server has dropped."""
    name = text(id)
    at = datetime.fromtimestamp(int(name.partition("-")[0]) / 1000, UTC) if _has_time(name) else None
    body, headers = (b"", {}) if fields is None else _content(fields)
    return Record(
        stream=stream,
        id=name,
        body=body,
        headers=headers,
        key=headers.pop(KEY, None),
        at=at,
        delivery_count=delivery_count,
        receipt=id,
        lost=TRIMMED if fields is None else None,
    )


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _content(fields: Mapping[bytes, bytes]) -> tuple[bytes, dict[str, str]]:
    body = fields.get(BODY.encode())
    try:
        texts = {name.decode(): value.decode() for name, value in fields.items() if name != BODY.encode()}
    except UnicodeDecodeError:
        if body is None:
            # Not text and so not JSON: the decoder rejects it, and the dead letter contains these bytes.
            return b"\n".join(name + b"=" + value for name, value in fields.items()), {}
        texts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
        texts.pop(BODY, None)
    return (orjson.dumps(texts), {}) if body is None else (body, texts)


def _has_time(id: str) -> bool:
    """Whether an id starts with a time. Redis creates such ids, but a producer may choose another."""
    milliseconds = id.partition("-")[0]
    return milliseconds.isdigit() and 10**12 <= int(milliseconds) < 10**14
