"""Plans: bulk replays, discards and cancellations that act on what was previewed, not on what came since."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, TypeVar
from uuid import UUID

from holdfast.core.bounded_count import NONE, BoundedCount
from holdfast.core.circuit import CircuitState
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.events.pattern import check_pattern
from holdfast.core.identity import uuid7
from holdfast.core.message import check_generation
from holdfast.ops.work import Work, ask, do, perform, perform_sync
from holdfast.stores.admin.bulk_actions import (
    Action,
    ActionTarget,
    Candidate,
    SkipReason,
    acceptable,
    act,
    count_remaining,
    done_by,
    find_candidates,
)
from holdfast.stores.admin.plan import handled_already
from holdfast.stores.deliveries.dedupe import seen_deliveries
from holdfast.stores.deliveries.worker import WorkerRecord, workers
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import listed_endpoints
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, clock

V = TypeVar("V", str, int)

MAX_PLAN = 100_000
_BATCH = 100
_PAGE = 1000

REASONS = {
    SkipReason.NOT_FOUND: "not in this store, perhaps pruned",
    SkipReason.PENDING: "pending: it waits to be run",
    SkipReason.IN_FLIGHT: "in flight: a worker runs it now",
    SkipReason.DELIVERED: "done",
    SkipReason.FAILED: "failed, not under way",
    SkipReason.DISCARDED: "discarded or cancelled",
    SkipReason.CHANGED: "changed: it has failed anew since it was looked at",
    SkipReason.KEY_HELD: "held back: another unfinished job holds its unique key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One delivery of a plan, as it stood when it was previewed. `to_generation` is what a replay gives it."""

    id: UUID
    consumer: str
    type: str
    status: Status
    generation: int
    fence: int
    to_generation: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCircuit:
    """A circuit that lets no call pass now. Without a consumer it is one that any handler may use."""

    name: str
    until: datetime | None
    consumer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A delivery a plan leaves alone, and why. `by` names who replayed it last, if anybody did."""

    id: UUID
    consumer: str | None
    why: SkipReason
    by: str | None = None

    @property
    def reason(self) -> str:
        """For people: how it is."""
        return REASONS[self.why] + (f" ({self.by} replayed it)" if self.by else "")


class Progress(NamedTuple):
    """How far a plan has come."""

    done: int
    skipped: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a plan did. `earlier` were done by a run of this plan that was cut off before."""

    plan: UUID
    action: Action
    done: tuple[UUID, ...]
    earlier: int
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A frozen bulk action. What it holds was read once; executing it acts on nothing else.

    It may be executed again after it was cut off: what it did is audited under its `id`, so nothing is done
    twice and the report is exact.
    """

    id: UUID
    action: Action
    made_at: datetime
    filter: Filter
    limit: int
    rerun: bool = False
    remaining: BoundedCount = NONE
    """How many more deliveries matched than the limit let in."""
    items: tuple[Planned, ...]
    skipped: tuple[Skipped, ...] = ()
    unserved: tuple[str, ...] = ()
    """Consumers among the items that no living worker serves: their deliveries would wait."""
    handled: int = 0
    """How many of the items their consumer's inbox would skip: it has handled that key before."""
    deduplicated: int = 0
    """How many of the items a deduplication window in the store would skip; a rerun runs them all the same."""
    circuits: tuple[OpenCircuit, ...] = ()
    """Circuits that are open now: those of the items' consumers first, then those that any handler may use."""
    store: Store = field(repr=False, compare=False)

    @property
    def more(self) -> bool:
        """Whether the limit left deliveries out."""
        return self.remaining > 0

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(item.id for item in self.items)

    @property
    def consumers(self) -> dict[str, int]:
        """How many deliveries of each consumer it holds, most first."""
        return _tally(item.consumer for item in self.items)

    @property
    def types(self) -> dict[str, int]:
        """How many deliveries of each message type it holds, most first."""
        return _tally(item.type for item in self.items)

    @property
    def groups(self) -> dict[str, int]:
        """How many deliveries of each failure group it holds, most first."""
        return _tally(item.group for item in self.items if item.group is not None)

    @property
    def generations(self) -> dict[int, int]:
        """How many deliveries a replay gives each generation, most first."""
        return _tally(item.to_generation for item in self.items if item.to_generation is not None)

    async def execute(
        self,
        *,
        actor: str,
        reason: str | None = None,
        generation: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Report:
        """Acts on every delivery that still is as it was previewed, in batches that each commit; reports the rest.

        `generation` overrides what the preview shows. `progress` is called after each batch; if it raises, the plan
        stops there and can be executed again.
        """
        return await perform(self.store, carry_out(self, actor, reason, generation, progress))

    @property
    def sync(self) -> "SyncPlan":
        return SyncPlan(self)


class SyncPlan:
    """The blocking twin of a plan's methods."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def execute(
        self,
        *,
        actor: str,
        reason: str | None = None,
        generation: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Report:
        """`Plan.execute`, blocking."""
        return perform_sync(self._plan.store, carry_out(self._plan, actor, reason, generation, progress))


def plan_replay(wanted: Filter, *, limit: int = MAX_PLAN, rerun: bool = False) -> Work[Plan]:
    """What a replay of these dead letters would do, oldest first; nothing changes until it is executed.

    It holds all that match unless `limit` is lower; `remaining` counts the others. `NotFound` for a failure group that
    holds no dead letter.

    Without a status the filter means dead letters; named ids and messages mean whatever they name. `rerun` lets done
    work be run again.
    """
    return (yield from _plan(Action.REPLAY, wanted, limit, rerun))


def plan_discard(wanted: Filter, *, limit: int = MAX_PLAN) -> Work[Plan]:
    """What discarding these dead letters would do; nothing changes until it is executed."""
    return (yield from _plan(Action.DISCARD, wanted, limit))


def plan_cancel(wanted: Filter, *, limit: int = MAX_PLAN) -> Work[Plan]:
    """What cancelling these pending and running deliveries would do; nothing changes until it is executed."""
    return (yield from _plan(Action.CANCEL, wanted, limit))


def replay(
    ids: Sequence[UUID], *, actor: str, reason: str | None = None, generation: int | None = None, rerun: bool = False
) -> Work[Report]:
    """Replays these dead letters now; reports those that could not be, each with its reason."""
    plan = yield from _plan(Action.REPLAY, Filter(ids=tuple(ids)), MAX_PLAN, rerun)
    return (yield from carry_out(plan, actor, reason, generation))


def discard(ids: Sequence[UUID], *, actor: str, reason: str | None = None) -> Work[Report]:
    """Sets these dead letters aside for good, with who and why; they stay queryable."""
    plan = yield from _plan(Action.DISCARD, Filter(ids=tuple(ids)), MAX_PLAN)
    return (yield from carry_out(plan, actor, reason))


def cancel(ids: Sequence[UUID], *, actor: str, reason: str | None = None) -> Work[Report]:
    """Cancels these deliveries if they are pending or in flight; a run under way cannot finish any more."""
    plan = yield from _plan(Action.CANCEL, Filter(ids=tuple(ids)), MAX_PLAN)
    return (yield from carry_out(plan, actor, reason))


def carry_out(
    plan: Plan,
    actor: str,
    reason: str | None = None,
    generation: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Work[Report]:
    """Executes a plan from where it was cut off, or from the start."""
    if generation is not None:
        check_generation(generation)
    earlier = yield from do(done_by(plan.id))
    done: list[UUID] = []
    skipped = list(plan.skipped)
    consumers = {item.id: item.consumer for item in plan.items}
    before = len(consumers.keys() & earlier)
    for batch in _batches([item for item in plan.items if item.id not in earlier]):
        wanted = [ActionTarget(i.id, i.fence, i.to_generation if generation is None else generation) for i in batch]
        acted = yield from do(act(plan.action, plan.id, wanted, actor, reason, rerun=plan.rerun))
        done += acted.done
        skipped += [Skipped(id=id, consumer=consumers[id], why=why, by=by) for id, why, by in acted.left]
        if progress is not None:
            progress(Progress(len(done) + before, len(skipped), len(plan.items)))
    if done and plan.action is Action.REPLAY:
        yield from ask(lambda store: store.hint_sync())
    return Report(plan=plan.id, action=plan.action, done=tuple(done), earlier=before, skipped=tuple(skipped))


def _plan(action: Action, wanted: Filter, limit: int, rerun: bool = False) -> Work[Plan]:
    if not 1 <= limit <= MAX_PLAN:
        raise ConfigurationError(f"limit is {limit}; a plan holds 1 to {MAX_PLAN:,} deliveries")
    if wanted.type is not None:
        check_pattern(wanted.type)
    asked = _asked(action, wanted)
    chosen: list[Candidate] = []
    while len(chosen) <= limit:
        page = yield from do(
            find_candidates(asked, min(_PAGE, limit + 1 - len(chosen)), chosen[-1].id if chosen else None)
        )
        chosen += page
        if len(page) < _PAGE:
            break
    more, chosen = len(chosen) > limit, chosen[:limit]
    if not chosen and asked.dead and asked.group is not None:
        yield from _check_group(asked.group)
    remaining = (yield from do(count_remaining(asked, chosen[-1].id, MAX_PLAN))) if more else NONE
    live = _live_generations((yield from do(workers())))
    items = tuple(_planned(action, one, live) for one in chosen if _refusal(action, one, rerun) is None)
    skipped = [
        Skipped(id=one.id, consumer=one.consumer, why=why)
        for one in chosen
        if (why := _refusal(action, one, rerun)) is not None
    ]
    if asked.ids is not None and not more:
        absent = dict.fromkeys(asked.ids).keys() - {one.id for one in chosen}
        skipped += [Skipped(id=id, consumer=None, why=SkipReason.NOT_FOUND) for id in asked.ids if id in absent]
    replays = items if action is Action.REPLAY else ()
    handled = yield from _counted(handled_already, replays)
    deduplicated = yield from _counted(seen_deliveries, replays)
    circuits = (yield from _circuits({item.consumer for item in items})) if action is Action.REPLAY else ()
    now = yield from do(clock())
    store = yield from ask(lambda store: store)
    return Plan(
        id=uuid7(int(now.timestamp() * 1000), secrets.randbits(74)),
        action=action,
        made_at=now,
        filter=asked,
        limit=limit,
        rerun=rerun,
        remaining=remaining,
        items=items,
        skipped=tuple(dict.fromkeys(skipped)),
        unserved=tuple(sorted({item.consumer for item in items} - live.keys())),
        handled=handled,
        deduplicated=deduplicated,
        circuits=circuits,
        store=store,
    )


def _check_group(group: str) -> Work[None]:
    if not (yield from do(find_candidates(Filter(dead=True, group=group), 1))):
        hint = "its dead letters may have been replayed or discarded; `holdfast dlq groups` lists the groups there are"
        raise NotFound("failure group", group, hint)


def _counted(find: Callable[[Sequence[UUID]], Operation[frozenset[UUID]]], items: Sequence[Planned]) -> Work[int]:
    found = 0
    for at in range(0, len(items), _PAGE):
        found += len((yield from do(find([item.id for item in items[at : at + _PAGE]]))))
    return found


def _circuits(consumers: Set[str]) -> Work[tuple[OpenCircuit, ...]]:
    """A webhook endpoint's circuit has its consumer's name; of the others nobody can say who will use them."""
    endpoints = {one.consumer for one in (yield from do(listed_endpoints()))}
    found = [
        OpenCircuit(
            name=one.name,
            until=one.circuit.open_until,
            consumer=one.name if one.name in consumers & endpoints else None,
        )
        for one in (yield from do(breakers()))
        if one.circuit.state(one.now) is CircuitState.OPEN and one.name not in endpoints - consumers
    ]
    return tuple(sorted(found, key=lambda one: (one.consumer is None, one.name)))


def _asked(action: Action, wanted: Filter) -> Filter:
    """The filter with what goes without saying: a replay without a status means dead letters, and so on."""
    if wanted.ids is not None or wanted.message_id is not None:
        return wanted
    if action is Action.CANCEL:
        return wanted if wanted.statuses else replace(wanted, statuses=acceptable(action))
    if not wanted.statuses:
        return replace(wanted, dead=True)
    if wanted.statuses == (Status.FAILED,) and wanted.discarded is None:
        return replace(wanted, statuses=(), dead=True)
    return wanted


def _refusal(action: Action, one: Candidate, rerun: bool) -> SkipReason | None:
    if one.discarded:
        return SkipReason.DISCARDED
    return None if one.status in acceptable(action, rerun=rerun) else SkipReason(one.status.value)


def _planned(action: Action, one: Candidate, live: Mapping[str, int]) -> Planned:
    return Planned(
        id=one.id,
        consumer=one.consumer,
        type=one.type,
        status=one.status,
        generation=one.generation,
        fence=one.fence,
        to_generation=live.get(one.consumer, one.generation) if action is Action.REPLAY else None,
        group=one.group,
    )


def _tally(values: Iterable[V]) -> dict[V, int]:
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))


def _live_generations(known: Sequence[WorkerRecord]) -> dict[str, int]:
    """The highest generation alive for each consumer that a living worker serves."""
    live: dict[str, int] = {}
    for worker in known:
        for consumer in worker.consumers if worker.alive else ():
            live[consumer] = max(live.get(consumer, 0), worker.generation)
    return live


def _batches(items: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
    """Small transactions. One in flight goes alone: its handler may hold the row, and the others must not wait."""
    waiting = [item for item in items if item.status is not Status.IN_FLIGHT]
    for start in range(0, len(waiting), _BATCH):
        yield waiting[start : start + _BATCH]
    for item in items:
        if item.status is Status.IN_FLIGHT:
            yield [item]
