"""Consumers: what they subscribe to and how they do; pausing, unblocking, retiring and catching up."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.errors import NotFound
from holdfast.core.retry import RetryPolicy
from holdfast.ops.stats import loads
from holdfast.ops.work import Work, ask, do
from holdfast.stores import operate, registry
from holdfast.stores.operate import audited, record
from holdfast.stores.operation import Steps, operation
from holdfast.stores.overview import subscribed
from holdfast.stores.query import clock, counts
from holdfast.stores.worker import workers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A consumer as it registered, with how it does. One without patterns is a job.

    `workers` counts the living ones that serve it, `live_generation` is the highest among them; `blocked_until` is
    none once it is past.
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
    pending: int
    in_flight: int
    failed: int
    discarded: int
    lag: timedelta


def consumers() -> Work[list[ConsumerState]]:
    """Every consumer that ever registered, by name."""
    known = yield from do(registry.consumers())
    held = loads((yield from do(counts())))
    alive = [worker for worker in (yield from do(workers())) if worker.alive]
    patterns: dict[str, list[str]] = {}
    for one in (yield from do(subscribed())):
        if one.active:
            patterns.setdefault(one.consumer, []).append(one.pattern)
    now = yield from do(clock())
    found = []
    for row in known:
        own = [load for load in held if load.consumer == row.name]
        serving = [worker for worker in alive if row.name in worker.consumers]
        blocked = row.blocked_until is not None and row.blocked_until > now
        found.append(
            ConsumerState(
                name=row.name,
                patterns=tuple(patterns.get(row.name, ())),
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
                pending=sum(load.pending for load in own),
                in_flight=sum(load.in_flight for load in own),
                failed=sum(load.failed for load in own),
                discarded=sum(load.discarded for load in own),
                lag=max((load.lag for load in own), default=timedelta(0)),
            )
        )
    return found


def pause_consumer(name: str, *, actor: str, reason: str | None = None) -> Work[None]:
    """Leaves a consumer out of every claim until it is resumed; running work finishes."""
    yield from _known(name)
    yield from do(operate.pause_consumer(name, actor, reason))


def resume_consumer(name: str, *, actor: str, reason: str | None = None) -> Work[bool]:
    """Lets a paused consumer be claimed again; false when it was not paused."""
    yield from _known(name)
    resumed = yield from do(operate.resume_consumer(name, actor, reason))
    yield from ask(lambda store: store.hint())
    return resumed


def unblock_consumer(name: str, *, actor: str) -> Work[bool]:
    """Lets a blocked consumer try again at once; false when it was not blocked."""
    yield from _known(name)
    unblocked = yield from do(operate.unblock_consumer(name, actor))
    yield from ask(lambda store: store.hint())
    return unblocked


def retire_consumer(
    name: str, *, actor: str, reason: str | None = None, pattern: str | None = None
) -> Work[tuple[str, ...]]:
    """Ends a consumer's subscriptions, or one of them; returns the patterns. What it already has is still run."""
    yield from _known(name)
    return (yield from do(_retire(name, pattern, actor, reason)))


def catch_up(*, actor: str, progress: Callable[[int], None] | None = None) -> Work[int]:
    """Gives every subscription the messages whose publishers did not know it; how many deliveries were added.

    Workers do this by themselves, second by second; here it is done at once and without one.
    """
    added, more = 0, True
    while more:
        some, more = yield from do(registry.catch_up())
        added += some
        if progress is not None:
            progress(added)
    yield from do(record(actor, "catch-up", "store", "subscriptions", None, {"added": added}))
    if added:
        yield from ask(lambda store: store.hint())
    return added


@operation
def _retire(name: str, pattern: str | None, actor: str, reason: str | None) -> Steps[tuple[str, ...]]:
    active = [one.pattern for one in (yield from subscribed().start()) if one.consumer == name and one.active]
    ending = tuple(active if pattern is None else [pattern])
    if not ending:
        raise NotFound("active subscription", name)
    for one in ending:
        yield from registry.retire(one, name).start()
        yield audited(actor, "retire", "consumer", name, reason, {"pattern": one})
    return ending


def _known(name: str) -> Work[None]:
    names = [row.name for row in (yield from do(registry.consumers()))]
    if name not in names:
        raise NotFound("consumer", name, f"registered are {', '.join(names[:20]) or 'none yet'}")
