"""Pages and actions of bulk plans: preview, start, pause, resume, abandon, report."""

from collections.abc import Awaitable, Callable

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage, Redirect, read_number
from holdfast.interfaces.console.security import Forbidden
from holdfast.interfaces.console.user import Role
from holdfast.interfaces.presentation.filters import FIELDS, parse_choice, parse_filter, parse_id
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import Action, PlanState, StoredPlan
from holdfast.stores.admin.plan_creation import MAX_PLAN
from holdfast.stores.queries.query import Filter

_ITEMS = ("all", "skipped", "dead")


async def plans(request: ConsoleRequest) -> HtmlPage:
    before = parse_id(request.query["before"]) if "before" in request.query else None
    state = request.query.get("state")
    plan_state = None if state is None else PlanState(parse_choice(state, PlanState, "plan state"))
    found = await request.ops.plans(limit=PAGE + 1, before=before, state=plan_state)
    return HtmlPage(
        "plans.html",
        {
            "rows": found[:PAGE],
            "next": request.with_query(before=found[PAGE - 1].id) if len(found) > PAGE else None,
            "newest": request.with_query(before=None) if before else None,
            "states": list(PlanState),
            "state": state,
            "now": await request.ops.now(),
        },
    )


async def plan(request: ConsoleRequest) -> HtmlPage:
    id = parse_id(request.http.path_params["id"])
    found = await request.ops.plan(id)
    which = parse_choice(request.query.get("items", "all"), _ITEMS, "value of `items`")
    after = min(read_number(request.query.get("after", "")) or 0, 2 * MAX_PLAN)
    items = await request.ops.plan_items(
        id, limit=PAGE + 1, after=after, skipped=which == "skipped", dead=which == "dead"
    )
    return HtmlPage(
        "plan.html",
        {
            "plan": found,
            "items": items[:PAGE],
            "next": request.with_query(after=items[PAGE - 1].n) if len(items) > PAGE else None,
            "first": request.with_query(after=None) if after else None,
            "which": which,
            "done_word": {Action.REPLAY: "replayed", Action.DISCARD: "discarded", Action.CANCEL: "cancelled"}[
                found.action
            ],
            "now": await request.ops.now(),
        },
    )


async def preview(request: ConsoleRequest) -> Redirect:
    """Stores a plan for the selected deliveries. Changes no delivery."""
    form = request.form
    action = parse_choice(form.get("action", ""), Action, "action")
    given = form.get("limit", "") or str(MAX_PLAN)
    limit = read_number(given)
    if limit is None or not 1 <= limit <= MAX_PLAN:
        raise ConfigurationError(f"{given[:20]!r} is not a valid limit; a plan contains 1 to {MAX_PLAN:,} deliveries")
    rerun = form.get("rerun") == "yes"
    _check_rerun(request, rerun)
    created = await request.ops.create_plan(
        Action(action), await _selection(request), limit=limit, rerun=rerun, actor=request.user.name
    )
    return Redirect("", request.url(f"/plans/{created.id}"))


def _check_rerun(request: ConsoleRequest, rerun: bool) -> None:
    if rerun and not request.can(Role.ADMIN):
        raise Forbidden("A rerun requires the admin role, because effects may be applied twice.")


async def _selection(request: ConsoleRequest) -> Filter:
    ids = tuple(parse_id(id) for id in request.form.get("ids", "").replace(",", " ").split())
    if ids:
        return Filter(ids=ids)
    chosen = {name: request.form[name] for name in FIELDS if request.form.get(name)}
    return parse_filter(chosen, await request.ops.now())


async def start(request: ConsoleRequest) -> Redirect:
    id = parse_id(request.form.get("id", ""))
    given = request.form.get("generation", "").strip()
    generation = read_number(given)
    if given and generation is None:
        raise ConfigurationError(
            f"{given[:20]!r} is not a valid generation; enter a whole number or leave the field empty"
        )
    _check_rerun(request, (await request.ops.plan(id)).rerun)
    await request.ops.start_plan(id, actor=request.user.name, reason=_reason(request), generation=generation)
    return Redirect("", request.url(f"/plans/{id}"), runs_plan=True)


def _move(
    move: Callable[[Operations], Callable[..., Awaitable[StoredPlan]]], text: str, *, runs_plan: bool = False
) -> Callable[[ConsoleRequest], Awaitable[Redirect]]:
    """The form that moves a plan to another state."""

    async def run(request: ConsoleRequest) -> Redirect:
        id = parse_id(request.form.get("id", ""))
        if runs_plan:
            _check_rerun(request, (await request.ops.plan(id)).rerun)
        await move(request.ops)(id, actor=request.user.name, reason=request.form.get("reason") or None)
        return Redirect(text, request.url(f"/plans/{id}"), runs_plan)

    return run


pause = _move(lambda ops: ops.pause_plan, "The plan pauses after the current batch.")
resume = _move(lambda ops: ops.resume_plan, "", runs_plan=True)
abandon = _move(lambda ops: ops.abandon_plan, "Plan abandoned. Deliveries it already changed stay changed.")


def _reason(request: ConsoleRequest) -> str:
    reason = request.form.get("reason", "").strip()
    if not reason:
        raise ConfigurationError("enter a reason; it is recorded in the audit log")
    return reason
