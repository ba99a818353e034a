"""Bulk actions by operators: choosing deliveries once, then acting on exactly those, batch by batch.

Each batch is one transaction. It looks at every delivery under a lock before it acts, so that what has moved on since
it was chosen is left alone and named, and it writes down under the plan's own id what it did: a plan that was cut off
can be taken up again and knows how far it came.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.bounded_count import BoundedCount
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audited, cancel, discard, replay
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.query import Filter, conditions

_ALL = 2**31 - 1


class Action(StrEnum):
    """What a plan does to each of its deliveries."""

    REPLAY = "replay"
    DISCARD = "discard"
    CANCEL = "cancel"


class SkipReason(StrEnum):
    """Why a delivery was left alone."""

    NOT_FOUND = "not_found"
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISCARDED = "discarded"
    CHANGED = "changed"
    """It failed anew since it was chosen: this is not the failure that was looked at."""
    KEY_HELD = "key_held"
    """Another job holds its unique key."""


class Candidate(NamedTuple):
    """A delivery as it stood when it was chosen."""

    id: UUID
    consumer: str
    type: str
    status: Status
    generation: int
    fence: int
    discarded: bool
    group: str | None = None


class ActionTarget(NamedTuple):
    """One delivery of a plan: the fence it was chosen at, and the generation a replay gives it (none: as it is live)."""

    id: UUID
    fence: int
    generation: int | None = None


class SkippedDelivery(NamedTuple):
    """A delivery that was left alone. `by` names who replayed it last, if anybody did."""

    id: UUID
    why: SkipReason
    by: str | None = None


class BatchResult(NamedTuple):
    """What one batch did."""

    done: tuple[UUID, ...]
    left: tuple[SkippedDelivery, ...]


@operation(reads=True)
def find_candidates(wanted: Filter, limit: int, after: UUID | None = None) -> Steps[list[Candidate]]:
    """The oldest deliveries that match, up to `limit`; pass the last id as `after` for the next ones."""
    where, values = conditions(wanted)
    if after is not None:
        where, values = (*where, "where_after"), {**values, "after": after}
    rows = yield Query("find_candidates", values, slots=(("where", where),), limit=limit)
    return [
        Candidate(as_uuid(id), consumer, type, Status(status), generation, fence, bool(discarded), group)
        for id, consumer, type, status, generation, fence, discarded, group in rows
    ]


@operation(reads=True)
def count_remaining(wanted: Filter, after: UUID, bound: int) -> Steps[BoundedCount]:
    """How many deliveries match beyond the last one that was chosen, counted up to `bound`."""
    where, values = conditions(wanted)
    rows = yield Query(
        "count_remaining", {**values, "after": after}, slots=(("where", (*where, "where_after")),), limit=bound
    )
    return BoundedCount(rows[0][0], rows[0][0] >= bound)


@operation
def act(
    action: Action, plan: UUID, batch: Sequence[ActionTarget], actor: str, reason: str | None, *, rerun: bool = False
) -> Steps[BatchResult]:
    """Does `action` to those of the batch that still are as they were chosen, audited; says what was left and why.

    A replay and a discard need the failure that was chosen. A cancellation stops whatever is not done, claimed
    since or not.
    """
    statuses = acceptable(action, rerun=rerun)
    ids = [item.id for item in batch]
    rows = yield Query("lock_deliveries", {"ids": ids, "statuses": [status.value for status in statuses]})
    held: dict[UUID, int] = {as_uuid(id): fence for id, fence in rows}
    fit = [item for item in batch if item.id in held and (action is Action.CANCEL or held[item.id] == item.fence)]
    done: set[UUID] = set()
    match action:
        case Action.REPLAY:
            for generation, same in groupby(sorted(fit, key=_generation), key=lambda item: item.generation):
                replayed = replay([item.id for item in same], actor, reason, generation, rerun=rerun, plan=plan)
                done.update(one.id for one in (yield from replayed.start()))
        case Action.DISCARD:
            done.update((yield from discard([item.id for item in fit], actor, reason, plan).start()))
        case Action.CANCEL:
            done.update((yield from cancel([item.id for item in fit], actor, reason, plan).start()))
    if done:
        detail = {"deliveries": sorted(str(id) for id in done)}
        yield audited(actor, action.value, "plan", str(plan), reason, detail)
    rest = [item for item in batch if item.id not in done]
    left = (yield from _left(rest, {item.id for item in fit})) if rest else ()
    return BatchResult(tuple(item.id for item in batch if item.id in done), left)


@operation(reads=True)
def done_by(plan: UUID) -> Steps[frozenset[UUID]]:
    """The deliveries this plan has acted on so far, in this process or another."""
    rows = yield Query(
        "audit",
        {"before": 2**63 - 1, "kind": "plan", "target": str(plan)},
        slots=(("where", ("where_target",)),),
        limit=_ALL,
    )
    return frozenset(as_uuid(id) for row in rows for id in _deliveries(row[7]))


def acceptable(action: Action, *, rerun: bool = False) -> tuple[Status, ...]:
    """The states in which a delivery can be acted on."""
    match action:
        case Action.REPLAY:
            return (Status.FAILED, Status.DELIVERED) if rerun else (Status.FAILED,)
        case Action.DISCARD:
            return (Status.FAILED,)
        case Action.CANCEL:
            return (Status.PENDING, Status.IN_FLIGHT)


def _generation(item: ActionTarget) -> int:
    return -1 if item.generation is None else item.generation


def _left(rest: Sequence[ActionTarget], fit: set[UUID]) -> Steps[tuple[SkippedDelivery, ...]]:
    rows = yield Query("current_states", {"ids": [item.id for item in rest]})
    now: Mapping[UUID, tuple[str, int, bool, str | None]] = {
        as_uuid(id): (status, fence, bool(discarded), by) for id, _, status, fence, discarded, by in rows
    }
    left = []
    for item in rest:
        if item.id not in now:
            left.append(SkippedDelivery(item.id, SkipReason.NOT_FOUND))
            continue
        status, fence, discarded, by = now[item.id]
        if item.id in fit:
            why = SkipReason.KEY_HELD
        elif discarded:
            why = SkipReason.DISCARDED
        elif status == Status.FAILED and fence != item.fence:
            why = SkipReason.CHANGED
        else:
            why = SkipReason(status)
        left.append(SkippedDelivery(item.id, why, by))
    return tuple(left)


def _deliveries(detail: object) -> Iterable[str]:
    read = None if detail is None else orjson.loads(str(detail))
    return read.get("deliveries", ()) if isinstance(read, dict) else ()
