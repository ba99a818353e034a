"""Plans that are stored: saved by one process, started by another, carried on by any.

A batch is one transaction: it takes the plan's row, acts on the next deliveries, notes what came of each and how far
the plan has come. A runner that is killed leaves the plan as it was after its last batch. The lease only keeps
runners out of each other's way; what makes a delivery be acted on once is that position and act commit together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound, Refused
from holdfast.stores.admin.actions import audited, who
from holdfast.stores.admin.bulk_actions import Action, ActionTarget, SkipReason, act
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Row, Steps, columns, operation
from holdfast.stores.queries.query import page_size

LEASE = timedelta(seconds=15)
DONE = "done"
_BATCH = 100
_CHUNK = 1000
_ITEM = ("n", "delivery_id", "consumer", "type", "status", "generation", "fence", "to_generation", "outcome")


class PlanState(StrEnum):
    """Ready waits to be started, paused to be resumed; done and abandoned are the end."""

    READY = "ready"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    ABANDONED = "abandoned"


class ReplayResult(StrEnum):
    """How a delivery ended after a plan replayed it."""

    DELIVERED = "delivered"
    DEAD = "dead"
    DISCARDED = "discarded"
    PRUNED = "pruned"
    """It ended and was pruned before anybody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan as it stands. `done` and `skipped` are exact at any moment; `skipped` counts by reason.

    `preview` is what was shown when it was made, as JSON. `generation` overrides what the preview shows. `results`
    counts how the deliveries it replayed ended, as far as workers and consoles have looked; when all have,
    `settled_at` says since when.
    """

    id: UUID
    action: Action
    state: PlanState
    preview: Mapping[str, Any]
    rerun: bool
    generation: int | None
    total: int
    done: int
    skipped: Mapping[SkipReason, int]
    made_at: datetime
    saved_at: datetime
    saved_by: str
    save_reason: str | None
    started_at: datetime | None
    started_by: str | None
    start_reason: str | None
    ended_at: datetime | None
    runner: str | None
    results: Mapping[ReplayResult, int] = field(default_factory=dict)
    settled_at: datetime | None = None

    @property
    def left(self) -> int:
        """How many deliveries it has yet to look at."""
        return self.total - self.done - sum(self.skipped.values())

    @property
    def unsettled(self) -> int:
        """How many of the deliveries it replayed are not known to have ended."""
        return self.done - sum(self.results.values()) if self.action is Action.REPLAY else 0


class PlanItem(NamedTuple):
    """A delivery of a stored plan. `why` says why it was left alone; `by` who replayed it last, if it was.

    `result` is how it ended after this plan replayed it, none while it has not, or was not found to have.
    """

    n: int
    id: UUID
    consumer: str | None
    type: str | None
    done: bool
    why: SkipReason | None
    by: str | None
    to_generation: int | None
    result: ReplayResult | None = None


class NewItem(NamedTuple):
    """A delivery of a plan about to be stored, as it stood when the plan was made."""

    id: UUID
    consumer: str
    type: str
    status: Status
    generation: int
    fence: int
    to_generation: int | None


class SkippedItem(NamedTuple):
    """A delivery that a plan about to be stored leaves alone, and why."""

    id: UUID
    consumer: str | None
    why: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    """A plan about to be stored."""

    id: UUID
    action: Action
    made_at: datetime
    rerun: bool
    preview: Mapping[str, object]
    items: Sequence[NewItem]
    skipped: Sequence[SkippedItem]


class _Taken(NamedTuple):
    plan: StoredPlan
    items: int
    position: int


@operation
def save_plan(plan: NewPlan, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Stores a plan, ready to be started; saving it again changes nothing."""
    # One in flight goes alone, and last: its handler may hold the row, and the others must not wait.
    ordered = sorted(plan.items, key=lambda item: item.status is Status.IN_FLIGHT)
    values = {
        "id": plan.id,
        "action": plan.action.value,
        "preview": orjson.dumps(plan.preview).decode(),
        "rerun": plan.rerun,
        "items": len(ordered),
        "total": len(ordered) + len(plan.skipped),
        "skipped": _counts(Counter(item.why for item in plan.skipped)),
        "made_at": plan.made_at,
        **who(actor, reason),
    }
    if (yield Query("save_plan", values)):
        rows: list[Row] = [
            (n, *item[:3], item.status.value, *item[4:], None) for n, item in enumerate(ordered, start=1)
        ]
        rows += [
            (n, left.id, left.consumer, None, None, None, None, None, left.why.value)
            for n, left in enumerate(plan.skipped, start=len(rows) + 1)
        ]
        for at in range(0, len(rows), _CHUNK):
            yield Query("save_plan_items", {"plan": plan.id}, {"items": columns(_ITEM, rows[at : at + _CHUNK])})
        detail = {"action": plan.action.value, "items": len(ordered), "skipped": len(plan.skipped)}
        yield audited(actor, "save", "plan", str(plan.id), reason, detail)
    return (yield from _found(plan.id)).plan


@operation(reads=True)
def plan(id: UUID) -> Steps[StoredPlan]:
    """One plan as it stands."""
    return (yield from _found(id)).plan


@operation(reads=True)
def plans(limit: int = 50, before: UUID | None = None, state: PlanState | None = None) -> Steps[list[StoredPlan]]:
    """A page of plans, newest first; pass the last id as `before` for the next."""
    values: dict[str, object] = {}
    where: list[str] = []
    if before is not None:
        values["before"] = before
        where.append("where_plan_before")
    if state is not None:
        values["state"] = state.value
        where.append("where_plan_state")
    rows = yield Query("list_plans", values, slots=(("where", tuple(where)),), limit=page_size(limit))
    return [_read(row).plan for row in rows]


@operation(reads=True)
def plan_items(
    id: UUID, limit: int = 50, after: int = 0, *, skipped: bool = False, dead: bool = False
) -> Steps[list[PlanItem]]:
    """A page of a plan's deliveries in its order, of those it left alone, or of those that died again; pass the last
    `n` as `after`."""
    where = (*(("where_item_skipped",) if skipped else ()), *(("where_item_dead",) if dead else ()))
    values = {"plan": id, "after": after}
    rows = yield Query("list_plan_items", values, slots=(("where", where),), limit=page_size(limit))
    return [
        PlanItem(
            n,
            as_uuid(delivery),
            consumer,
            type,
            outcome == DONE,
            None if outcome in (None, DONE) else SkipReason(outcome),
            by,
            generation,
            None if result is None else ReplayResult(result),
        )
        for n, delivery, consumer, type, outcome, by, generation, result in rows
    ]


@operation(reads=True)
def running_plans(runner: str) -> Steps[list[UUID]]:
    """The plans this runner may go on with: running, and held by no other that lives."""
    return [as_uuid(row[0]) for row in (yield Query("running_plans", {"runner": runner}))]


@operation
def start_plan(id: UUID, actor: str, reason: str | None, generation: int | None) -> Steps[StoredPlan]:
    """Lets a plan run. Of two who start it one does; the other is told who was first."""
    if not (yield Query("start_plan", {"id": id, "generation": generation, **who(actor, reason)})):
        raise _refusal("start", (yield from _found(id)).plan)
    detail = None if generation is None else {"generation": generation}
    yield audited(actor, "start", "plan", str(id), reason, detail)
    return (yield from _found(id)).plan


@operation
def pause_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Stops a plan after the batch that is under way; it can be resumed."""
    return (yield from _move(id, "pause", PlanState.PAUSED, (PlanState.RUNNING,), actor, reason))


@operation
def resume_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Lets a paused plan go on from where it was."""
    return (yield from _move(id, "resume", PlanState.RUNNING, (PlanState.PAUSED,), actor, reason))


@operation
def abandon_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Ends a plan where it is; what it did stays done."""
    unfinished = (PlanState.READY, PlanState.RUNNING, PlanState.PAUSED)
    return (yield from _move(id, "abandon", PlanState.ABANDONED, unfinished, actor, reason))


@operation
def advance_plan(id: UUID, runner: str, lease: timedelta = LEASE) -> Steps[StoredPlan | None]:
    """Acts on a running plan's next deliveries and says how it stands; none when another runner has it, or nobody may.

    Actor and reason are those of who started it.
    """
    rows = yield Query("take_plan", {"id": id, "runner": runner, "lease": lease})
    if not rows:
        return None
    taken = _read(rows[0])
    plan = taken.plan
    values = {"plan": id, "after": taken.position, "last": taken.items}
    batch = _together((yield Query("next_plan_items", values, limit=_BATCH)))
    wanted = [
        ActionTarget(as_uuid(delivery), fence, to if plan.generation is None else plan.generation)
        for _, delivery, _, fence, to in batch
    ]
    assert plan.started_by is not None
    acted = yield from act(plan.action, id, wanted, plan.started_by, plan.start_reason, rerun=plan.rerun).start()
    left = {one.id: one for one in acted.left}
    outcomes = [
        (row[0], left[item.id].why.value if item.id in left else DONE, left[item.id].by if item.id in left else None)
        for row, item in zip(batch, wanted, strict=True)
    ]
    if outcomes:
        recorded = columns(("n", "outcome", "replayed_by"), outcomes)
        yield Query("record_plan_items", {"plan": id}, {"outcomes": recorded})
    skipped = _counts(Counter(plan.skipped) + Counter(one.why for one in acted.left))
    after = {
        "id": id,
        "position": batch[-1][0] if batch else taken.items,
        "done": plan.done + len(acted.done),
        "skipped": skipped,
    }
    plan = _read((yield Query("advance_plan", after))[0]).plan
    if plan.state is PlanState.DONE:
        assert plan.started_by is not None
        skips = {why.value: count for why, count in plan.skipped.items()}
        detail = {"done": plan.done, "skipped": skips, "runner": runner}
        yield audited(plan.started_by, "finish", "plan", str(id), plan.start_reason, detail)
    return plan


@operation
def forget_plan(older_than: timedelta) -> Steps[bool]:
    """Removes one plan that ended, or was never started, that long ago; false when there is none. The audit stays."""
    return bool((yield Query("forget_plan", {"older_than": older_than})))


@operation(reads=True)
def handled_already(ids: Sequence[UUID]) -> Steps[frozenset[UUID]]:
    """Those of the deliveries whose consumer has handled their message's key before: a replay would skip them."""
    return frozenset(as_uuid(row[0]) for row in (yield Query("handled_already", {"ids": list(ids)})))


def _move(
    id: UUID, verb: str, to: PlanState, source: Sequence[PlanState], actor: str, reason: str | None
) -> Steps[StoredPlan]:
    if not (yield Query("move_plan", {"id": id, "state": to.value, "from": [state.value for state in source]})):
        raise _refusal(verb, (yield from _found(id)).plan)
    yield audited(actor, verb, "plan", str(id), reason)
    return (yield from _found(id)).plan


def _refusal(verb: str, plan: StoredPlan) -> Refused:
    by = "" if plan.started_by is None else f", started by {plan.started_by}"
    return Refused(verb, f"plan {plan.id}", f"{plan.state}{by}", "look at it anew")


def _found(id: UUID) -> Steps[_Taken]:
    rows = yield Query("find_plan", {"id": id})
    if not rows:
        raise NotFound("plan", id)
    return _read(rows[0])


def _together(rows: Sequence[Row]) -> Sequence[Row]:
    """What goes into one transaction: those that were not in flight, or one that was."""
    for at, row in enumerate(rows):
        if row[2] == Status.IN_FLIGHT:
            return rows[: max(at, 1)]
    return rows


def _counts(reasons: Mapping[SkipReason, int]) -> str:
    return orjson.dumps({why.value: count for why, count in reasons.items()}).decode()


def _read(row: Row) -> _Taken:
    (
        id,
        action,
        state,
        preview,
        rerun,
        generation,
        items,
        total,
        position,
        done,
        skipped,
        made,
        saved,
        saver,
        why_saved,
        started,
        starter,
        why_started,
        ended,
        runner,
        results,
        settled,
    ) = row
    plan = StoredPlan(
        id=as_uuid(id),
        action=Action(action),
        state=PlanState(state),
        preview=orjson.loads(preview),
        rerun=bool(rerun),
        generation=generation,
        total=total,
        done=done,
        skipped={SkipReason(why): count for why, count in orjson.loads(skipped).items()},
        made_at=aware_time(made),
        saved_at=aware_time(saved),
        saved_by=saver,
        save_reason=why_saved,
        started_at=optional_time(started),
        started_by=starter,
        start_reason=why_started,
        ended_at=optional_time(ended),
        runner=runner,
        results={} if results is None else {ReplayResult(name): count for name, count in orjson.loads(results).items()},
        settled_at=optional_time(settled),
    )
    return _Taken(plan, items, position)
