"""Changes: what is to be written to a delivery, decided before and apart from the writing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, TypeAlias

from holdfast.core.delivery import Status


@dataclass(frozen=True, slots=True)
class Deliver:
    """The delivery is done."""

    name: ClassVar[str] = "deliver"
    status: ClassVar[Status] = Status.DELIVERED
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Run again `delay` from the database's now; this attempt is spent."""

    delay: timedelta

    name: ClassVar[str] = "retry"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Postpone:
    """Run again `delay` from the database's now; it was no failure."""

    delay: timedelta

    name: ClassVar[str] = "snooze"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Release:
    """Give the claim back; `held` says that a run was cut off, which counts as a hold."""

    delay: timedelta
    held: bool

    name: ClassVar[str] = "release"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Park:
    """Come back when `circuit` may close: after `delay` or at `until`, of which exactly one is set."""

    circuit: str
    delay: timedelta | None
    until: datetime | None

    name: ClassVar[str] = "park"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Block:
    """Hold until `resource` is back; `held` says that it seems to be well, so that this hold counts."""

    resource: str
    delay: timedelta
    held: bool

    name: ClassVar[str] = "block"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Give up: the row stays as `failed` with its last error, to be replayed or discarded by someone."""

    name: ClassVar[str] = "dead_letter"
    status: ClassVar[Status] = Status.FAILED
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Set aside for good: `failed` plus `discarded_at`, not counted as failed and not alerted."""

    reason: str

    name: ClassVar[str] = "discard"
    status: ClassVar[Status] = Status.FAILED
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Start a new cycle under `generation`: attempts zero, errors cleared into the failure history."""

    generation: int

    name: ClassVar[str] = "replay"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = False


Change: TypeAlias = Deliver | Retry | Postpone | Release | Park | Block | DeadLetter | Discard | Replay
