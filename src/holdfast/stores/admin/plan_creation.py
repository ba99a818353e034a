"""Creating a plan: the database selects its deliveries, and the preview counts them, in one transaction."""

import secrets
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.circuit import CircuitState
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.events.pattern import check_pattern
from holdfast.core.identity import uuid7
from holdfast.core.values.bounded_count import NONE, BoundedCount
from holdfast.stores.admin.actions import audited, who
from holdfast.stores.admin.bulk_actions import acceptable, advance, start
from holdfast.stores.admin.plan import Action, OpenCircuit, PlanPreview, StoredPlan, read_plan
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.dialect import as_uuid
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import listed_endpoints
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.query import Filter, clock, conditions

MAX_PLAN = 100_000
"""The maximum number of deliveries of a plan."""
ANONYMOUS = "anonymous"
"""Who saved a plan that was created without an actor. The actor who starts it is always recorded."""
_MAX_GROUPS = 100
_MAX_CHANGES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan to create: it holds the oldest `limit` deliveries that match.

    Without a status, a replay or a discard selects dead letters, and a cancellation unfinished deliveries. A filter with
    ids or a message selects deliveries in any state. `rerun` lets a replay run delivered ones again.
    """

    action: Action
    filter: Filter
    limit: int = MAX_PLAN
    rerun: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PLAN:
            raise ConfigurationError(f"limit is {self.limit}; a plan can have 1 to {MAX_PLAN:,} deliveries")
        if self.filter.type is not None:
            check_pattern(self.filter.type)


class _ItemCount(NamedTuple):
    consumer: str
    queue: str
    type: str
    generation: int
    to_generation: int | None
    group: str | None
    skipped: str | None
    number: int


@operation
def create_plan(request: PlanRequest, actor: str | None = None, reason: str | None = None) -> Steps[StoredPlan]:
    """Stores a plan with its deliveries as they are now; changes no delivery.

    Raises `NotFound` for a failure group without dead letters. The audit records the creation if an actor is given and the plan acts on a delivery.
    """
    plan = yield from _create(request, ANONYMOUS if actor is None else actor, reason)
    if actor is not None and plan.items:
        detail = {"action": plan.action.value, "items": plan.items, "skipped": plan.total - plan.items}
        yield audited(actor, "save", "plan", str(plan.id), reason, detail)
    return plan


@operation
def execute_now(
    request: PlanRequest, actor: str, reason: str | None, generation: int | None, runner: str
) -> Steps[StoredPlan]:
    """Creates a plan, starts it and acts on its first batch, in one transaction. The audit records the batch."""
    plan = yield from _create(request, actor, reason)
    return (yield from advance((yield from start(plan, actor, reason, generation)), runner))


def _create(request: PlanRequest, actor: str, reason: str | None) -> Steps[StoredPlan]:
    saver = who(actor, reason)
    now = yield from clock().start()
    id = uuid7(int(now.timestamp() * 1000), secrets.randbits(74))
    selected = _with_default_status(request.action, request.filter)
    where, values = conditions(selected)
    given = {
        "plan": id,
        "acceptable": [status.value for status in acceptable(request.action, rerun=request.rerun)],
        "replay": request.action is Action.REPLAY,
    }
    yield Query("select_plan_items", {**values, **given}, slots=(("where", where),), limit=request.limit)
    if selected.ids is not None:
        yield Query("add_missing_plan_items", {"plan": id, "ids": list(selected.ids)})
    counts = [_ItemCount(*row) for row in (yield Query("count_plan_items", {"plan": id}))]
    if not counts and selected.dead and selected.group is not None:
        yield from _check_group(selected.group)
    items = [one for one in counts if one.skipped is None]
    total, acting = sum(one.number for one in counts), sum(one.number for one in items)
    preview = yield from _preview(id, request, selected, items, full=total >= request.limit)
    rows = yield Query(
        "save_plan",
        {
            "id": id,
            "action": request.action.value,
            "preview": orjson.dumps(preview).decode(),
            "rerun": request.rerun,
            "items": acting,
            "total": total,
            "skipped": orjson.dumps(_sums((one.skipped, one.number) for one in counts)).decode(),
            "made_at": now,
            **saver,
        },
    )
    return read_plan(rows[0])


def _preview(
    id: UUID, request: PlanRequest, selected: Filter, items: Sequence[_ItemCount], *, full: bool
) -> Steps[PlanPreview]:
    consumers = _sums((one.consumer, one.number) for one in items)
    remaining = (yield from _remaining(id, selected)) if full else NONE
    handled, deduplicated, circuits = 0, 0, list[OpenCircuit]()
    if items and request.action is Action.REPLAY:
        ((handled, deduplicated),) = yield Query("count_plan_duplicates", {"plan": id})
        circuits = yield from _open_circuits(consumers.keys())
    live = yield from live_workers().start()
    unserved = {one.consumer for one in items if not any(worker.serves(one.consumer, one.queue) for worker in live)}
    groups = _sums((one.group, one.number) for one in items)
    # The ids are in the items.
    shown = orjson.loads(orjson.dumps(replace(selected, ids=None)))
    return PlanPreview(
        filter={name: value for name, value in shown.items() if value not in (None, False, [])},
        limit=request.limit,
        remaining=int(remaining),
        remaining_at_least=remaining.or_more,
        consumers=consumers,
        types=_sums((one.type, one.number) for one in items),
        groups=dict(list(groups.items())[:_MAX_GROUPS]),
        generations=_sums((_text(one.to_generation), one.number) for one in items),
        changes={name: _changes(one for one in items if one.consumer == name) for name in consumers},
        unserved=sorted(unserved),
        handled=handled,
        deduplicated=deduplicated,
        circuits=circuits,
    )


def _remaining(id: UUID, selected: Filter) -> Steps[BoundedCount]:
    """How many deliveries match beyond the newest one of the plan."""
    rows = yield Query("last_plan_delivery", {"plan": id})
    return (yield from _count(selected, MAX_PLAN, as_uuid(rows[0][0]))) if rows else NONE


def _check_group(group: str) -> Steps[None]:
    if not (yield from _count(Filter(dead=True, group=group), 1)):
        hint = "its dead letters may have been replayed or discarded; `holdfast dlq groups` lists the groups there are"
        raise NotFound("failure group", group, hint)


def _count(selected: Filter, bound: int, after: UUID | None = None) -> Steps[BoundedCount]:
    where, values = conditions(selected)
    if after is not None:
        where, values = (*where, "where_after"), {**values, "after": after}
    ((count,),) = yield Query("count_matching", values, slots=(("where", where),), limit=bound)
    return BoundedCount(count, count >= bound)


def _open_circuits(consumers: Set[str]) -> Steps[list[OpenCircuit]]:
    """The open circuits, those of the consumers first.

    The circuit of a webhook endpoint has the name of its consumer. Any handler may use the others.
    """
    endpoints = {one.consumer for one in (yield from listed_endpoints().start())}
    found = [
        OpenCircuit(
            name=one.name,
            until=one.circuit.open_until,
            consumer=one.name if one.name in consumers & endpoints else None,
        )
        for one in (yield from breakers().start())
        if one.circuit.state(one.now) is CircuitState.OPEN and one.name not in endpoints - consumers
    ]
    return sorted(found, key=lambda one: (one.consumer is None, one.name))


def _with_default_status(action: Action, wanted: Filter) -> Filter:
    if wanted.ids is not None or wanted.message_id is not None:
        return wanted
    if action is Action.CANCEL:
        return wanted if wanted.statuses else replace(wanted, statuses=acceptable(action))
    if not wanted.statuses:
        return replace(wanted, dead=True)
    if wanted.statuses == (Status.FAILED,) and wanted.discarded is None:
        return replace(wanted, statuses=(), dead=True)
    return wanted


def _sums(counts: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """The sum for each name, the largest first."""
    sums = Counter[str]()
    for name, count in counts:
        if name is not None:
            sums[name] += count
    return dict(sorted(sums.items(), key=lambda pair: (-pair[1], pair[0])))


def _changes(items: Iterable[_ItemCount]) -> list[tuple[int, int | None]]:
    found = {(one.generation, one.to_generation) for one in items}
    return sorted(found, key=lambda pair: (pair[0], pair[1] or 0))[:_MAX_CHANGES]


def _text(generation: int | None) -> str | None:
    return None if generation is None else str(generation)
