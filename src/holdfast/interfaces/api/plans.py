"""Endpoints of plans: preview and store, start, pause, resume and abandon bulk actions."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from holdfast.interfaces.api.endpoint import ApiCall, ApiEndpoint, Page, get, number, page, post, read_cursor
from holdfast.interfaces.api.fields import (
    Flag,
    Generation,
    PageParams,
    PlanLimit,
    RequestModel,
    Text,
    Timestamp,
    WithReason,
)
from holdfast.interfaces.api.problem import Problem
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import Action, PlanItem, PlanState, StoredPlan
from holdfast.stores.admin.plan_creation import MAX_PLAN
from holdfast.stores.admin.token import Scope
from holdfast.stores.queries.query import Filter


class PlanFilter(RequestModel):
    """Filter of the deliveries of a plan. All given fields must match. Without ids and statuses: dead letters."""

    ids: Annotated[tuple[UUID, ...], Field(max_length=10_000)] | None = None
    statuses: tuple[Literal["pending", "in_flight", "delivered", "failed"], ...] = ()
    consumers: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    queue: Text | None = None
    type: Text | None = None
    error_type: Text | None = None
    group: Text | None = None
    message_id: UUID | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None

    def filter(self) -> Filter:
        given = self.model_dump(exclude={"statuses", "consumers"})
        made = delivery_filter(status=self.statuses, consumer=self.consumers, **given)
        return replace(made, discarded=None)


class NewPlanRequest(WithReason):
    """A plan to preview and store. It does nothing until it is started. `rerun` requires the scope `admin`."""

    action: Literal["replay", "discard", "cancel"]
    filter: PlanFilter
    limit: PlanLimit = MAX_PLAN
    rerun: bool = False


class StartPlanRequest(WithReason):
    """`generation` overrides the generations of the preview."""

    generation: Generation | None = None


class PlansQuery(PageParams):
    """Filter of plans."""

    state: Literal["ready", "running", "paused", "done", "abandoned"] | None = None


class ItemsQuery(PageParams):
    """Filter of the deliveries of a plan: `skipped` ones, or ones that became dead letters again (`dead`)."""

    skipped: Flag = False
    dead: Flag = False


async def _create(call: ApiCall) -> StoredPlan:
    body: NewPlanRequest = call.body
    return await call.ops.create_plan(
        Action(body.action),
        body.filter.filter(),
        limit=body.limit,
        rerun=body.rerun,
        actor=call.caller.name,
        reason=body.reason,
    )


async def _plans(call: ApiCall) -> Page[StoredPlan]:
    query: PlansQuery = call.query
    before = read_cursor("plans", query.cursor, UUID)
    state = None if query.state is None else PlanState(query.state)
    found = await call.ops.plans(limit=query.limit, before=before, state=state)
    return page("plans", found, query.limit, lambda one: str(one.id))


async def _items(call: ApiCall) -> Page[PlanItem]:
    query: ItemsQuery = call.query
    after = read_cursor("items", query.cursor, number) or 0
    found = await call.ops.plan_items(
        call.id("plan"), limit=query.limit, after=after, skipped=query.skipped, dead=query.dead
    )
    return page("items", found, query.limit, lambda one: one.n)


async def _check_rerun(call: ApiCall) -> None:
    """A rerun can repeat the effect of a completed delivery, so it requires the scope that creates such a plan."""
    if not call.caller.scope.covers(Scope.ADMIN) and (await call.ops.plan(call.id("plan"))).rerun:
        why = f"the plan reruns deliveries, which requires the scope {Scope.ADMIN}, but {call.caller.name} has"
        raise Problem(403, "forbidden", f"{why} {call.caller.scope}")


_ID = frozenset({"id"})


def _on(
    verb: str,
    summary: str,
    move: Callable[[Operations], Callable[..., Awaitable[StoredPlan]]],
    body: type[WithReason] = WithReason,
    *,
    runs: bool = False,
) -> ApiEndpoint:
    """An endpoint that moves a plan to another state. The fields of the body are passed on by name."""

    async def handle(call: ApiCall) -> StoredPlan:
        if runs:
            await _check_rerun(call)
        return await move(call.ops)(call.id("plan"), actor=call.caller.name, **call.body.model_dump())

    path = f"/plans/{{id}}/{verb}"
    return post(path, summary, StoredPlan, handle, body=body, scope=Scope.OPERATE, ids=_ID)


ENDPOINTS = (
    get("/plans", "List plans, newest first", Page[StoredPlan], _plans, query=PlansQuery),
    post(
        "/plans",
        "Preview a bulk action and store it as a plan",
        StoredPlan,
        _create,
        body=NewPlanRequest,
        scope=Scope.OPERATE,
        status=201,
    ),
    get("/plans/{id}", "Get a plan", StoredPlan, lambda call: call.ops.plan(call.id("plan")), ids=_ID),
    get(
        "/plans/{id}/items",
        "List the deliveries of a plan with their results",
        Page[PlanItem],
        _items,
        query=ItemsQuery,
        ids=_ID,
    ),
    _on("start", "Start a plan", lambda ops: ops.start_plan, StartPlanRequest, runs=True),
    _on("pause", "Pause a plan after the current batch", lambda ops: ops.pause_plan),
    _on("resume", "Resume a paused plan", lambda ops: ops.resume_plan, runs=True),
    _on("abandon", "Abandon a plan", lambda ops: ops.abandon_plan),
)
