"""Settlements: outcomes, written under the fence of their claim."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from holdfast.core.change import (
    Block,
    Change,
    DeadLetter,
    Deliver,
    DeliverResult,
    Discard,
    Park,
    Postpone,
    Release,
    Remove,
    Replay,
    Retry,
    Suspend,
)
from holdfast.core.delivery import Claim
from holdfast.core.errors import AlreadyHandled, LeaseLost
from holdfast.core.failures.report import MESSAGE_LIMIT, ErrorReport
from holdfast.core.values.text import safe_str, sanitize
from holdfast.stores.deliveries.result import KeptResult, keep_results
from holdfast.stores.dialect import as_uuid
from holdfast.stores.errors import ALREADY_HANDLED, LEASE_LOST
from holdfast.stores.operation import Columns, Operation, Query, Steps, columns, operation

SETTLEMENT = (
    "delivery_id",
    "fence",
    "status",
    "delay",
    "until",
    "returned",
    "held",
    "expired",
    "suspect",
    "failure",
    "discarded",
    "outcome",
    "error_type",
    "error",
    "fingerprint",
    "trace",
    "elapsed",
    "keep_run",
    "detail",
)


_REMOVE = Remove()


class Settlement(NamedTuple):
    """The outcome of one claim. A failure always gets a run record, a success on request.

    `detail` is JSON text for the run record: what the handler reported in addition to its outcome.
    """

    delivery_id: UUID
    fence: int
    change: Change
    outcome: str
    error: ErrorReport | None = None
    elapsed: timedelta | None = None
    expired: bool = False
    suspect: bool = False
    keep_run: bool = False
    detail: str | None = None


class ClaimState(StrEnum):
    """The state of a claim after the reply to its settlement was lost."""

    HELD = "held"  # still held: settle again
    SETTLED = "settled"  # the settlement was written
    LOST = "lost"  # another worker or an operator owns or ended it


def settle(worker: str, settlements: Sequence[Settlement]) -> Operation[frozenset[UUID]]:
    """Writes the outcomes of claims that this worker still holds; returns the deliveries that it settled.

    A claim that is not returned was lost: another owner, a replay or a cancellation incremented its fence. Nothing
    changed for it.
    """
    plain = [s for s in settlements if type(s.change) is Deliver and not s.keep_run]
    rest = [s for s in settlements if type(s.change) is not Deliver or s.keep_run]
    return Operation(lambda: _settle(worker, plain, rest), single=_is_single(plain, rest), hot=True)


def _is_single(plain: Sequence[Settlement], rest: Sequence[Settlement]) -> bool:
    """Whether one statement writes all settlements."""
    if not rest or plain:
        return not rest
    kinds = {type(s.change) for s in rest}
    if Remove in kinds:
        return len({s.change for s in rest}) == 1
    return DeliverResult not in kinds


def _settle(worker: str, plain: Sequence[Settlement], rest: Sequence[Settlement]) -> Steps[frozenset[UUID]]:
    settled: set[UUID] = set()
    if plain:
        ids = [s.delivery_id for s in plain]
        claims: Columns = {"delivery_id": ids, "fence": [s.fence for s in plain]}
        rows = yield Query("settle_delivered", {"worker": worker}, {"settlements": claims})
        settled.update(ids if len(rows) == len(ids) else (as_uuid(row[0]) for row in rows))
    removed = [s for s in rest if type(s.change) is Remove]
    if removed:
        rest = [s for s in rest if type(s.change) is not Remove]
        settled |= yield from _remove(worker, [s for s in removed if s.change == _REMOVE], "claimed_rows")
        settled |= yield from _remove(worker, [s for s in removed if s.change != _REMOVE], "delivered_rows")
    if rest:
        batch = {"settlements": columns(SETTLEMENT, [settlement_row(s) for s in rest])}
        written = {as_uuid(row[0]) for row in (yield Query("settle", {"worker": worker}, batch))}
        yield from keep_results(
            [
                KeptResult(s.delivery_id, s.fence, s.change.result, s.change.keep)
                for s in rest
                if isinstance(s.change, DeliverResult) and s.delivery_id in written
            ]
        )
        settled |= written
        done = [s for s in rest if type(s.change) is DeliverResult and s.change.remove and s.delivery_id in written]
        yield from _remove(worker, done, "delivered_rows")
    return frozenset(settled)


def _remove(worker: str, settlements: Sequence[Settlement], which: str) -> Steps[set[UUID]]:
    """Removes the rows of these claims, and the messages that nothing else needs; returns the deliveries."""
    if not settlements:
        return set()
    claims: Columns = {
        "delivery_id": [s.delivery_id for s in settlements],
        "fence": [s.fence for s in settlements],
    }
    query = Query("remove_deliveries", {"worker": worker}, {"claims": claims}, slots=(("owned", (which,)),))
    return {as_uuid(row[0]) for row in (yield query)}


@operation(reads=True)
def claim_states(claims: Iterable[Claim]) -> Steps[dict[UUID, ClaimState]]:
    """The current state of each claim. After a lost reply to COMMIT it shows whether the settlement was written."""
    held = {claim.delivery_id: claim for claim in claims}
    found = {
        as_uuid(row[0]): _hold(row[1], row[3], held[as_uuid(row[0])])
        for row in (yield Query("claim_states", {"ids": list(held)}))
    }
    return {id: found.get(id, ClaimState.LOST) for id in held}


@operation(reads=True)
def may_remove_messages() -> Steps[bool]:
    """Whether the database lets this process remove messages: a worker's role usually may not."""
    return bool((yield Query("may_remove_messages"))[0][0])


@operation(reads=True)
def absent(ids: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """The deliveries that have no row."""
    wanted = list(ids)
    return frozenset(wanted) - {as_uuid(row[0]) for row in (yield Query("claim_states", {"ids": wanted}))}


@operation(reads=True)
def unlocked(ids: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """The deliveries that no open transaction has locked; the state of the others may still change."""
    return frozenset(as_uuid(row[0]) for row in (yield Query("unlocked", {"ids": list(ids)})))


@operation
def complete(
    claim: Claim, idle_timeout: timedelta, handled: tuple[str, str, str] | None = None, *, keep_run: bool = False
) -> Steps[None]:
    """Marks a claim delivered in the caller's transaction (and a broker record's (consumer, source, key) handled).

    When the lease is lost or the key was handled, the database raises and rolls back the whole transaction.
    """
    if handled is not None:
        yield record_key(*handled, claim.delivery_id)
    yield Query(
        "complete",
        {
            "delivery_id": claim.delivery_id,
            "fence": claim.fence,
            "worker": claim.worker,
            "idle_timeout_ms": round(idle_timeout.total_seconds() * 1000),
        },
        raises=(LEASE_LOST, lambda: LeaseLost(claim.delivery_id, claim.fence)),
    )
    if keep_run:
        values = {"delivery_id": claim.delivery_id, "fence": claim.fence, "worker": claim.worker}
        yield Query("record_run", values)


def record_key(consumer: str, source: str, key: str, delivery_id: UUID) -> Query:
    """Records a key as handled; raises `AlreadyHandled` and rolls back the transaction if it was handled before."""
    values = {"consumer": consumer, "source": source, "key": key, "delivery_id": delivery_id}
    return Query("record_handled", values, raises=(ALREADY_HANDLED, lambda: AlreadyHandled(consumer, key)))


def _hold(fence: object, owner: object, claim: Claim) -> ClaimState:
    if fence != claim.fence:
        return ClaimState.LOST
    if owner == claim.worker:
        return ClaimState.HELD
    return ClaimState.SETTLED if owner is None else ClaimState.LOST


def settlement_row(s: Settlement) -> tuple[object, ...]:
    """The values of a settlement for the columns `SETTLEMENT`."""
    change = s.change
    delay, until = _when(change)
    error = s.error
    return (
        s.delivery_id,
        s.fence,
        change.status.value,
        delay,
        until,
        int(change.returns_attempt),
        int(isinstance(change, Block | Release) and change.held),
        s.expired,
        s.suspect,
        isinstance(change, Retry | DeadLetter),
        isinstance(change, Discard),
        s.outcome,
        error and error.type,
        _reason(change) if error is None else error.message,
        error and error.fingerprint,
        error and error.trace,
        s.elapsed,
        # No record for each rejection by an open circuit: they would fill the table without information.
        s.keep_run or isinstance(change, Discard) or (error is not None and not error.turned_away),
        s.detail,
    )


def _reason(change: Change) -> str | None:
    # The text comes from the handler; any value must be storable.
    return sanitize(safe_str(change.reason), MESSAGE_LIMIT) if isinstance(change, Discard) else None


def _when(change: Change) -> tuple[timedelta | None, datetime | None]:
    match change:
        case Retry(delay) | Postpone(delay) | Block(_, delay):
            return delay, None
        case Release(delay):
            # Without a delay it keeps its position in the lane.
            return delay or None, None
        case Park(_, delay, until):
            return delay, until
        case Deliver() | DeadLetter() | Discard():
            return None, None
        case Replay() | Suspend():
            raise TypeError(f"{change.name} cannot be settled: only operators replay, and only workflows suspend steps")
