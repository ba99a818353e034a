"""Stored plans: saved by one process, started and watched by another, carried on by whoever lives."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from holdfast.core.message import check_generation
from holdfast.ops.plan_file import counted, filter_to_json
from holdfast.ops.plans import Plan
from holdfast.ops.redaction import shown_plan
from holdfast.ops.work import Work, ask, do
from holdfast.stores.admin import plan as stored
from holdfast.stores.admin import plan_results
from holdfast.stores.admin.bulk_actions import Action
from holdfast.stores.admin.plan import LEASE, NewItem, NewPlan, PlanItem, PlanState, SkippedItem, StoredPlan

_IDLE = 4


def save_plan(plan: Plan, *, actor: str, reason: str | None = None) -> Work[StoredPlan]:
    """Stores a plan, ready to be started by anybody; saving it again changes nothing."""
    items = [
        NewItem(one.id, one.consumer, one.type, one.status, one.generation, one.fence, one.to_generation)
        for one in plan.items
    ]
    new = NewPlan(
        id=plan.id,
        action=plan.action,
        made_at=plan.made_at,
        rerun=plan.rerun,
        # Named ids stand in the items; a filter of 100,000 of them would be as long again.
        preview={
            "filter": filter_to_json(replace(plan.filter, ids=None)),
            "limit": plan.limit,
            **counted(plan),
        },
        items=items,
        skipped=[SkippedItem(one.id, one.consumer, one.why) for one in plan.skipped],
    )
    return shown_plan((yield from do(stored.save_plan(new, actor, reason))))


def plans(*, limit: int = 50, before: UUID | None = None, state: PlanState | None = None) -> Work[list[StoredPlan]]:
    """A page of stored plans, newest first; pass the last id as `before` for the next."""
    return [shown_plan(one) for one in (yield from do(stored.plans(limit, before, state)))]


def plan(id: UUID) -> Work[StoredPlan]:
    """A stored plan as it stands: what it was to do, how far it has come, what it skipped and why."""
    return shown_plan((yield from do(stored.plan(id))))


def plan_items(
    id: UUID, *, limit: int = 50, after: int = 0, skipped: bool = False, dead: bool = False
) -> Work[list[PlanItem]]:
    """A page of a plan's deliveries with what came of each, of the skipped alone, or of those that died again; pass
    the last `n` as `after`."""
    yield from do(stored.plan(id))
    return (yield from do(stored.plan_items(id, limit, after, skipped=skipped, dead=dead)))


def start_plan(id: UUID, *, actor: str, reason: str | None = None, generation: int | None = None) -> Work[StoredPlan]:
    """Lets a stored plan run; whoever drives plans goes on with it. `generation` overrides what the preview shows."""
    if generation is not None:
        check_generation(generation)
    return shown_plan((yield from do(stored.start_plan(id, actor, reason, generation))))


def pause_plan(id: UUID, *, actor: str, reason: str | None = None) -> Work[StoredPlan]:
    """Stops a running plan after the batch that is under way."""
    return shown_plan((yield from do(stored.pause_plan(id, actor, reason))))


def resume_plan(id: UUID, *, actor: str, reason: str | None = None) -> Work[StoredPlan]:
    """Lets a paused plan go on from where it was."""
    return shown_plan((yield from do(stored.resume_plan(id, actor, reason))))


def abandon_plan(id: UUID, *, actor: str, reason: str | None = None) -> Work[StoredPlan]:
    """Ends a plan where it is; what it did stays done."""
    return shown_plan((yield from do(stored.abandon_plan(id, actor, reason))))


def advance_plan(id: UUID, *, runner: str, lease: timedelta = LEASE) -> Work[StoredPlan | None]:
    """Carries a running plan on by one batch; none when it does not run, or another runner has it for now.

    Any process may call it at any moment: a batch is one transaction, and no delivery is acted on twice.
    """
    plan = yield from do(stored.advance_plan(id, runner, lease))
    if plan is not None and plan.action is Action.REPLAY:
        yield from ask(lambda store: store.hint_sync())
    return None if plan is None else shown_plan(plan)


def follow_plans() -> Work[int]:
    """Counts how the deliveries of replays ended; how many it found. Most of a pass that finds little is put off.

    Workers and consoles call it every second. It stops after a few batches in which hardly any had ended, so that a
    long backlog is not read again and again.
    """
    found = 0
    for id in (yield from do(plan_results.unsettled_plans())):
        idle = 0
        while idle < _IDLE:
            batch = yield from do(plan_results.follow_plan(id))
            found += batch.ended
            if batch.last:
                break
            idle += 2 * batch.ended < batch.looked_at
    return found


def advance_plans(*, runner: str) -> Work[int]:
    """Carries every running plan on to its end, its pause or another runner; how many batches that took."""
    batches = 0
    for id in (yield from do(stored.running_plans(runner))):
        while (plan := (yield from advance_plan(id, runner=runner))) is not None:
            batches += 1
            if plan.state is not PlanState.RUNNING:
                break
    return batches
