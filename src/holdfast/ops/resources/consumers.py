"""Consumers: their subscriptions and backlog; pausing, unblocking, retiring and catching up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.errors import NotFound
from holdfast.core.identity import first_id
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.bounded_count import BoundedCount, total
from holdfast.ops.queries.filter_names import unknown_name
from holdfast.ops.queries.flow_keys import FlowState, flow_state
from holdfast.ops.queries.stats import Load, loads
from holdfast.ops.resources.relays import relays
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin import actions
from holdfast.stores.admin.actions import audited, record
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.event_log.relay import retire_relay
from holdfast.stores.messages import registry
from holdfast.stores.messages.backfill import FIRST, backfill, pruned_to
from holdfast.stores.messages.intake import forget_intake, intakes
from holdfast.stores.operation import Steps, operation
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.queries.query import clock, paused_queues, subscriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A registered consumer.

    A consumer without patterns is a job; a consumer with `relays_to` is a relay, whose waiting events count as
    pending.

    `workers` counts the live workers that serve it, `live_generation` is the highest generation among them.
    `queue_paused_at` is when its queue was paused, if it is. `blocked_until` is None if that time has passed. `keep` is
    how long its delivered rows are kept, None for the retention of the app. `reads_from` is the broker's stream whose records it gets, as its workers reported it.
    """

    name: str
    patterns: tuple[str, ...]
    queue: str
    priority: int
    retry: RetryPolicy
    generation: int
    live_generation: int | None
    workers: int
    registered_at: datetime
    paused_at: datetime | None
    blocked_until: datetime | None
    blocked_resource: str | None
    pending: BoundedCount
    in_flight: BoundedCount
    failed: BoundedCount
    discarded: BoundedCount
    lag: timedelta
    relays_to: str | None = None
    flow: FlowState | None = None
    keep: timedelta | None = None
    reads_from: str | None = None
    queue_paused_at: datetime | None = None


def consumers(*, known_loads: Sequence[Load] | None = None) -> TaskSteps[list[ConsumerState]]:
    """All consumers that ever registered, by name. Pass `stats().loads` as `known_loads` to avoid counting again."""
    known = yield from transact(registry.consumers())
    if known_loads is None:
        known_loads = loads((yield from transact(counts())))
    alive = yield from transact(live_workers())
    patterns: dict[str, list[str]] = {}
    for one in (yield from transact(subscriptions())):
        if one.active:
            patterns.setdefault(one.consumer, []).append(one.pattern)
    now = yield from transact(clock())
    sending = {relay.name: relay for relay in (yield from relays())}
    paused = yield from transact(paused_queues())
    reading = {one.consumer: one.source for one in (yield from transact(intakes()))}
    found = []
    for row in known:
        relay = sending.get(row.name)
        own = [load for load in known_loads if load.consumer == row.name]
        serving = [worker for worker in alive if row.name in worker.consumers]
        blocked = row.blocked_until is not None and row.blocked_until > now
        found.append(
            ConsumerState(
                name=row.name,
                patterns=tuple(patterns.get(row.name, () if relay is None else relay.patterns)),
                queue=row.queue,
                priority=row.priority,
                retry=row.retry,
                generation=row.generation,
                live_generation=max((worker.generation for worker in serving), default=None),
                workers=len(serving),
                registered_at=row.registered_at,
                paused_at=row.paused_at,
                blocked_until=row.blocked_until if blocked else None,
                blocked_resource=row.blocked_resource if blocked else None,
                pending=total(load.pending for load in own)
                + (BoundedCount(relay.waiting, relay.or_more) if relay else 0),
                in_flight=total(load.in_flight for load in own),
                failed=total(load.failed for load in own),
                discarded=total(load.discarded for load in own),
                lag=max([relay.lag if relay else timedelta(0), *(load.lag for load in own)]),
                relays_to=None if relay is None else relay.to,
                flow=None if row.flow is None else flow_state(row.flow, row.flow_override),
                keep=None if row.keep is None else timedelta(seconds=row.keep),
                reads_from=reading.get(row.name),
                queue_paused_at=paused.get(row.queue),
            )
        )
    return found


def pause_consumer(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Stops claiming for a consumer until it is resumed; running deliveries finish. False if it was paused."""
    if (yield from _known(name)).paused_at is not None:
        return False
    yield from transact(actions.pause_consumer(name, actor, reason))
    return True


def resume_consumer(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes a consumer; false if it was not paused."""
    yield from _known(name)
    resumed = yield from transact(actions.resume_consumer(name, actor, reason))
    yield from call_store(lambda store: store.hint_sync())
    return resumed


def unblock_consumer(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Lets a blocked consumer run immediately; false if it was not blocked."""
    yield from _known(name)
    unblocked = yield from transact(actions.unblock_consumer(name, actor, reason))
    yield from call_store(lambda store: store.hint_sync())
    return unblocked


def retire_consumer(
    name: str, *, actor: str, reason: str | None = None, pattern: str | None = None
) -> TaskSteps[tuple[str, ...]]:
    """Ends all subscriptions of a consumer, or one of them; returns their patterns. Existing deliveries still run.

    A relay loses its position; it is `Refused` while a worker runs it. The position of a broker consumer stays in the
    broker.
    """
    yield from _known(name)
    return (yield from transact(_retire(name, pattern, actor, reason)))


def catch_up(
    name: str | None = None,
    *,
    since: datetime | None = None,
    actor: str,
    progress: Callable[[int], None] | None = None,
) -> TaskSteps[int]:
    """Creates the deliveries that subscriptions missed; returns how many.

    Without a name, every subscription gets the messages whose publishers did not know it. Workers also do this, every
    second. With a name, that consumer gets every stored event without a delivery for it, from the beginning or `since`
    a time, including events from before its `start="now"`. It does not get delivered and pruned events again.
    """
    if name is not None:
        yield from _known(name)
    added, more = 0, True
    while more:
        some, more = yield from transact(registry.catch_up())
        added += some
        if progress is not None:
            progress(added)
    if name is not None:
        added += yield from _backfill(name, since, added, progress)
    detail = {"added": added, **({} if since is None else {"since": since.isoformat()})}
    target = ("store", "subscriptions") if name is None else ("consumer", name)
    yield from transact(record(actor, "catch-up", *target, None, detail))
    if added:
        yield from call_store(lambda store: store.hint_sync())
    return added


def _backfill(name: str, since: datetime | None, before: int, progress: Callable[[int], None] | None) -> TaskSteps[int]:
    # Later events are delivered to the consumer anyway.
    ceiling = first_id((yield from transact(clock())) + timedelta(seconds=1))
    cursor: UUID | None = FIRST if since is None else first_id(since)
    if (pruned := (yield from transact(pruned_to(name)))) is not None and cursor is not None:
        cursor = max(cursor, pruned)
    added = 0
    while cursor is not None:
        some, cursor = yield from transact(backfill(name, cursor, ceiling))
        added += some
        if progress is not None:
            progress(before + added)
    return added


@operation
def _retire(name: str, pattern: str | None, actor: str, reason: str | None) -> Steps[tuple[str, ...]]:
    active = [one.pattern for one in (yield from subscriptions().start()) if one.consumer == name and one.active]
    ending = tuple(active if pattern is None else [pattern])
    relayed = () if pattern is not None else (yield from retire_relay(name, actor, reason))
    read = () if pattern is not None else (yield from forget_intake(name).start())
    if not ending and not relayed and not read:
        raise NotFound("active subscription", name, "`holdfast consumers list` shows the active ones")
    for one in ending:
        yield from registry.retire(one, name).start()
        yield audited(actor, "retire", "consumer", name, reason, {"pattern": one})
    for source in read:
        yield audited(actor, "retire", "consumer", name, reason, {"source": source})
    return (*ending, *relayed, *read)


def _known(name: str) -> TaskSteps[registry.Consumer]:
    known = {row.name: row for row in (yield from transact(registry.consumers()))}
    if name not in known:
        raise unknown_name("consumer", name, known, "registered")
    return known[name]
