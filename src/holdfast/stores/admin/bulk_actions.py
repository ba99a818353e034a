"""Executing a plan, batch by batch.

A batch is one transaction. It locks its deliveries, acts on those that are still as they were selected, and records the
outcome of each and the new position of the plan. A runner that is killed leaves the plan as it was after its last batch.
The lease only keeps runners apart: a delivery is acted on once because position and action commit together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audited, cancel, discard, replay, who
from holdfast.stores.admin.plan import DONE, Action, PlanState, SkipReason, StoredPlan, read_plan
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Row, Steps, columns, operation

LEASE = timedelta(seconds=15)
_BATCH = 100


class ActionTarget(NamedTuple):
    """A delivery of a batch: its number in the plan, its fence when it was selected, and the generation a replay gives it."""

    n: int
    id: UUID
    fence: int
    generation: int | None


class SkippedDelivery(NamedTuple):
    """Why a delivery was skipped, and who replayed it last."""

    why: SkipReason
    by: str | None = None


@operation
def advance_plan(id: UUID, runner: str, lease: timedelta = LEASE) -> Steps[StoredPlan | None]:
    """Acts on the next batch of a plan. Returns None if the plan is not running, or another process executes it.

    The audit log names the actor who started the plan, and records the end of the plan.
    """
    rows = yield Query("lock_plan", {"id": id, "runner": runner})
    if not rows:
        return None
    plan = yield from advance(read_plan(rows[0]), runner, lease)
    if plan.state is PlanState.DONE:
        assert plan.started_by is not None
        skips = {why.value: count for why, count in plan.skipped.items()}
        detail = {"done": plan.done, "skipped": skips, "runner": runner}
        yield audited(plan.started_by, "finish", "plan", str(id), plan.start_reason, detail)
    return plan


def start(plan: StoredPlan, actor: str, reason: str | None, generation: int | None) -> Steps[StoredPlan]:
    """Starts a plan in the transaction that created it."""
    rows = yield Query("start_plan", {"id": plan.id, "generation": generation, **who(actor, reason)})
    return read_plan(rows[0])


def advance(plan: StoredPlan, runner: str, lease: timedelta = LEASE) -> Steps[StoredPlan]:
    """Acts on the next batch of a plan that this transaction has locked."""
    values = {"plan": plan.id, "after": plan.position, "last": plan.items}
    batch = _together((yield Query("next_plan_items", values, limit=_BATCH)))
    targets = [
        ActionTarget(n, as_uuid(id), fence, to if plan.generation is None else plan.generation)
        for n, id, _, fence, to in batch
    ]
    skipped = yield from _act(plan, targets)
    outcomes = [
        (one.n, skipped[one.id].why.value, skipped[one.id].by) if one.id in skipped else (one.n, DONE, None)
        for one in targets
    ]
    counts = Counter(plan.skipped) + Counter(one.why for one in skipped.values())
    after = {
        "id": plan.id,
        "position": targets[-1].n if targets else plan.items,
        "done": plan.done + len(targets) - len(skipped),
        "skipped": orjson.dumps({why.value: count for why, count in counts.items()}).decode(),
        "runner": runner,
        "lease": lease,
    }
    recorded = columns(("n", "outcome", "replayed_by"), outcomes)
    return read_plan((yield Query("advance_plan", after, {"outcomes": recorded}))[0])


def acceptable(action: Action, *, rerun: bool = False) -> tuple[Status, ...]:
    """The states in which a plan acts on a delivery."""
    match action:
        case Action.REPLAY:
            return (Status.FAILED, Status.DELIVERED) if rerun else (Status.FAILED,)
        case Action.DISCARD:
            return (Status.FAILED,)
        case Action.CANCEL:
            return (Status.PENDING, Status.IN_FLIGHT)


def _act(plan: StoredPlan, batch: Sequence[ActionTarget]) -> Steps[Mapping[UUID, SkippedDelivery]]:
    """Acts on the deliveries that have not changed since they were selected, audited; returns the others.

    A replay and a discard require the failure that was selected. A cancellation accepts any unfinished delivery, also
    one that was claimed after the selection.
    """
    if not batch:
        return {}
    statuses = [status.value for status in acceptable(plan.action, rerun=plan.rerun)]
    rows = yield Query("lock_deliveries", {"ids": [one.id for one in batch], "statuses": statuses})
    fences: dict[UUID, int] = {as_uuid(id): fence for id, fence in rows}
    fit = [one for one in batch if one.id in fences and (plan.action is Action.CANCEL or fences[one.id] == one.fence)]
    ended = (yield from steps_of_ended_runs([one.id for one in fit]).start()) if plan.action is Action.REPLAY else ()
    fit = [one for one in fit if one.id not in ended]
    done = (yield from _change(plan, fit)) if fit else frozenset()
    if done:
        assert plan.started_by is not None
        detail = {"deliveries": sorted(str(id) for id in done)}
        yield audited(plan.started_by, plan.action.value, "plan", str(plan.id), plan.start_reason, detail)
    rest = [one for one in batch if one.id not in done]
    skipped = (yield from _skipped(rest, {one.id for one in fit})) if rest else {}
    return {**skipped, **{id: skipped[id]._replace(why=SkipReason.RUN_ENDED) for id in ended}}


@operation(reads=True)
def steps_of_ended_runs(ids: Sequence[UUID]) -> Steps[frozenset[UUID]]:
    """The deliveries that a worker would discard: steps of a run that has ended or is being compensated.

    Undo steps of a run that is being compensated are not among them.
    """
    return frozenset(as_uuid(id) for (id,) in (yield Query("steps_of_ended_runs", {"ids": list(ids)})))


def _change(plan: StoredPlan, batch: Sequence[ActionTarget]) -> Steps[frozenset[UUID]]:
    ids, actor, reason = [one.id for one in batch], plan.started_by or "", plan.start_reason
    match plan.action:
        case Action.REPLAY:
            done: set[UUID] = set()
            for generation, same in groupby(sorted(batch, key=_generation), key=lambda one: one.generation):
                replayed = replay([one.id for one in same], actor, reason, generation, rerun=plan.rerun, plan=plan.id)
                done.update(one.id for one in (yield from replayed.start()))
            return frozenset(done)
        case Action.DISCARD:
            return (yield from discard(ids, actor, reason, plan.id).start())
        case Action.CANCEL:
            return (yield from cancel(ids, actor, reason, plan.id).start())


def _generation(one: ActionTarget) -> int:
    return -1 if one.generation is None else one.generation


def _together(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of one batch: those that were not in flight, or a single one that was.

    The handler of a delivery in flight may lock its row, and the other deliveries must not wait for that lock.
    """
    for at, row in enumerate(rows):
        if row[2] == Status.IN_FLIGHT:
            return rows[: max(at, 1)]
    return rows


def _skipped(rest: Sequence[ActionTarget], fit: set[UUID]) -> Steps[dict[UUID, SkippedDelivery]]:
    rows = yield Query("current_states", {"ids": [one.id for one in rest]})
    states = {as_uuid(row[0]): row[1:] for row in rows}
    found = {}
    for one in rest:
        if one.id not in states:
            found[one.id] = SkippedDelivery(SkipReason.NOT_FOUND)
            continue
        status, fence, discarded, by = states[one.id]
        if one.id in fit:
            why = SkipReason.KEY_HELD
        elif discarded:
            why = SkipReason.DISCARDED
        elif status == Status.FAILED and fence != one.fence:
            why = SkipReason.CHANGED
        else:
            why = SkipReason(status)
        found[one.id] = SkippedDelivery(why, by)
    return found
