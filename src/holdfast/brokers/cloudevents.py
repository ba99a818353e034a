"""Encodes messages as CloudEvents 1.0, structured or binary, and decodes them.

The headers of a message become extension attributes, whose names have only lower-case letters and digits: `request_id`
is sent as `requestid`. The decoder restores the names in `KNOWN`. Other names that changed are sent in the attribute
`holdfastheaders`, from which Holdfast restores them; other receivers see the short name.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from holdfast.brokers.protocol import OutgoingRecord, Record
from holdfast.core.encryption import check_decrypted
from holdfast.core.events.event import VERSION_HEADER
from holdfast.core.events.payload import json_problem, utf8_problem
from holdfast.core.message import Message

STRUCTURED = "application/cloudevents+json"
JSON = "application/json"

KNOWN = (
    *("request_id", "trace_id", "user_id", "org_id", "actor_type", "actor_key", "run_id", "module_id", "mission_id"),
    *("mission_instance_id", "stage_id", "correlation_id", "causation_id", "idempotency_key", "scheduled_for"),
    VERSION_HEADER,
)
"""Headers whose names the decoder restores without `holdfastheaders`."""

_LONG = {name.replace("_", ""): name for name in KNOWN}
_CORE = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "database64"}
)
_PARTITION = "partitionkey"
_NAMES = "holdfastheaders"
"""A JSON object from short names to the original header names."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")
# The prefix of an attribute in a record's headers: `ce_` in Kafka, `ce-` in NATS and HTTP, `cloudEvents:` or `_` in AMQP.
_MARK = re.compile(r"(?:ce[_-]|cloudevents[:_])([a-z0-9]+)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


class Mode(StrEnum):
    """Where the attributes are: in one JSON document with the data, or in the headers of the record."""

    STRUCTURED = "structured"
    BINARY = "binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """A received CloudEvent. `data` is its JSON value; `headers` are its extension attributes."""

    id: str
    source: str
    type: str
    key: str | None
    data: object
    headers: Mapping[str, str]
    occurred_at: datetime | None


def encode(message: Message, *, key: str | None = None, mode: Mode = Mode.STRUCTURED) -> OutgoingRecord:
    """Encodes a message with its payload unchanged. `key` is the ordering key; the default is the message's key."""
    check_decrypted(message.payload)
    partition = message.key if key is None else key
    attributes = {
        "specversion": "1.0",
        "id": str(message.id),
        "source": message.source,
        "type": message.type,
        "time": message.occurred_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": JSON,
    }
    if message.key:
        attributes["subject"] = message.key
    if partition:
        attributes[_PARTITION] = partition
    changed: dict[str, str] = {}
    for name, value in message.headers.items():
        if value:
            short = _short(name, attributes)
            attributes[short] = value
            if _LONG.get(short, short) != name:
                changed[short] = name
    if changed:
        # ASCII: some brokers accept nothing else in headers.
        attributes[_NAMES] = json.dumps(changed)
    if mode is Mode.BINARY:
        headers = {f"ce_{name}": value for name, value in attributes.items() if name != "datacontenttype"}
        body, headers["content-type"] = message.payload.encode(), JSON
    else:
        # The stored text: decoding and encoding it could change a number.
        body = orjson.dumps({**attributes, "data": orjson.Fragment(message.payload)})
        headers = {"content-type": f"{STRUCTURED}; charset=UTF-8"}
    return OutgoingRecord(id=attributes["id"], type=message.type, key=partition or None, body=body, headers=headers)


def decode(record: Record) -> ReceivedEvent | None:
    """Decodes a record; None if it is not a CloudEvent. Raises `ValueError` if it claims to be one and is invalid."""
    headers = {name.lower(): value for name, value in record.headers.items()}
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type.startswith("application/cloudevents-batch"):
        raise ValueError("it is a batch of CloudEvents; send one event per record")
    if content_type.startswith("application/cloudevents") and content_type != STRUCTURED:
        raise ValueError(
            f"it is a CloudEvent in the unsupported format {content_type}; send {STRUCTURED} or use binary mode"
        )
    marked = {mark[1]: value for name, value in headers.items() if (mark := _MARK.fullmatch(name))}
    if content_type != STRUCTURED and "specversion" in marked:
        return _event(marked, _data(record.body, content_type), record)
    # Some brokers have no headers, only the document.
    if content_type != STRUCTURED and not (not content_type and b'"specversion"' in record.body):
        return None
    document = _json(record.body)
    if not isinstance(document, dict) or (content_type != STRUCTURED and "specversion" not in document):
        if content_type != STRUCTURED:
            return None
        raise ValueError("a CloudEvent is a JSON object")
    data = document.pop("data", None)
    encoded = document.pop("data_base64", None)
    attributes = {name: text for name, value in document.items() if (text := _attribute(name, value)) is not None}
    if encoded is not None:
        if data is not None or not isinstance(encoded, str):
            raise ValueError("a CloudEvent has data or data_base64, not both, and data_base64 is text")
        data = _data(_base64(encoded), attributes.get("datacontenttype", "").partition(";")[0].strip().lower())
    return _event(attributes, data, record)


def _event(attributes: Mapping[str, str], data: object, record: Record) -> ReceivedEvent:
    if (version := attributes.get("specversion")) != "1.0":
        raise ValueError(f"specversion {version or '(missing)'} is not supported; send CloudEvents 1.0")
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise ValueError(f"the attribute {name} of a CloudEvent is missing or empty")
    names = _LONG | _header_names(attributes.get(_NAMES))
    extensions = {
        names.get(name, name): value
        for name, value in attributes.items()
        if name not in _CORE and name not in (_PARTITION, _NAMES)
    }
    return ReceivedEvent(
        id=attributes["id"],
        source=attributes["source"],
        type=attributes["type"],
        key=attributes.get(_PARTITION) or record.key or attributes.get("subject"),
        data=data,
        headers=extensions,
        occurred_at=_time(attributes.get("time")),
    )


def _short(name: str, taken: Mapping[str, str]) -> str:
    short = _NOT_IN_NAMES.sub("", name.lower())
    while not short or short in taken or short in _CORE or short in (_PARTITION, _NAMES):
        short = f"x{short}"
    return short


def _header_names(text: str | None) -> dict[str, str]:
    """The original header names; only those that `_short` maps to the given short name."""
    if text is None:
        return {}
    try:
        names = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}  # an attribute with this name from another producer
    if not isinstance(names, dict):
        return {}
    return {
        short: name
        for short, name in names.items()
        if isinstance(name, str) and short.lstrip("x") == _NOT_IN_NAMES.sub("", name.lower()).lstrip("x")
    }


def _attribute(name: str, value: object) -> str | None:
    """The canonical text of an attribute; None if it is not set."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            raise ValueError(f"the attribute {name} of a CloudEvent must be text, an integer or a boolean")


def _data(body: bytes, content_type: str) -> object:
    """The data as a JSON value; `text/*` becomes a JSON string."""
    if content_type in ("", JSON) or content_type.endswith("+json"):
        return _json(body) if body else None
    if content_type.startswith("text/"):
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"its data {utf8_problem(error)}") from None
    raise ValueError(f"its data is {content_type}; only JSON and text can be stored")


def _json(body: bytes) -> object:
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it {json_problem(body, error)}") from None
    return value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"data_base64 is invalid: {error}") from None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    if not _TIME.fullmatch(text):
        raise ValueError(f"the time {text[:40]!r} of a CloudEvent is invalid; use a time such as 2024-02-29T12:30:15Z")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"the time {text!r} of a CloudEvent is out of range") from None
