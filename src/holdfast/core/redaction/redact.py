"""Redaction of declared secrets in everything that is shown or recorded.

The stored payload is unchanged, because handlers need it. All code that shows or records a part of it uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import orjson

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.pattern import candidates, check_pattern, overlap
from holdfast.core.redaction.mask import REDACTED, mask, secret_name
from holdfast.core.redaction.secrets import Secrets

_ANY, _DEEP = "*", "**"
_TYPES = 10_000

_hidden: ContextVar[Callable[[str], str] | None] = ContextVar("holdfast_hidden", default=None)


class Redaction(NamedTuple):
    """A declaration: in messages whose type matches `pattern`, the values at `path` are secret."""

    pattern: str
    path: str


def check_redaction(pattern: str, path: str) -> Redaction:
    """Return the declaration, or raise `ConfigurationError`. A path is a list of field names joined by dots.

    ``*`` matches any one field, ``**`` any number of fields; all items of a list are matched.

    Examples:
        >>> check_redaction("order.placed", "card.number").path
        'card.number'
    """
    check_pattern(pattern)
    parts = path.split(".") if isinstance(path, str) else [""]
    if not all(parts) or parts[-1] == _DEEP or "**.**" in path or len(path) > 500:
        raise ConfigurationError(
            f"redact {path!r}: use field names joined by dots, such as card.number, *.email or **.password"
        )
    return Redaction(pattern, path)


def find_redaction(declared: Iterable[Redaction], field: str, patterns: Iterable[str]) -> Redaction | None:
    """Return a declaration that makes the payload field `field`, or a part of it, secret in messages of these patterns.

    Examples:
        >>> find_redaction([Redaction("*", "**.email")], "user.email", ["user.created"]).path
        '**.email'
    """
    names, patterns = tuple(field.split(".")), tuple(patterns)
    for one in sorted(declared):
        if _covers(tuple(one.path.split(".")), names) and any(overlap(one.pattern, pattern) for pattern in patterns):
            return one
    return None


def redact_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers with secret values redacted; the same mapping if none is secret."""
    secret = [name for name in headers if secret_name(name)]
    return {**headers, **dict.fromkeys(secret, REDACTED)} if secret else headers


def redacted(text: str, hide: Callable[[str], str] | None) -> str:
    """Return `text` without the secrets that `hide` removes and without those that `mask` removes."""
    return mask(text if hide is None else hide(text))


def scrub(value: object, hide: Callable[[str], str] | None = None) -> object:
    """Return a JSON value with all texts redacted; the values of fields with secret names are removed."""
    match value:
        case str():
            return redacted(value, hide)
        case bytes():
            return redacted(value.decode("utf-8", "backslashreplace"), hide)
        case int() | float() if hide is not None and not isinstance(value, bool):
            return value if hide(str(value)) == str(value) else REDACTED
        case dict():
            return {
                name: REDACTED if isinstance(name, str) and secret_name(name) else scrub(item, hide)
                for name, item in value.items()
            }
        case list() | tuple():
            return [scrub(item, hide) for item in value]
        case _:
            return value


def redact_logs(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor that removes secret headers, passwords in URLs and the declared secrets of the current
    message from log lines. Put it before the renderer and after the processor that formats exceptions."""
    hide = _hidden.get()
    for name, value in line.items():
        line[name] = REDACTED if secret_name(name) and value is not None else scrub(value, hide)
    return line


def hidden() -> Callable[[str], str] | None:
    """The function that removes the secrets of the current message from a text, if any."""
    return _hidden.get()


def hide_from_here(hide: Callable[[str], str] | None) -> None:
    """`hiding` for the rest of this task or until the next call: a worker slot runs many messages."""
    if hide is not None or _hidden.get() is not None:
        _hidden.set(hide)


@contextmanager
def hiding(hide: Callable[[str], str] | None) -> Iterator[None]:
    """Inside the block, `redact_logs` removes these secrets from log lines."""
    token = _hidden.set(hide)
    try:
        yield
    finally:
        _hidden.reset(token)


class Redactor:
    """Removes declared secrets from shown values. Fast for types without a declaration."""

    def __init__(self, declared: Iterable[Redaction] = ()) -> None:
        self.declared = frozenset(declared)
        self._by_pattern: dict[str, list[tuple[str, ...]]] = {}
        for pattern, path in sorted(self.declared):
            self._by_pattern.setdefault(pattern, []).append(tuple(path.split(".")))
        self._known: dict[str, tuple[tuple[str, ...], ...]] = {}

    def paths(self, type: str) -> tuple[tuple[str, ...], ...]:
        """The paths of the secrets in messages of this type."""
        if not self._by_pattern:
            return ()
        known = self._known.get(type)
        if known is None:
            if len(self._known) >= _TYPES:
                self._known.clear()
            known = tuple(path for pattern in candidates(type) for path in self._by_pattern.get(pattern, ()))
            self._known[type] = known
        return known

    def payload(self, type: str, text: str) -> str:
        """Return JSON text with a placeholder for the value of each declared field."""
        paths = self.paths(type)
        if not paths:
            return text
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return f'"{REDACTED}"'
        return orjson.dumps(self.value(type, value)).decode()

    def value(self, type: str, value: object) -> object:
        """`payload` for a decoded value."""
        for path in self.paths(type):
            value = _without(value, path)
        return value

    def hide(self, type: str, payload: str) -> Callable[[str], str] | None:
        """A function that removes the secrets of this message from any text: an error, a stack trace, a log line.

        None if nothing is declared for the type. The payload is decoded when the function is first called.
        """
        paths = self.paths(type)
        return Secrets(lambda: _all_at(payload, paths)) if paths else None

    def hide_all(self, messages: Iterable[tuple[str, str]]) -> Callable[[str], str] | None:
        """`hide` for several messages, given by type and payload."""
        given = [(payload, paths) for type, payload in messages if (paths := self.paths(type))]
        if not given:
            return None
        return Secrets(lambda: (secret for payload, paths in given for secret in _all_at(payload, paths)))


def _covers(path: tuple[str, ...], field: tuple[str, ...]) -> bool:
    """Whether a secret at `path` is the value of `field`, contains it, or is part of it."""
    if not path or not field:
        # What `**` finds below the field is unknown.
        return not path or _DEEP not in path
    if path[0] == _DEEP:
        return _covers(path[1:], field) or (len(field) > 1 and _covers(path, field[1:]))
    return path[0] in (field[0], _ANY) and _covers(path[1:], field[1:])


def _all_at(payload: str, paths: Iterable[tuple[str, ...]]) -> Iterator[object]:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return
    for path in paths:
        yield from _at(value, path)


def _without(value: object, path: tuple[str, ...]) -> object:
    """`value` with a placeholder at `path`."""
    if not path:
        return REDACTED if value is not None else None
    if isinstance(value, list):
        return [_without(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    name, rest = path[0], path[1:]
    if name == _DEEP:
        shallow = _without(value, rest)
        assert isinstance(shallow, dict)
        return {key: _without(item, path) for key, item in shallow.items()}
    return {key: _without(item, rest) if name in (key, _ANY) else item for key, item in value.items()}


def _at(value: object, path: tuple[str, ...]) -> Iterator[object]:
    """All values below `path` that are not containers."""
    if isinstance(value, list):
        for item in value:
            yield from _at(item, path)
    elif isinstance(value, dict):
        if not path:
            for item in value.values():
                yield from _at(item, path)
            return
        name, rest = path[0], path[1:]
        if name == _DEEP:
            yield from _at(value, rest)
        for key, item in value.items():
            if name == _DEEP:
                yield from _at(item, path)
            elif name in (key, _ANY):
                yield from _at(item, rest)
    elif not path:
        yield value
