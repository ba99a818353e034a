"""Plans: bulk replays, discards and cancellations that act on the previewed deliveries and on no others.

Every plan is stored when it is created. `Plan.execute`, the CLI, the API, the console and the workers execute the same
one, batch by batch. No delivery is acted on twice, even if another process continues the plan.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from uuid import UUID

import orjson

from holdfast.core.errors import ConfigurationError, Refused
from holdfast.core.message import check_generation
from holdfast.ops.queries.redaction import shown_plan
from holdfast.ops.steps import TaskSteps, call_store, run_steps, run_steps_sync, transact
from holdfast.stores.admin import bulk_actions, plan_creation, plan_results
from holdfast.stores.admin import plan as stored
from holdfast.stores.admin.bulk_actions import LEASE
from holdfast.stores.admin.plan import Action, PlanItem, PlanState, StoredPlan
from holdfast.stores.admin.plan_creation import MAX_PLAN, PlanRequest
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import MAX_PAGE, Filter

FILE_VERSION = 2
_EXPORTED = ("id", "consumer", "type", "status", "generation", "to_generation")
_EXPORTED_SKIPPED = ("id", "consumer", "why")
_POLL_SECONDS = 0.2
_IDLE_BATCHES = 4

Progress = Callable[[StoredPlan], None] | None
"""Called with the plan after each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one execution of a plan. Earlier executions acted on `earlier` deliveries.

    `left` counts the deliveries that were not reached because another user paused or abandoned the plan.
    """

    plan: UUID
    action: Action
    done: tuple[UUID, ...]
    earlier: int
    skipped: tuple[PlanItem, ...]
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(StoredPlan):
    """A stored plan that can be executed here. Its deliveries were selected once; executing it acts on no others."""

    store: Store = field(repr=False, compare=False)

    async def execute(
        self, *, actor: str, reason: str | None = None, generation: int | None = None, progress: Progress = None
    ) -> Report:
        """Acts on every delivery that is still as it was previewed, in batches that each commit; reports the others.

        Starts or resumes the plan. `generation` overrides the generations of the preview. If this call is interrupted,
        it pauses the plan; execute it again to continue. A note of the error says whether that succeeded. If the process is
        killed, a worker continues the plan.
        """
        return await run_steps(self.store, _execute(self.id, actor, reason, generation, progress), BaseException)

    @property
    def sync(self) -> "SyncPlan":
        return SyncPlan(self)


class SyncPlan:
    """The blocking form of a plan's methods."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def execute(
        self, *, actor: str, reason: str | None = None, generation: int | None = None, progress: Progress = None
    ) -> Report:
        """`Plan.execute`, blocking."""
        steps = _execute(self._plan.id, actor, reason, generation, progress)
        return run_steps_sync(self._plan.store, steps, BaseException)


def create_plan(
    action: Action,
    wanted: Filter,
    *,
    limit: int = MAX_PLAN,
    rerun: bool = False,
    actor: str | None = None,
    reason: str | None = None,
) -> TaskSteps[Plan]:
    """Creates a plan of the oldest deliveries that match. No delivery changes until it is executed."""
    request = PlanRequest(action=action, filter=wanted, limit=limit, rerun=rerun)
    return (yield from _executable((yield from transact(plan_creation.create_plan(request, actor, reason)))))


def plan_replay(
    wanted: Filter, *, limit: int = MAX_PLAN, rerun: bool = False, actor: str | None = None, reason: str | None = None
) -> TaskSteps[Plan]:
    """Creates a plan that replays these dead letters, oldest first. No delivery changes until it is executed.

    It holds all that match unless `limit` is lower; `preview.remaining` counts the others. Raises `NotFound` for a failure
    group without dead letters.

    A filter without a status selects dead letters; ids and messages select deliveries in any state. `rerun` also runs
    deliveries that are already delivered. With an `actor` the audit records the creation.
    """
    return create_plan(Action.REPLAY, wanted, limit=limit, rerun=rerun, actor=actor, reason=reason)


def plan_discard(
    wanted: Filter, *, limit: int = MAX_PLAN, actor: str | None = None, reason: str | None = None
) -> TaskSteps[Plan]:
    """Creates a plan that discards these dead letters. No delivery changes until it is executed."""
    return create_plan(Action.DISCARD, wanted, limit=limit, actor=actor, reason=reason)


def plan_cancel(
    wanted: Filter, *, limit: int = MAX_PLAN, actor: str | None = None, reason: str | None = None
) -> TaskSteps[Plan]:
    """Creates a plan that cancels these pending and running deliveries. No delivery changes until it is executed."""
    return create_plan(Action.CANCEL, wanted, limit=limit, actor=actor, reason=reason)


def replay(
    ids: Sequence[UUID], *, actor: str, reason: str | None = None, generation: int | None = None, rerun: bool = False
) -> TaskSteps[Report]:
    """Replays these dead letters, up to 100 in one transaction; reports those that it skipped, with their reasons."""
    request = PlanRequest(action=Action.REPLAY, filter=Filter(ids=tuple(ids)), rerun=rerun)
    return (yield from _execute_now(request, actor, reason, generation))


def discard(ids: Sequence[UUID], *, actor: str, reason: str | None = None) -> TaskSteps[Report]:
    """Discards these dead letters permanently, up to 100 in one transaction; they can still be listed."""
    return (yield from _execute_now(PlanRequest(action=Action.DISCARD, filter=Filter(ids=tuple(ids))), actor, reason))


def cancel(ids: Sequence[UUID], *, actor: str, reason: str | None = None) -> TaskSteps[Report]:
    """Cancels these deliveries if they are pending or in flight; a running handler can no longer complete its delivery."""
    return (yield from _execute_now(PlanRequest(action=Action.CANCEL, filter=Filter(ids=tuple(ids))), actor, reason))


def plans(
    *, limit: int = 50, before: UUID | None = None, state: PlanState | None = None
) -> TaskSteps[list[StoredPlan]]:
    """A page of plans, newest first; pass the last id as `before` for the next."""
    return [shown_plan(one) for one in (yield from transact(stored.plans(limit, before, state)))]


def plan(id: UUID) -> TaskSteps[Plan]:
    """A plan: what it would do, its progress, and what it skipped."""
    return (yield from _executable((yield from transact(stored.plan(id)))))


def plan_items(
    id: UUID, *, limit: int = 50, after: int = 0, skipped: bool = False, dead: bool = False
) -> TaskSteps[list[PlanItem]]:
    """A page of a plan's deliveries with their results: all, the skipped, or those that are dead again; pass the last
    `n` as `after`."""
    yield from transact(stored.plan(id))
    return (yield from transact(stored.plan_items(id, limit, after, skipped=skipped, dead=dead)))


def start_plan(
    id: UUID, *, actor: str, reason: str | None = None, generation: int | None = None
) -> TaskSteps[StoredPlan]:
    """Starts a plan; any worker, console or `run_plan` executes it. `generation` overrides the preview."""
    if generation is not None:
        check_generation(generation)
    return shown_plan((yield from transact(stored.start_plan(id, actor, reason, generation))))


def pause_plan(id: UUID, *, actor: str, reason: str | None = None) -> TaskSteps[StoredPlan]:
    """Stops a running plan after the current batch."""
    return shown_plan((yield from transact(stored.pause_plan(id, actor, reason))))


def resume_plan(id: UUID, *, actor: str, reason: str | None = None) -> TaskSteps[StoredPlan]:
    """Continues a paused plan at its position."""
    return shown_plan((yield from transact(stored.resume_plan(id, actor, reason))))


def abandon_plan(id: UUID, *, actor: str, reason: str | None = None) -> TaskSteps[StoredPlan]:
    """Ends a plan at its position; the deliveries that it changed stay changed."""
    return shown_plan((yield from transact(stored.abandon_plan(id, actor, reason))))


def delete_plan(id: UUID) -> TaskSteps[bool]:
    """Deletes a plan that was never started; false if there is none."""
    return (yield from transact(stored.delete_plan(id)))


def advance_plan(id: UUID, *, runner: str, lease: timedelta = LEASE) -> TaskSteps[StoredPlan | None]:
    """Acts on one batch of a running plan; none if it does not run, or another runner has it.

    Any process may call it at any time: a batch is one transaction, and no delivery is acted on twice.
    """
    plan = yield from transact(bulk_actions.advance_plan(id, runner, lease))
    if plan is not None:
        yield from _wake_workers(plan)
    return None if plan is None else shown_plan(plan)


def run_plan(id: UUID, *, progress: Progress = None) -> TaskSteps[StoredPlan]:
    """Executes a running plan until it ends or is paused; waits while another process executes it."""
    runner = _runner()
    plan = shown_plan((yield from transact(stored.plan(id))))
    while plan.state is PlanState.RUNNING:
        advanced = yield from advance_plan(id, runner=runner)
        if advanced is None:
            yield from call_store(lambda _: time.sleep(_POLL_SECONDS))
            advanced = shown_plan((yield from transact(stored.plan(id))))
        plan = advanced
        if progress is not None:
            progress(plan)
    return plan


def advance_plans(*, runner: str) -> TaskSteps[int]:
    """Executes every running plan that no other runner has, until it ends or is paused; returns the number of batches."""
    batches = 0
    for id in (yield from transact(stored.running_plans(runner))):
        while (plan := (yield from advance_plan(id, runner=runner))) is not None:
            batches += 1
            if plan.state is not PlanState.RUNNING:
                break
    return batches


def follow_plans() -> TaskSteps[int]:
    """Counts how the replayed deliveries of plans ended; returns how many results it found.

    Workers and consoles call it every second. It stops after a few batches with hardly any results and continues there
    the next time, so that it does not read a long backlog again and again.
    """
    found = 0
    for id in (yield from transact(plan_results.unsettled_plans())):
        idle = 0
        while idle < _IDLE_BATCHES:
            batch = yield from transact(plan_results.follow_plan(id))
            found += batch.ended
            if batch.last:
                break
            idle += 2 * batch.ended < batch.read
    return found


def export_plan(id: UUID) -> TaskSteps[dict[str, object]]:
    """A plan as it was created, with all its deliveries, as JSON values. `load_plan` reads it."""
    plan = yield from transact(stored.plan(id))
    items = yield from _items(plan)
    exported = {
        "version": FILE_VERSION,
        **{name: getattr(plan, name) for name in ("id", "action", "made_at", "rerun", "preview")},
        "items": [{name: getattr(one, name) for name in _EXPORTED} for one in items[: plan.items]],
        "skipped": [{name: getattr(one, name) for name in _EXPORTED_SKIPPED} for one in items[plan.items :]],
    }
    values: dict[str, object] = orjson.loads(orjson.dumps(exported))
    return values


def load_plan(exported: object) -> TaskSteps[Plan]:
    """The stored plan that was exported; refused if the export was changed."""
    if not isinstance(exported, Mapping) or exported.get("version") != FILE_VERSION:
        raise ConfigurationError(
            f"the file is not a plan of version {FILE_VERSION}; make one with --dry-run --plan FILE"
        )
    try:
        id = UUID(str(exported.get("id")))
    except ValueError:
        raise ConfigurationError("this plan has no valid id; make it again") from None
    if (yield from export_plan(id)) != exported:
        raise ConfigurationError(f"plan {id} was changed since it was exported; make it again")
    return (yield from plan(id))


def _executable(plan: StoredPlan) -> TaskSteps[Plan]:
    store = yield from call_store(lambda store: store)
    shown = shown_plan(plan)
    return Plan(**{spec.name: getattr(shown, spec.name) for spec in fields(StoredPlan)}, store=store)


def _execute_now(
    request: PlanRequest, actor: str, reason: str | None, generation: int | None = None
) -> TaskSteps[Report]:
    if generation is not None:
        check_generation(generation)
    plan = yield from transact(plan_creation.execute_now(request, actor, reason, generation, _runner()))
    yield from _wake_workers(plan)
    if plan.state is PlanState.RUNNING:
        yield from run_plan(plan.id)
        plan = yield from transact(stored.plan(plan.id))
    items = yield from _items(plan)
    return _report_of(plan, 0, items)


def _execute(id: UUID, actor: str, reason: str | None, generation: int | None, progress: Progress) -> TaskSteps[Report]:
    before = yield from _begin(id, generation)
    try:
        yield from _start_or_resume(before, actor, reason, generation)
        yield from run_plan(id, progress=progress)
    except (Refused, GeneratorExit):
        raise
    except BaseException as error:
        problem: Exception | None = None
        try:
            yield from pause_plan(id, actor=actor, reason="interrupted")
        except Exception as failed:  # noqa: BLE001 - the first error counts
            problem = failed
        error.add_note(_pause_result(id, problem))
        raise
    return (yield from _report(before))


def _begin(id: UUID, generation: int | None) -> TaskSteps[StoredPlan]:
    """The plan as it is before its execution. Refuses another generation than that of an execution that has begun."""
    before = yield from transact(stored.plan(id))
    begun = before.state not in (PlanState.READY, PlanState.ABANDONED)
    if begun and generation not in (None, before.generation):
        raise Refused("execute", f"plan {id}", "already started", "omit the generation to continue with the stored one")
    return before


def _start_or_resume(before: StoredPlan, actor: str, reason: str | None, generation: int | None) -> TaskSteps[None]:
    if before.state in (PlanState.READY, PlanState.ABANDONED):
        yield from start_plan(before.id, actor=actor, reason=reason, generation=generation)
    elif before.state is PlanState.PAUSED:
        yield from resume_plan(before.id, actor=actor, reason=reason)


def _pause_result(id: UUID, problem: Exception | None) -> str:
    """What became of a plan whose execution was interrupted and that was then paused, or could not be paused."""
    if problem is None:
        return f"plan {id} paused; `holdfast plans resume {id}` continues it, `holdfast plans abandon {id}` ends it"
    if isinstance(problem, Refused):
        # It ended, or another user paused it.
        return f"plan {id} is {problem.state}; see `holdfast plans show {id}`"
    return (
        f"plan {id} could not be paused, so workers may continue it; `holdfast plans pause {id}` pauses it ({problem})"
    )


def _report(before: StoredPlan) -> TaskSteps[Report]:
    after = yield from transact(stored.plan(before.id))
    items = yield from _items(before, before.position)
    return _report_of(after, before.done, items)


def _report_of(plan: StoredPlan, earlier: int, items: Sequence[PlanItem]) -> Report:
    return Report(
        plan=plan.id,
        action=plan.action,
        done=tuple(one.id for one in items if one.done),
        earlier=earlier,
        skipped=tuple(one for one in items if one.why is not None),
        left=max(plan.left, 0),
    )


def _items(plan: StoredPlan, after: int = 0) -> TaskSteps[list[PlanItem]]:
    items: list[PlanItem] = []
    while after < plan.total:
        page = yield from transact(stored.plan_items(plan.id, MAX_PAGE, after))
        items += page
        after += MAX_PAGE
    return items


def _wake_workers(plan: StoredPlan) -> TaskSteps[None]:
    if plan.action is Action.REPLAY and plan.done:
        yield from call_store(lambda store: store.hint_sync())


def _runner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class PlanRunner:
    """A periodic task of workers: executes the started plans and counts the results of their deliveries.

    Any number may run.
    """

    interval = timedelta(seconds=1)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def perform(self, worker: str) -> None:
        await run_steps(self._store, advance_plans(runner=worker))
        await run_steps(self._store, follow_plans())
