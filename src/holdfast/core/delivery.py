"""Deliveries: a message for one consumer with its state, and its failure history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE

FAILURE_HISTORY_LIMIT = 20
"""The number of failure cycles in the row, newest last; older ones are in the audit."""


class Status(StrEnum):
    """The four states of a delivery. A delivery that waits for a retry is `PENDING` with a future `run_at`."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCycle:
    """One cycle of a delivery, from its creation or last replay to `failed`, before it was replayed.

    Stored as JSON. Later releases only add fields: a reader ignores unknown fields and uses defaults for missing ones.
    """

    attempts: int = 0
    last_error: str | None = None
    error_type: str | None = None
    fingerprint: str | None = None
    first_failed_at: datetime | None = None
    failed_at: datetime | None = None
    generation: int = 0
    replayed_at: datetime | None = None
    replayed_by: str | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the cycle as JSON values; times are ISO 8601 in UTC."""
        stored: dict[str, object] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            stored[spec.name] = value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Self:
        """Return the stored cycle, from this release or another one; a missing or unreadable field gets its default."""
        return cls(**{spec.name: _READERS[str(spec.type)](stored.get(spec.name)) for spec in fields(cls)})


def read_history(stored: object) -> tuple[FailureCycle, ...]:
    """Return the cycles in a decoded ``failure_history``, oldest first; ignores entries that are not cycles."""
    if not isinstance(stored, list):
        return ()
    return tuple(FailureCycle.from_json(entry) for entry in stored if isinstance(entry, Mapping))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery: its consumer and its state. All times are aware UTC.

    `attempts` counts claims, so it includes the current run. `max_attempts` overrides the retry policy of the
    consumer. `fence` only increases. `holds` counts runs that were interrupted, or that reported a resource as
    unavailable although its probe succeeded; `expiries` counts consecutive leases that expired.
    """

    id: UUID
    message_id: UUID
    consumer: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    generation: int = 0
    status: Status = Status.PENDING
    run_at: datetime
    attempts: int = 0
    max_attempts: int | None = None
    fence: int = 0
    lease_until: datetime | None = None
    locked_by: str | None = None
    suspect: bool = False
    holds: int = 0
    expiries: int = 0
    last_error: str | None = None
    error_type: str | None = None
    fingerprint: str | None = None
    first_failed_at: datetime | None = None
    failure_history: tuple[FailureCycle, ...] = ()
    created_at: datetime
    claimed_at: datetime | None = None
    completed_at: datetime | None = None
    discarded_at: datetime | None = None

    @property
    def dead(self) -> bool:
        """Whether this is a dead letter: failed and not discarded."""
        return self.status is Status.FAILED and self.discarded_at is None


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's right to run and settle a delivery, valid while its fence equals the fence of the row."""

    delivery_id: UUID
    worker: str
    fence: int


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Manual SQL may write a time without an offset; all times of the store are UTC.
    return read.replace(tzinfo=UTC) if read.utcoffset() is None else read.astimezone(UTC)


# By the annotation of the field.
_READERS: Mapping[str, Callable[[object], Any]] = {"int": _number, "str | None": _text, "datetime | None": _time}
