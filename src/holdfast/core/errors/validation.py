"""Errors about values that the caller passed: settings, names, payloads and keys. Nothing was stored."""

from __future__ import annotations

from uuid import UUID

from holdfast.core.errors.root import HoldfastError, picklable, quoted


class ConfigurationError(HoldfastError):
    """A setting or a declaration is wrong. Nothing was stored or run, and a retry does not help."""


class InvalidDuration(ConfigurationError, ValueError):
    """A duration cannot be parsed or is out of range."""

    def __init__(self, name: str, value: object, problem: str) -> None:
        self.name, self.value, self.problem = name, picklable(value), problem
        super().__init__(name, self.value, problem)

    def __str__(self) -> str:
        # Text needs a unit, so the other kinds are no remedy for it.
        kinds = "write" if isinstance(self.value, str) else "use seconds, a timedelta, or text such as"
        return f"{self.name} {quoted(self.value)} {self.problem}; {kinds} '250ms', '30s', '5m', '1h30m', '2d' or '1w'"


class InvalidName(HoldfastError, ValueError):
    """A name contains characters that are not allowed in a table, a label or an SQL identifier."""

    def __init__(self, kind: str, value: object, problem: str, allowed: str) -> None:
        self.kind, self.value, self.problem, self.allowed = kind, picklable(value), problem, allowed
        super().__init__(kind, self.value, problem, allowed)

    def __str__(self) -> str:
        return f"{self.kind} name {quoted(self.value)} is invalid: {self.problem}; use {self.allowed}"


class InvalidPayload(HoldfastError, ValueError):
    """A payload or a header cannot be stored as JSON without loss. Nothing was stored.

    `path` is the position of the value, for example ``$.items[3].price``.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"payload is invalid at {self.path}: {self.problem}"


class PayloadTooLarge(InvalidPayload):
    """A payload is larger than the limit. Nothing was stored."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("$", f"{size:,} bytes of JSON, over the limit of {limit:,}")
        self.args = (size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"payload is too large: {self.problem}; store the content elsewhere and send a reference to it"


class UnreadableRecord(InvalidPayload):
    """A broker record cannot be converted to a message. It is stored unchanged as a dead letter."""

    def __init__(self, stream: str, id: str | None, problem: str) -> None:
        super().__init__("$", problem)
        self.args = (stream, id, problem)
        self.stream, self.id = stream, id

    def __str__(self) -> str:
        which = "a record without an id" if self.id is None else f"record {quoted(self.id)}"
        return f"{which} of {self.stream} cannot be read: {self.problem}; fix the cause, then replay it"


class InvalidKey(HoldfastError, ValueError):
    """An idempotency key or an ordering key is invalid. Nothing was stored."""

    def __init__(self, value: object, problem: str) -> None:
        self.value, self.problem = picklable(value), problem
        super().__init__(self.value, problem)

    def __str__(self) -> str:
        return f"key {quoted(self.value)} is invalid: {self.problem}"


class KeyRequired(InvalidKey):
    """A request has no `Idempotency-Key` header, and the endpoint requires one. Nothing was done."""

    def __init__(self) -> None:
        super().__init__("", "the request has no Idempotency-Key header; send one that is new for each operation")
        self.args = ()


class KeyConflict(HoldfastError):
    """A key of an existing message was used again for different content. Nothing was stored."""

    def __init__(self, source: str, key: str, message_id: UUID) -> None:
        super().__init__(source, key, message_id)
        self.source, self.key, self.message_id = source, key, message_id

    def __str__(self) -> str:
        return (
            f"key {quoted(self.key)} of source {quoted(self.source)} already belongs to message {self.message_id}, "
            "which has another type or payload; use a new key for new content (for example with a higher version)"
        )
