"""Event classes: each has a stable type name and a version, independent of its import path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from holdfast.core.encryption import check_decrypted
from holdfast.core.errors import ConfigurationError, HoldfastError, InvalidPayload
from holdfast.core.events import payload
from holdfast.core.events.validation import misfit, validator_of
from holdfast.core.redaction.redact import Redaction, check_redaction
from holdfast.core.values.names import check_type

C = TypeVar("C", bound=type)
Upcast = Callable[[dict[str, Any]], dict[str, Any]]

VERSION_HEADER = "event_version"
_MARK = "__holdfast_event__"


class NewerVersion(HoldfastError):
    """A message has a version that this worker does not know; a newer worker can run it."""

    def __init__(self, type: str, version: int, known: int) -> None:
        super().__init__(type, version, known)
        self.type, self.version, self.known = type, version, known

    def __str__(self) -> str:
        return f"{self.type} has version {self.version}, this worker knows {self.known}; it waits for a newer worker"


@dataclass(frozen=True, slots=True)
class EventType:
    """A payload type: its stable name, its version, and the upcasts from older versions."""

    name: str
    version: int
    cls: type
    upcasts: dict[int, Upcast] = field(default_factory=dict)
    redact: tuple[Redaction, ...] = ()

    @property
    def origin(self) -> str:
        """The import path of the class, for messages."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def checks_itself(self) -> bool:
        """Whether instances are validated at creation: a pydantic model or dataclass."""
        return _is_pydantic(self.cls)

    def read(self, text: str, version: int) -> object:
        """Converts a payload of any version up to this one to an instance; raises `NewerVersion` for a newer one.

        A payload that does not fit raises `InvalidPayload` with instructions for a changed class.
        """
        check_decrypted(text)
        if version > self.version:
            raise NewerVersion(self.name, version, self.version)
        if version == self.version:
            value, validate = text, validator_of(self.cls).validate_json
        else:
            value, validate = self._converted(text, version), validator_of(self.cls).validate_python
        try:
            return validate(value)
        except ValueError as error:
            raise misfit(
                error,
                f"{self.name} version {version} does not fit {self.origin}. If the class has changed since it was published, "
                f"raise version= in @event({self.name!r}) and convert older payloads with @upcast({self.cls.__name__}, "
                f"from_version={version}); then replay this delivery",
            ) from error

    def check(self, text: str) -> None:
        """Raises `InvalidPayload` unless a consumer of this class can read the payload."""
        try:
            validator_of(self.cls).validate_json(text)
        except ValueError as error:
            raise self._refused(error) from error

    def build(self, value: object) -> object:
        """Converts a dict or another fitting value to an instance; otherwise `InvalidPayload`."""
        try:
            return validator_of(self.cls).validate_python(value)
        except ValueError as error:
            raise self._refused(error) from error

    def _refused(self, error: ValueError) -> InvalidPayload:
        return misfit(error, f"{self.name} is declared by {self.origin}")

    def _converted(self, text: str, version: int) -> Any:
        value = payload.decode(text)
        for old in range(version, self.version):
            if old not in self.upcasts:
                raise InvalidPayload("$", f"{self.name} has no upcast from version {old}; add one with @upcast")
            value = self.upcasts[old](cast(dict[str, Any], value))
        return value


class EventTypes:
    """The event classes of an app: at most one for each name and version."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], EventType] = {}

    def add(self, given: EventType) -> None:
        """Adds a class; raises `ConfigurationError` if another one has its name and version."""
        first = self._known.setdefault((given.name, given.version), given)
        # A class with the same import path is the same class, imported again.
        if first.cls is not given.cls and first.origin != given.origin:
            raise ConfigurationError(
                f"two classes are declared as event {given.name!r} version {given.version}: {first.origin} and {given.origin}; "
                "use one of them everywhere, or give one of them another name, or another version= with an @upcast"
            )

    def include(self, other: EventTypes) -> None:
        """Adds the classes of a router."""
        for known in other._known.values():
            self.add(known)


def event(name: str, *, version: int = 1, redact: Iterable[str] = ()) -> Callable[[C], C]:
    """Gives a pydantic model, dataclass or TypedDict the event type `name`. The class itself does not change.

    `redact` names secret fields, such as `card.number` or `items.*.token`: only handlers see their values.

    Examples:
        >>> @event("order.placed")
        ... @dataclass
        ... class OrderPlaced:
        ...     order_id: int
    """
    given: object = name
    if isinstance(given, type):
        raise ConfigurationError(f"@event on {given.__qualname__} lacks its name; write @event('order.placed')")
    check_type(name)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigurationError(f"event {name!r} has version {version!r}; give a whole number, at least 1")
    if isinstance(redact, str):
        raise ConfigurationError(f"event {name!r}: redact is a string; give a list of fields, such as [{redact!r}]")
    secret = tuple(check_redaction(name, path) for path in redact)

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise ConfigurationError(f"@event({name!r}) decorates a class, not {cls!r}")
        if sys.version_info < (3, 12) and is_typed_dict(cls) and type(cls).__module__ == "typing":
            raise ConfigurationError(
                f"event {name!r}: before Python 3.12 a TypedDict must come from typing_extensions, or payloads cannot "
                "be checked against it; write `from typing_extensions import TypedDict`"
            )
        if not has_fields(cls) and not inspect.get_annotations(cls):
            # A class with annotations may become a dataclass later: @dataclass may be above @event.
            raise ConfigurationError(_fieldless(name, cls))
        setattr(cls, _MARK, EventType(name, version, cls, redact=secret))
        return cls

    return decorate


def upcast(cls: type, *, from_version: int) -> Callable[[Upcast], Upcast]:
    """Declares the conversion of a payload from `from_version` to the next version."""
    known = event_type(cls)
    if isinstance(from_version, bool) or not isinstance(from_version, int) or not 1 <= from_version < known.version:
        raise ConfigurationError(
            f"upcast of {known.name} from version {from_version!r}; the event is at version {known.version}, "
            + (f"so give 1 to {known.version - 1}" if known.version > 1 else "so raise version= in @event first")
        )

    def decorate(function: Upcast) -> Upcast:
        if from_version in known.upcasts:
            raise ConfigurationError(f"{known.name} has two upcasts from version {from_version}; keep one of them")
        known.upcasts[from_version] = function
        return function

    return decorate


def event_type(cls: type) -> EventType:
    """The event type of a decorated class; undecorated classes and subclasses of decorated ones are refused."""
    found: EventType | None = vars(cls).get(_MARK)
    if found is not None and found.cls is not cls:
        # @dataclass(slots=True) above @event creates a new class that has the attribute of the first one.
        found = replace(found, cls=cls)
        setattr(cls, _MARK, found)
    if found is None and cls.__module__ == "builtins":
        raise ConfigurationError(
            f"{cls.__name__} is not an event class; pass an instance of an event class, or a name and a payload: "
            "publish('order.placed', {'order_id': 1}, ...), in publish_many as tuples ('order.placed', {'order_id': 1})"
        )
    if found is None:
        raise ConfigurationError(
            f"{cls.__module__}.{cls.__qualname__} has no event name; decorate it with @event('some.name'): "
            "import paths are not names"
        )
    return found


def check_fields(known: EventType) -> EventType:
    """Refuses an event whose class is a plain class, because its instances cannot be stored."""
    if not has_fields(known.cls):
        raise ConfigurationError(_fieldless(known.name, known.cls))
    return known


def has_fields(cls: type) -> bool:
    """Whether a class is a payload type: a dataclass, a pydantic model, a TypedDict or a named tuple."""
    return (
        is_dataclass(cls)
        or is_typed_dict(cls)
        or _is_pydantic(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


@lru_cache(maxsize=4096)
def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "__pydantic_validator__")


def _fieldless(name: str, cls: type) -> str:
    return (
        f"event {name!r}: {cls.__module__}.{cls.__qualname__} is a plain class, which cannot be stored; put @dataclass below "
        "@event, or make it a pydantic model or a TypedDict"
    )


def redactions_of(kinds: Iterable[object]) -> tuple[Redaction, ...]:
    """The secret fields that the event classes among these values declare."""
    marks = (vars(kind).get(_MARK) for kind in kinds if isinstance(kind, type))
    return tuple(secret for mark in marks if mark is not None for secret in mark.redact)


def is_typed_dict(cls: type) -> bool:
    """Whether a class is a TypedDict, whose values are plain dicts."""
    return type(cls).__name__ == "_TypedDictMeta"


def version_of(headers: Mapping[str, str]) -> int:
    """The version of a message; 1 without a version header."""
    try:
        return int(headers.get(VERSION_HEADER, "1"))
    except ValueError:
        raise InvalidPayload("headers", f"{VERSION_HEADER} {headers[VERSION_HEADER]!r} is not a number") from None
