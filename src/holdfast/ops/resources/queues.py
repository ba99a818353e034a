"""Queues: their deliveries, and pausing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.values.bounded_count import BoundedCount, total
from holdfast.core.values.names import check_name
from holdfast.ops.queries.filter_names import unknown_name
from holdfast.ops.queries.flow_keys import FlowState, flow_state
from holdfast.ops.queries.stats import Load, loads
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin import actions
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.messages.registry import consumers
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.queries.flow_keys import stored_queue_flows
from holdfast.stores.queries.query import paused_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue that has a consumer, a delivery or a pause. `workers` counts the live workers that serve it.

    `paused_consumers` are those of its consumers that are paused.
    """

    name: str
    consumers: tuple[str, ...]
    workers: int
    paused_at: datetime | None
    pending: BoundedCount
    in_flight: BoundedCount
    failed: BoundedCount
    discarded: BoundedCount
    lag: timedelta
    flow: FlowState | None = None
    paused_consumers: tuple[str, ...] = ()


def queues(*, known_loads: Sequence[Load] | None = None) -> TaskSteps[list[QueueState]]:
    """All queues, by name. Pass `stats().loads` as `known_loads` to avoid counting again."""
    known = yield from transact(consumers())
    if known_loads is None:
        known_loads = loads((yield from transact(counts())))
    paused = yield from transact(paused_queues())
    flows = yield from transact(stored_queue_flows())
    alive = yield from transact(live_workers())
    names = {one.queue for one in known} | {load.queue for load in known_loads} | paused.keys() | flows.keys()
    stopped = {one.name for one in known if one.paused_at is not None}
    found = []
    for name in sorted(names):
        own = [load for load in known_loads if load.queue == name]
        served = {one.name for one in known if one.queue == name} | {load.consumer for load in own}
        found.append(
            QueueState(
                name=name,
                consumers=tuple(sorted(served)),
                workers=sum((not w.queues or name in w.queues) and not served.isdisjoint(w.consumers) for w in alive),
                paused_at=paused.get(name),
                pending=total(load.pending for load in own),
                in_flight=total(load.in_flight for load in own),
                failed=total(load.failed for load in own),
                discarded=total(load.discarded for load in own),
                lag=max((load.lag for load in own), default=timedelta(0)),
                flow=flow_state(*flows[name]) if name in flows else None,
                paused_consumers=tuple(sorted(served & stopped)),
            )
        )
    return found


def pause_queue(name: str, *, actor: str, reason: str | None = None, force: bool = False) -> TaskSteps[bool]:
    """Stops claiming from a queue until it is resumed; running deliveries finish. False if it was paused.

    An unknown queue is `NotFound` unless `force`, because a typing error must not look like a pause.
    """
    check_name("queue", name)
    if not force:
        yield from _known(name)
    if name in (yield from transact(paused_queues())):
        return False
    yield from transact(actions.pause_queue(name, actor, reason))
    return True


def resume_queue(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes a queue; false if it was not paused."""
    check_name("queue", name)
    if (yield from transact(actions.resume_queue(name, actor, reason))):
        yield from call_store(lambda store: store.hint_sync())
        return True
    yield from _known(name)
    return False


def _known(name: str) -> TaskSteps[None]:
    names = [queue.name for queue in (yield from queues())]
    if name not in names:
        raise unknown_name("queue", name, names)
