"""Pages and actions of bulk plans: preview, start, pause, resume, abandon, report."""

from collections.abc import Awaitable, Callable

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage, Redirect, read_number
from holdfast.interfaces.console.security import Forbidden
from holdfast.interfaces.console.user import Role
from holdfast.interfaces.presentation.deliveries import pauses
from holdfast.interfaces.presentation.filters import FIELDS, parse_choice, parse_filter, parse_id, parse_range
from holdfast.ops.queries.pages import below, is_since
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import Action, PlanState, StoredPlan
from holdfast.stores.admin.plan_creation import MAX_PLAN
from holdfast.stores.queries.query import Filter

_ITEMS = ("all", "skipped", "dead")
_FORM_FIELDS = {"consumers": "consumer", "statuses": "status"}


async def plans(request: ConsoleRequest) -> HtmlPage:
    now = await request.ops.now()
    chosen = request.chosen("state", "since", "until")
    times = parse_range(chosen, now)
    before = below(parse_id(request.query["before"]) if "before" in request.query else None, times.get("until"))
    state = PlanState(parse_choice(chosen["state"], PlanState, "plan state")) if "state" in chosen else None
    found = await request.ops.plans(limit=PAGE + 1, before=before, state=state)
    rows = [one for one in found if is_since(one.id, times.get("since"))]
    return HtmlPage(
        "plans.html",
        {
            "rows": rows[:PAGE],
            **request.page_links(rows[PAGE - 1].id if len(rows) > PAGE else None),
            "states": list(PlanState),
            "chosen": chosen,
            "now": now,
            "command": "holdfast plans list" + (f" --state {state}" if state else ""),
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
    paused = []
    if found.state is PlanState.READY and found.action is Action.REPLAY:
        paused = pauses(found, await request.ops.consumers(), await request.ops.queues())
    return HtmlPage(
        "plan.html",
        {
            "plan": found,
            "paused": paused,
            "items": items[:PAGE],
            **request.page_links(items[PAGE - 1].n if len(items) > PAGE else None, cursor="after"),
            "which": which,
            "rest": _rest(found),
            "done_word": {Action.REPLAY: "replayed", Action.DISCARD: "discarded", Action.CANCEL: "cancelled"}[
                found.action
            ],
            "now": await request.ops.now(),
        },
    )


def _rest(plan: StoredPlan) -> dict[str, str] | None:
    """The form fields that select the deliveries beyond the limit of a finished plan: the rest after a sample."""
    if plan.state is not PlanState.DONE or not plan.preview.remaining or plan.unsettled or plan.rerun:
        return None
    found = {}
    for name, value in plan.preview.filter.items():
        if name in ("consumers", "statuses") and isinstance(value, list):
            found[_FORM_FIELDS[name]] = ",".join(value)
        elif name in FIELDS:
            found[name] = str(value)
        elif name != "dead":
            return None
    return found


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
    if request.form.get("selected"):
        # Without this check, no selected row would mean every delivery.
        raise ConfigurationError("no delivery is selected; select the rows to act on and try again")
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
