"""Waits: steps that are suspended until a signal, a time, their items or a child run, and what steps remember."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.errors import NotFound
from holdfast.core.workflows.names import DEADLINE, memo_name
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.operation import Operation, Query, Steps, columns, operation
from holdfast.stores.workflows.run import lock_run

_SUSPENDED = ("run_id", "step", "occurrence", "delivery_id", "fence", "seen", "signal", "delay", "stored", "until")


class Suspension(NamedTuple):
    """A step that waits. `step` and `occurrence` name its wait; `seen` is the run's counter from before the step started.

    `signal` may wake it before `delay`. A wait that is not `stored` has a row already. `until`: the deadline of the step.
    """

    run_id: UUID
    step: str
    occurrence: int
    delivery_id: UUID
    fence: int
    seen: int
    signal: str | None
    delay: timedelta | None
    stored: bool = True
    until: datetime | None = None


class DeadlineRow(NamedTuple):
    """When a step must be done, and what was left of that time when it was read, by the database's clock."""

    at: datetime
    left: timedelta


class WaitOutcome(NamedTuple):
    """Whether the claim is still held, and how the wait ended: `signal`, `timeout`, or None while it lasts."""

    held: bool
    outcome: str | None
    result: str | None


def suspend(worker: str, suspensions: Sequence[Suspension], *, wait: bool = False) -> Operation[frozenset[UUID]]:
    """Returns steps to pending until something that they wait for happens; returns the suspended deliveries.

    A step is due at once if the run's counter rose since the step started. A step that is not returned was lost, its
    run has ended, or another transaction has locked the run.
    """
    batch = sorted(suspensions)

    def steps() -> Steps[frozenset[UUID]]:
        slots = (("locking", () if wait else ("skip_locked",)),)
        rows = yield Query("suspend", {"worker": worker}, {"steps": columns(_SUSPENDED, batch)}, slots=slots)
        return frozenset(as_uuid(row[0]) for row in rows)

    return Operation(steps, single=True, hot=True)


@operation(single=True)
def resolve_wait(claim: Claim, run_id: UUID, wait: str, occurrence: int, signal: str | None) -> Steps[WaitOutcome]:
    """Ends a wait with the oldest open signal of this name or by its time, once, and returns how it ended."""
    ((held, outcome, result),) = yield Query(
        "resolve_wait", {**_owned(claim, run_id, wait, occurrence), "signal": signal}
    )
    return WaitOutcome(bool(held), outcome, result)


@operation(single=True)
def reopen_wait(claim: Claim, run_id: UUID, wait: str, occurrence: int) -> Steps[bool]:
    """Opens a wait again whose signal does not fit, so that a retry waits for the next one; False if the claim was lost."""
    return bool((yield Query("reopen_wait", _owned(claim, run_id, wait, occurrence))))


@operation(single=True)
def memo(claim: Claim, run_id: UUID, name: str, occurrence: int, result: str) -> Steps[bool]:
    """Remembers a value of a step while its claim is held; False if the claim was lost or the value exists."""
    return bool((yield Query("memo", {**_owned(claim, run_id, name, occurrence), "result": result})))


@operation(single=True)
def begin_deadline(claim: Claim, run_id: UUID, step: str, deadline: timedelta) -> Steps[DeadlineRow | None]:
    """When a step must be done: `deadline` after its first start, including attempts and waits. None if the claim was lost."""
    values = {**_owned(claim, run_id, memo_name(step, DEADLINE), 0), "deadline": deadline}
    rows = yield Query("begin_deadline", values)
    if not rows:
        return None
    at, now = (aware_time(value) for value in rows[0])
    return DeadlineRow(at, at - now)


@operation
def send_signal(id: UUID, run_id: UUID, name: str, payload: str) -> Steps[bool]:
    """Stores a signal once and wakes the step that waits for it; False if the run has ended, `NotFound` without a run.

    Two statements: the first locks the run, so that the second sees each wait that was stored before.
    """
    if not (yield Query("raise_signals", {"run_id": run_id})):
        if (yield from lock_run(run_id)) is None:
            raise NotFound("run", run_id)
        return False
    yield Query("store_signal", {"id": id, "run_id": run_id, "signal": name, "payload": payload})
    return True


@operation
def report_child(child: UUID) -> Steps[bool]:
    """Wakes the step of the parent that waits for this child run, which has ended; False if the parent is not active.

    The result is not copied: the step reads it from the child.
    """
    rows = yield Query("parent_of", {"run_id": child})
    if not rows:
        return False
    parent, wait, occurrence = rows[0]
    if not (yield Query("raise_signals", {"run_id": parent})):
        return False
    yield Query("wake_parent", {"run_id": parent, "step": wait, "occurrence": occurrence})
    return True


def _owned(claim: Claim, run_id: UUID, step: str, occurrence: int) -> dict[str, object]:
    return {
        "delivery_id": claim.delivery_id,
        "fence": claim.fence,
        "worker": claim.worker,
        "run_id": run_id,
        "step": step,
        "occurrence": occurrence,
    }
