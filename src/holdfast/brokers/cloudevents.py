"""Messages as CloudEvents 1.0, structured or binary, and back.

A message's headers become extension attributes, whose names hold lower-case letters and digits alone: `request_id`
travels as `requestid`. The names in `KNOWN` are restored on arrival. Any other name that changed travels along in the
attribute `holdfastheaders`, so that Holdfast restores it; other receivers see the short name.
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

from holdfast.brokers.protocol import Outgoing, Record
from holdfast.core.events.event import VERSION_HEADER
from holdfast.core.message import Message

STRUCTURED = "application/cloudevents+json"
JSON = "application/json"

KNOWN = (
    "request_id",
    "trace_id",
    "user_id",
    "org_id",
    "actor_type",
    "actor_key",
    "run_id",
    "module_id",
    "mission_id",
    "mission_instance_id",
    "stage_id",
    "correlation_id",
    "causation_id",
    "idempotency_key",
    "scheduled_for",
    VERSION_HEADER,
)
"""Headers whose names come back as they were."""

_LONG = {name.replace("_", ""): name for name in KNOWN}
_CORE = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "database64"}
)
_PARTITION = "partitionkey"
_NAMES = "holdfastheaders"
"""The headers' own names by their short ones, as a JSON object."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")
# How each binding marks an attribute among a record's own headers: Kafka, NATS and HTTP, AMQP twice.
_MARK = re.compile(r"(?:ce[_-]|cloudevents[:_])([a-z0-9]+)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


class Mode(StrEnum):
    """Where the attributes go: around the data in one JSON document, or into the record's headers beside it."""

    STRUCTURED = "structured"
    BINARY = "binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A CloudEvent as it was received. `data` is its JSON value; `headers` are its extension attributes."""

    id: str
    source: str
    type: str
    key: str | None
    data: object
    headers: Mapping[str, str]
    occurred_at: datetime | None


def encode(message: Message, *, key: str | None = None, mode: Mode = Mode.STRUCTURED) -> Outgoing:
    """The message on its way out, its payload untouched. `key` keeps order and place; its own key if none is given."""
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
        # In ASCII: not every broker's headers take more.
        attributes[_NAMES] = json.dumps(changed)
    if mode is Mode.BINARY:
        headers = {f"ce_{name}": value for name, value in attributes.items() if name != "datacontenttype"}
        body, headers["content-type"] = message.payload.encode(), JSON
    else:
        # As it is stored: read and written anew, a number could become another.
        body = orjson.dumps({**attributes, "data": orjson.Fragment(message.payload)})
        headers = {"content-type": f"{STRUCTURED}; charset=UTF-8"}
    return Outgoing(id=attributes["id"], type=message.type, key=partition or None, body=body, headers=headers)


def decode(record: Record) -> Incoming | None:
    """The CloudEvent that a record is; none when it is none. `ValueError` when it says that it is one, and is broken."""
    headers = {name.lower(): value for name, value in record.headers.items()}
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type.startswith("application/cloudevents-batch"):
        raise ValueError("it is a batch of CloudEvents; send them one by one")
    if content_type.startswith("application/cloudevents") and content_type != STRUCTURED:
        raise ValueError(f"it is a CloudEvent in the format {content_type}; send {STRUCTURED}, or binary mode")
    marked = {mark[1]: value for name, value in headers.items() if (mark := _MARK.fullmatch(name))}
    if content_type != STRUCTURED and "specversion" in marked:
        return _incoming(marked, _read(record.body, content_type), record)
    # Brokers without headers carry the document alone.
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
            raise ValueError("a CloudEvent has either data or data_base64, which is text")
        data = _read(_base64(encoded), attributes.get("datacontenttype", "").partition(";")[0].strip().lower())
    return _incoming(attributes, data, record)


def _incoming(attributes: Mapping[str, str], data: object, record: Record) -> Incoming:
    if (version := attributes.get("specversion")) != "1.0":
        raise ValueError(f"CloudEvents {version or 'without a specversion'} is not known here; send 1.0")
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise ValueError(f"a CloudEvent needs the attribute {name}, and it may not be empty")
    names = _LONG | _header_names(attributes.get(_NAMES))
    extensions = {
        names.get(name, name): value
        for name, value in attributes.items()
        if name not in _CORE and name not in (_PARTITION, _NAMES)
    }
    return Incoming(
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
    """The names that a sender's headers had; only those that become the short name, as `_short` makes it."""
    if text is None:
        return {}
    try:
        names = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}  # another sender's attribute of this name
    if not isinstance(names, dict):
        return {}
    return {
        short: name
        for short, name in names.items()
        if isinstance(name, str) and short.lstrip("x") == _NOT_IN_NAMES.sub("", name.lower()).lstrip("x")
    }


def _attribute(name: str, value: object) -> str | None:
    """An attribute's canonical text; none when it is not set."""
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
            raise ValueError(f"the attribute {name} of a CloudEvent is text, a whole number or a boolean")


def _read(body: bytes, content_type: str) -> object:
    """Data as a JSON value: JSON as it says, text as text."""
    if content_type in ("", JSON) or content_type.endswith("+json"):
        return _json(body) if body else None
    if content_type.startswith("text/"):
        return body.decode()
    raise ValueError(f"its data is {content_type}; JSON and text can be stored")


def _json(body: bytes) -> object:
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"data_base64 cannot be read: {error}") from None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    if not _TIME.fullmatch(text):
        raise ValueError(f"the time {text[:40]!r} of a CloudEvent is not like 2024-02-29T12:30:15Z")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"the time {text!r} of a CloudEvent is out of range") from None
