"""Changes: the decision about a delivery as a value, separate from the write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, TypeAlias

from holdfast.core.delivery import Status


class _Change:
    """What all changes have. Most of them make the delivery pending again."""

    __slots__ = ()
    name: ClassVar[str]
    status: ClassVar[Status] = Status.PENDING
    returns_attempt: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Deliver(_Change):
    """The delivery is done."""

    name = "deliver"
    status = Status.DELIVERED


@dataclass(frozen=True, slots=True)
class DeliverResult(Deliver):
    """The delivery is done, and its result is stored for `keep`, as JSON text. `remove`: only the result stays."""

    result: str
    keep: timedelta
    remove: bool = False


@dataclass(frozen=True, slots=True)
class Remove(Deliver):
    """The delivery is done, and its rows are removed. `completed`: it was marked delivered by `ctx.complete`."""

    completed: bool = False


@dataclass(frozen=True, slots=True)
class Retry(_Change):
    """Run again after `delay`, by the database's clock; the attempt counts."""

    delay: timedelta

    name = "retry"


@dataclass(frozen=True, slots=True)
class Postpone(_Change):
    """Run again after `delay`, by the database's clock; the run was not a failure."""

    delay: timedelta

    name = "snooze"
    returns_attempt = True


@dataclass(frozen=True, slots=True)
class Release(_Change):
    """Return the claim. `held`: a run was interrupted, which counts as a hold."""

    delay: timedelta
    held: bool

    name = "release"
    returns_attempt = True


@dataclass(frozen=True, slots=True)
class Park(_Change):
    """Run again when `circuit` may close: after `delay` or at `until`; exactly one of them is set."""

    circuit: str
    delay: timedelta | None
    until: datetime | None

    name = "park"
    returns_attempt = True


@dataclass(frozen=True, slots=True)
class Block(_Change):
    """Wait until `resource` is available. `held`: the resource seems to be available, so this hold counts."""

    resource: str
    delay: timedelta
    held: bool

    name = "block"
    returns_attempt = True


@dataclass(frozen=True, slots=True)
class DeadLetter(_Change):
    """Give up: the row stays `failed` with its last error until an operator replays or discards it."""

    name = "dead_letter"
    status = Status.FAILED


@dataclass(frozen=True, slots=True)
class Discard(_Change):
    """Discard permanently: `failed` with `discarded_at`; it does not count as failed and raises no alert."""

    reason: str

    name = "discard"
    status = Status.FAILED


@dataclass(frozen=True, slots=True)
class Suspend(_Change):
    """Run again when what a step of a workflow waits for has happened; the run was not a failure."""

    name = "suspend"
    returns_attempt = True


@dataclass(frozen=True, slots=True)
class Replay(_Change):
    """Start a new cycle with `generation`: no attempts, errors moved to the failure history."""

    generation: int

    name = "replay"


Change: TypeAlias = Deliver | Retry | Postpone | Release | Park | Block | DeadLetter | Discard | Suspend | Replay
