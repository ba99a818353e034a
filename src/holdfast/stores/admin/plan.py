"""Stored plans: a bulk action on a fixed set of deliveries, which any process can execute.

ready -- start --> running -- last batch --> done
                   |     ^
                   pause | resume
                   v     |
                   paused
ready, running, paused -- abandon --> abandoned
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound, Refused
from holdfast.stores.admin.actions import audited, who
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Row, Steps, operation
from holdfast.stores.queries.query import page_size
from holdfast.stores.row import row_reader

DONE = "done"
"""The outcome of a delivery that a plan acted on."""


class Action(StrEnum):
    """What a plan does to each of its deliveries."""

    REPLAY = "replay"
    DISCARD = "discard"
    CANCEL = "cancel"


class SkipReason(StrEnum):
    """Why a plan skips a delivery."""

    NOT_FOUND = "not_found"
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISCARDED = "discarded"
    CHANGED = "changed"
    """It failed again since the preview: this is another failure."""
    KEY_HELD = "key_held"
    """Another unfinished job has its unique key."""
    RUN_ENDED = "run_ended"
    """It is a step of a workflow run that has ended or is compensated: a worker would discard it."""

    @property
    def text(self) -> str:
        """The reason for people."""
        return _TEXTS[self]


_TEXTS = {
    SkipReason.NOT_FOUND: "not in this store, perhaps pruned",
    SkipReason.PENDING: "pending: it waits to be run",
    SkipReason.IN_FLIGHT: "in flight: a worker runs it now",
    SkipReason.DELIVERED: "already delivered",
    SkipReason.FAILED: "failed: it is neither pending nor in flight",
    SkipReason.DISCARDED: "discarded or cancelled",
    SkipReason.CHANGED: "changed: it failed again since the preview",
    SkipReason.KEY_HELD: "another unfinished job has its unique key",
    SkipReason.RUN_ENDED: "a step of a run that has ended: retry the run with `holdfast workflows retry`",
}


class PlanState(StrEnum):
    """The state of a plan. Done and abandoned are final."""

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
    """It ended and was pruned before its result was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCircuit:
    """A circuit that is open. Without a consumer, any handler may use it."""

    name: str
    until: datetime | None
    consumer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What a plan would do, counted when it was created. The largest counts come first.

    `remaining` counts the deliveries that match but exceed `limit`; it is a lower bound if `remaining_at_least`.
    `generations` counts by the generation that a replay assigns, `changes` lists pairs of old and new generation by
    consumer. No live worker serves the `unserved` consumers. `handled` counts the deliveries that the inbox would
    skip, `deduplicated` those that a deduplication window in the store would skip; a rerun ignores the window.
    """

    filter: Mapping[str, object]
    limit: int
    remaining: int = 0
    remaining_at_least: bool = False
    consumers: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, Sequence[Sequence[int | None]]] = field(default_factory=dict)
    unserved: Sequence[str] = ()
    handled: int = 0
    deduplicated: int = 0
    circuits: Sequence[OpenCircuit] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan. `done` and `skipped` are exact at any moment; `skipped` counts by reason.

    It acts on the first `items` of its `total` deliveries and skips the others; `position` is its progress.
    `generation` overrides the generations of the preview. `results` counts how the replayed deliveries ended, as far as
    workers and consoles have read it; `settled_at` is when the last result was read.
    """

    id: UUID
    action: Action
    state: PlanState
    preview: PlanPreview
    rerun: bool
    generation: int | None
    items: int
    total: int
    position: int
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
        """How many deliveries it has not acted on yet."""
        return self.items - self.position

    @property
    def unsettled(self) -> int:
        """How many replayed deliveries have no known result."""
        return self.done - sum(self.results.values()) if self.action is Action.REPLAY else 0


class PlanItem(NamedTuple):
    """A delivery of a plan, with its state and generation when the plan was created.

    `why` is the reason why it was skipped, and `by` the actor who replayed it last. `result` is how it ended after this
    plan replayed it, if that is known.
    """

    n: int
    id: UUID
    consumer: str | None
    type: str | None
    status: Status | None
    generation: int | None
    to_generation: int | None
    done: bool
    why: SkipReason | None
    by: str | None
    result: ReplayResult | None

    @property
    def reason(self) -> str | None:
        """Why it was skipped, for people."""
        if self.why is None:
            return None
        return self.why.text + (f" (replayed by {self.by})" if self.by else "")


@operation(reads=True)
def plan(id: UUID) -> Steps[StoredPlan]:
    """One plan; raises `NotFound` if there is none."""
    return (yield from _find(id))


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
    return [read_plan(row) for row in rows]


@operation(reads=True)
def plan_items(
    id: UUID, limit: int = 50, after: int = 0, *, skipped: bool = False, dead: bool = False
) -> Steps[list[PlanItem]]:
    """A page of a plan's deliveries in its order: all, the skipped, or those that are dead again. Pass the last `n` as
    `after` for the next page."""
    where = (*(("where_item_skipped",) if skipped else ()), *(("where_item_dead",) if dead else ()))
    values = {"plan": id, "after": after}
    rows = yield Query("list_plan_items", values, slots=(("where", where),), limit=page_size(limit))
    return [_item(row) for row in rows]


@operation(reads=True)
def running_plans(runner: str) -> Steps[list[UUID]]:
    """The running plans that this runner may execute."""
    return [as_uuid(row[0]) for row in (yield Query("running_plans", {"runner": runner}))]


@operation
def start_plan(id: UUID, actor: str, reason: str | None, generation: int | None) -> Steps[StoredPlan]:
    """Starts a plan. If two actors start it, one succeeds and the other is refused with the name of the first."""
    rows = yield Query("start_plan", {"id": id, "generation": generation, **who(actor, reason)})
    detail = None if generation is None else {"generation": generation}
    return (yield from _moved(id, "start", rows, actor, reason, detail))


@operation
def pause_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Stops a running plan after the current batch; it can be resumed."""
    return (yield from _move(id, "pause", PlanState.PAUSED, (PlanState.RUNNING,), actor, reason))


@operation
def resume_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Continues a paused plan at its position."""
    return (yield from _move(id, "resume", PlanState.RUNNING, (PlanState.PAUSED,), actor, reason))


@operation
def abandon_plan(id: UUID, actor: str, reason: str | None) -> Steps[StoredPlan]:
    """Ends a plan at its position; the deliveries that it changed stay changed."""
    unfinished = (PlanState.READY, PlanState.RUNNING, PlanState.PAUSED)
    return (yield from _move(id, "abandon", PlanState.ABANDONED, unfinished, actor, reason))


@operation
def delete_plan(id: UUID) -> Steps[bool]:
    """Deletes a plan that was never started; false if there is none. The audit stays."""
    return bool((yield Query("delete_plan", {"id": id})))


@operation
def forget_plan(older_than: timedelta) -> Steps[bool]:
    """Removes one plan that ended, or was never started, that long ago; false if there is none. The audit stays."""
    return bool((yield Query("forget_plan", {"older_than": older_than})))


def _move(
    id: UUID, verb: str, to: PlanState, source: Sequence[PlanState], actor: str, reason: str | None
) -> Steps[StoredPlan]:
    rows = yield Query("move_plan", {"id": id, "state": to.value, "from": [state.value for state in source]})
    return (yield from _moved(id, verb, rows, actor, reason))


def _moved(
    id: UUID, verb: str, rows: Sequence[Row], actor: str, reason: str | None, detail: object = None
) -> Steps[StoredPlan]:
    if not rows:
        plan = yield from _find(id)
        by = "" if plan.started_by is None else f", started by {plan.started_by}"
        raise Refused(verb, f"plan {id}", f"{plan.state}{by}", f"see `holdfast plans show {id}`")
    yield audited(actor, verb, "plan", str(id), reason, detail)
    return read_plan(rows[0])


def _find(id: UUID) -> Steps[StoredPlan]:
    rows = yield Query("find_plan", {"id": id})
    if not rows:
        raise NotFound("plan", id)
    return read_plan(rows[0])


def _preview(stored: dict[str, object]) -> PlanPreview:
    circuits: list[dict[str, str | None]] = stored.pop("circuits", [])  # type: ignore[assignment]
    found = [
        OpenCircuit(
            name=str(one["name"]),
            until=None if one["until"] is None else datetime.fromisoformat(one["until"]),
            consumer=one["consumer"],
        )
        for one in circuits
    ]
    # Another version of Holdfast may have stored it, with other fields.
    known = {one.name for one in fields(PlanPreview)}
    counts: dict[str, Any] = {"filter": {}, "limit": 0}
    counts |= {name: value for name, value in stored.items() if name in known}
    return PlanPreview(**counts, circuits=found)


read_plan = row_reader(
    StoredPlan,
    preview=lambda text: _preview(orjson.loads(text)),
    skipped=lambda text: {SkipReason(why): count for why, count in orjson.loads(text).items()},
    results=lambda text: {ReplayResult(name): count for name, count in orjson.loads(text or "{}").items()},
)
"""Reads a row of the columns that the fragment `plan` lists."""

_item = row_reader(PlanItem)
