"""Events by name: a class gets a stable type name and a version, never its import path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from holdfast.core import payload
from holdfast.core.errors import ConfigurationError, HoldfastError, InvalidPayload
from holdfast.core.names import check_type
from holdfast.core.redact import Redaction, check_redaction

C = TypeVar("C", bound=type)
Upcast = Callable[[dict[str, Any]], dict[str, Any]]

VERSION_HEADER = "event_version"
_MARK = "__holdfast_event__"


class NewerVersion(HoldfastError):
    """A message has a version that this worker does not know yet; a newer worker will."""

    def __init__(self, type: str, version: int, known: int) -> None:
        super().__init__(type, version, known)
        self.type, self.version, self.known = type, version, known

    def __str__(self) -> str:
        return f"{self.type} has version {self.version}, this worker knows {self.known}; it waits for a newer worker"


@dataclass(frozen=True, slots=True)
class EventType:
    """A payload type: its stable name, its version, and how older versions become it."""

    name: str
    version: int
    cls: type
    upcasts: dict[int, Upcast] = field(default_factory=dict)
    redact: tuple[Redaction, ...] = ()

    def read(self, text: str, version: int) -> object:
        """A payload of any version up to this one as an instance of the class; `NewerVersion` above it."""
        if version > self.version:
            raise NewerVersion(self.name, version, self.version)
        if version == self.version:
            return validate_json(self.cls, text)
        value = payload.decode(text)
        for old in range(version, self.version):
            if old not in self.upcasts:
                raise InvalidPayload("$", f"{self.name} has no upcast from version {old}; add one with @upcast")
            value = self.upcasts[old](cast(dict[str, Any], value))
        return validate(self.cls, value)


def event(name: str, *, version: int = 1, redact: Iterable[str] = ()) -> Callable[[C], C]:
    """Gives a pydantic model, dataclass or TypedDict the event type `name`. The class itself stays as it is.

    `redact` names fields that are secret, such as `card.number` or `items.*.token`: handlers see them, nobody else does.

    >>> @event("order.placed")
    ... @dataclass
    ... class OrderPlaced:
    ...     order_id: int
    """
    check_type(name)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigurationError(f"event {name!r} has version {version!r}; give a whole number from 1")
    if isinstance(redact, str):
        raise ConfigurationError(f"event {name!r}: redact is a text; give a list of fields, such as [{redact!r}]")
    secret = tuple(check_redaction(name, path) for path in redact)

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise ConfigurationError(f"@event({name!r}) decorates a class, not {cls!r}")
        if sys.version_info < (3, 12) and is_typed_dict(cls) and type(cls).__module__ == "typing":
            raise ConfigurationError(
                f"event {name!r}: before Python 3.12 a TypedDict must come from typing_extensions, or payloads cannot "
                "be checked against it; write `from typing_extensions import TypedDict`"
            )
        setattr(cls, _MARK, EventType(name, version, cls, redact=secret))
        return cls

    return decorate


def upcast(cls: type, *, from_version: int) -> Callable[[Upcast], Upcast]:
    """Declares how a payload of `from_version` becomes one of the next version."""
    known = event_type(cls)
    if not 1 <= from_version < known.version:
        raise ConfigurationError(
            f"upcast of {known.name} from version {from_version!r}; it is at version {known.version}, "
            f"so give 1 to {known.version - 1}"
        )

    def decorate(function: Upcast) -> Upcast:
        if from_version in known.upcasts:
            raise ConfigurationError(f"{known.name} has two upcasts from version {from_version}")
        known.upcasts[from_version] = function
        return function

    return decorate


def event_type(cls: type) -> EventType:
    """The event type of a decorated class; an undecorated one is refused, a subclass of a decorated one too."""
    found: EventType | None = vars(cls).get(_MARK)
    if found is not None and found.cls is not cls:
        # @dataclass(slots=True) above @event makes a new class that carries the mark of the first one.
        found = replace(found, cls=cls)
        setattr(cls, _MARK, found)
    if found is None:
        raise ConfigurationError(
            f"{cls.__module__}.{cls.__qualname__} has no event name; decorate it with @event('some.name'): "
            "import paths are not names"
        )
    return found


def redactions_of(kinds: Iterable[object]) -> tuple[Redaction, ...]:
    """What event classes among these declare secret; whatever else there is declares nothing."""
    marks = (vars(kind).get(_MARK) for kind in kinds if isinstance(kind, type))
    return tuple(secret for mark in marks if mark is not None for secret in mark.redact)


def is_typed_dict(cls: type) -> bool:
    """Whether a class is a TypedDict, from `typing` or `typing_extensions`: then its values are plain dicts."""
    return type(cls).__name__ == "_TypedDictMeta"


def validate(cls: type, value: object) -> object:
    """A JSON value as an instance of `cls`, checked; pydantic's ValidationError otherwise."""
    return _validator(cls).validate_python(value)


def validate_json(cls: type, text: str) -> object:
    """JSON text as an instance of `cls`, checked; pydantic's ValidationError otherwise."""
    return _validator(cls).validate_json(text)


def version_of(headers: Mapping[str, str]) -> int:
    """The version a message says it has; 1 unless it says another."""
    try:
        return int(headers.get(VERSION_HEADER, "1"))
    except ValueError:
        raise InvalidPayload("headers", f"{VERSION_HEADER} {headers[VERSION_HEADER]!r} is not a number") from None


_validators: dict[Any, Any] = {}


def _validator(cls: Any) -> Any:
    # Imported on first use: a producer that only publishes does not need pydantic.
    if cls not in _validators:
        from pydantic import TypeAdapter

        _validators[cls] = TypeAdapter(cls).validator
    return _validators[cls]
