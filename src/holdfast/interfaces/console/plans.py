"""Pages and actions of bulk plans: preview, start, pause, resume, abandon, report."""

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.choose import FIELDS, read_filter
from holdfast.interfaces.console.guard import NotAllowed
from holdfast.interfaces.console.visit import PAGE, Page, Said, Visit, read_id, read_number
from holdfast.interfaces.console.visitor import Role
from holdfast.ops.plans import MAX_PLAN, Skipped
from holdfast.stores.plan import PlanState
from holdfast.stores.planned import Action, Why
from holdfast.stores.query import Filter

_ITEMS = ("all", "skipped", "dead")


async def plans(visit: Visit) -> Page:
    before = read_id(visit.query["before"]) if "before" in visit.query else None
    state = visit.query.get("state")
    if state is not None and state not in set(PlanState):
        raise ConfigurationError(f"{state[:40]!r} is not a valid plan state; valid states are {', '.join(PlanState)}")
    found = await visit.ops.plans(limit=PAGE + 1, before=before, state=None if state is None else PlanState(state))
    return Page(
        "plans.html",
        {
            "rows": found[:PAGE],
            "next": visit.again(before=found[PAGE - 1].id) if len(found) > PAGE else None,
            "newest": visit.again(before=None) if before else None,
            "states": list(PlanState),
            "state": state,
            "now": await visit.ops.now(),
        },
    )


async def plan(visit: Visit) -> Page:
    id = read_id(visit.request.path_params["id"])
    found = await visit.ops.plan(id)
    which = visit.query.get("items", "all")
    if which not in _ITEMS:
        raise ConfigurationError(
            f"{which[:40]!r} is not a valid value of `items`; valid values are {', '.join(_ITEMS)}"
        )
    after = min(read_number(visit.query.get("after", "")) or 0, 2 * MAX_PLAN)
    items = await visit.ops.plan_items(
        id, limit=PAGE + 1, after=after, skipped=which == "skipped", dead=which == "dead"
    )
    return Page(
        "plan.html",
        {
            "plan": found,
            "items": items[:PAGE],
            "next": visit.again(after=items[PAGE - 1].n) if len(items) > PAGE else None,
            "first": visit.again(after=None) if after else None,
            "which": which,
            "reasons": {why: Skipped(id=id, consumer=None, why=why).reason for why in Why},
            "done_word": {Action.REPLAY: "replayed", Action.DISCARD: "discarded", Action.CANCEL: "cancelled"}[
                found.action
            ],
            "now": await visit.ops.now(),
        },
    )


async def preview(visit: Visit) -> Said:
    """Stores a plan for the selected deliveries. Changes no delivery."""
    form = visit.form
    action = form.get("action", "")
    if action not in set(Action):
        raise ConfigurationError(f"{action[:40]!r} is not a valid action; valid actions are {', '.join(Action)}")
    given = form.get("limit", "") or str(MAX_PLAN)
    limit = read_number(given)
    if limit is None or not 1 <= limit <= MAX_PLAN:
        raise ConfigurationError(f"{given[:20]!r} is not a valid limit; a plan contains 1 to {MAX_PLAN:,} deliveries")
    wanted = await _wanted(visit)
    rerun = form.get("rerun") == "yes"
    if rerun and not visit.may(Role.ADMIN):
        raise NotAllowed("A rerun requires the admin role, because effects may be applied twice.")
    if action == Action.REPLAY:
        made = await visit.ops.plan_replay(wanted, limit=limit, rerun=rerun)
    else:
        plan = visit.ops.plan_discard if action == Action.DISCARD else visit.ops.plan_cancel
        made = await plan(wanted, limit=limit)
    await visit.ops.save_plan(made, actor=visit.visitor.name)
    return Said("", visit.url(f"/plans/{made.id}"))


async def _wanted(visit: Visit) -> Filter:
    ids = tuple(read_id(id) for id in visit.form.get("ids", "").replace(",", " ").split())
    if ids:
        return Filter(ids=ids)
    chosen = {name: visit.form[name] for name in FIELDS if visit.form.get(name)}
    return read_filter(chosen, await visit.ops.now())


async def start(visit: Visit) -> Said:
    id = read_id(visit.form.get("id", ""))
    given = visit.form.get("generation", "").strip()
    generation = read_number(given)
    if given and generation is None:
        raise ConfigurationError(
            f"{given[:20]!r} is not a valid generation; enter a whole number or leave the field empty"
        )
    await visit.ops.start_plan(id, actor=visit.visitor.name, reason=_reason(visit), generation=generation)
    return Said("", visit.url(f"/plans/{id}"), runs_plan=True)


async def pause(visit: Visit) -> Said:
    id = read_id(visit.form.get("id", ""))
    await visit.ops.pause_plan(id, actor=visit.visitor.name, reason=visit.form.get("reason") or None)
    return Said("The plan pauses after the current batch.", visit.url(f"/plans/{id}"))


async def resume(visit: Visit) -> Said:
    id = read_id(visit.form.get("id", ""))
    await visit.ops.resume_plan(id, actor=visit.visitor.name, reason=visit.form.get("reason") or None)
    return Said("", visit.url(f"/plans/{id}"), runs_plan=True)


async def abandon(visit: Visit) -> Said:
    id = read_id(visit.form.get("id", ""))
    await visit.ops.abandon_plan(id, actor=visit.visitor.name, reason=visit.form.get("reason") or None)
    return Said("Plan abandoned. Deliveries it already changed stay changed.", visit.url(f"/plans/{id}"))


def _reason(visit: Visit) -> str:
    reason = visit.form.get("reason", "").strip()
    if not reason:
        raise ConfigurationError("enter a reason; it is recorded in the audit log")
    return reason
