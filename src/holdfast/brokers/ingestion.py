"""How records become events of the store: their key, their headers and the check of their payload."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.brokers.protocol import Record
from holdfast.core.errors import InvalidPayload
from holdfast.core.events.event import VERSION_HEADER, EventType, NewerVersion, version_of
from holdfast.core.flow import KeyRule
from holdfast.core.key import check_key
from holdfast.core.message import NewMessage
from holdfast.core.telemetry.propagation import is_propagated

_SEPARATORS = re.compile(r"[^a-z0-9]")
_RECORD_KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """The options of `hf.ingest`.

    `key` finds the key under which an event is stored once; without it, that is the id of the CloudEvent or record.
    Consumers of events treat headers as verified, so a message keeps the headers of its record only with `trusts_headers`.
    """

    key: KeyRule | None
    event: EventType | None
    trusts_headers: bool

    def key_of(self, record: Record, body: object, headers: Mapping[str, str]) -> str | None:
        """The key of a record; None without a key rule.

        Raises `ValueError` for a record without the key that the rule names.
        """
        if self.key is None:
            return None
        value: Any = body
        if self.key.function is not None:
            value = self._called(self.key.function, body)
        elif self.key.kind == "header":
            value = _header(self.key.name, {_RECORD_KEY: record.key, **record.headers, **headers})
        else:
            for part in self.key.name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
        if value is None or value == "":
            raise ValueError(f"it has no key: {self.key.by} is missing or empty; send it, or change key= in hf.ingest")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"its key {self.key.by} is of type {type(value).__name__}; a key is text or an integer")
        return check_key(str(value))

    def _called(self, function: Callable[[Any], object], body: object) -> object:
        try:
            return function(body)
        except Exception as error:
            raise ValueError(
                f"the key function {function!r} raised {error!r}; correct the function and replay the record"
            ) from error

    def kept_headers(self, headers: Mapping[str, str], *, is_plain: bool) -> dict[str, str]:
        """The headers that an event keeps. A plain record without a version has the version of the event class."""
        kept = {
            name: value
            for name, value in headers.items()
            if self.trusts_headers or is_propagated(name) or name == VERSION_HEADER
        }
        if is_plain and self.event is not None and self.event.version > 1:
            kept.setdefault(VERSION_HEADER, str(self.event.version))
        return kept

    def check(self, message: NewMessage) -> None:
        """Raises `InvalidPayload` unless consumers of the event class can read the payload.

        A version that this worker does not know is stored: newer workers can run it.
        """
        if self.event is None:
            return
        try:
            self.event.read(message.payload, version_of(message.headers))
        except NewerVersion:
            return
        except InvalidPayload as error:
            raise ValueError(f"{error.path}: {error.problem}") from error


def _header(name: str, headers: Mapping[str, str | None]) -> str | None:
    """A header by name; a CloudEvent attribute has neither upper case nor separators, and some brokers change the case."""
    if name in headers:
        return headers[name]
    plain = _plain(name)
    return next((value for other, value in headers.items() if _plain(other) == plain), None)


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())
