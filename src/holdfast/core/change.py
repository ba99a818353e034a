"""Changes: the decision about a delivery as a value, separate from the write."""

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
    """Run again after `delay`, by the database's clock; the attempt counts."""

    delay: timedelta

    name: ClassVar[str] = "retry"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Postpone:
    """Run again after `delay`, by the database's clock; the run was not a failure."""

    delay: timedelta

    name: ClassVar[str] = "snooze"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Release:
    """Return the claim. `held`: a run was interrupted, which counts as a hold."""

    delay: timedelta
    held: bool

    name: ClassVar[str] = "release"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Park:
    """Run again when `circuit` may close: after `delay` or at `until`; exactly one of them is set."""

    circuit: str
    delay: timedelta | None
    until: datetime | None

    name: ClassVar[str] = "park"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Block:
    """Wait until `resource` is available. `held`: the resource seems to be available, so this hold counts."""

    resource: str
    delay: timedelta
    held: bool

    name: ClassVar[str] = "block"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Give up: the row stays `failed` with its last error until an operator replays or discards it."""

    name: ClassVar[str] = "dead_letter"
    status: ClassVar[Status] = Status.FAILED
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Discard permanently: `failed` with `discarded_at`; it does not count as failed and raises no alert."""

    reason: str

    name: ClassVar[str] = "discard"
    status: ClassVar[Status] = Status.FAILED
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Suspend:
    """Run again when what a step of a workflow waits for has happened; the run was not a failure."""

    name: ClassVar[str] = "suspend"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Replay:
    """Start a new cycle with `generation`: no attempts, errors moved to the failure history."""

    generation: int

    name: ClassVar[str] = "replay"
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = False


Change: TypeAlias = Deliver | Retry | Postpone | Release | Park | Block | DeadLetter | Discard | Suspend | Replay
