"""The overview page: failure groups, retries, alerts, totals and charts."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.circuit import CircuitState
from holdfast.interfaces.console import chart
from holdfast.interfaces.console.visit import Page, Visit
from holdfast.ops.breakers import BreakerState
from holdfast.ops.consumers import ConsumerState
from holdfast.ops.queues import Queue
from holdfast.stores.query import FailureGroup
from holdfast.stores.worker import Worker

_GROUPS = 6
_READ = 200
_LATE = timedelta(minutes=1)
_RECENT = timedelta(minutes=5)
_DEPLOYED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A failure group as shown on the overview.

    `fresh`: it is still growing. `after`: time between the start of a worker of generation `deployed` and the first
    failure, if that is less than an hour.
    """

    group: FailureGroup
    fresh: bool
    after: timedelta | None
    deployed: int | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A condition other than a failure that delays deliveries, with the path of the page that shows it."""

    kind: str
    item: str
    text: str
    since: datetime | None
    path: str


async def overview(visit: Visit) -> Page:
    watch = visit.watch
    # Concurrent: PostgreSQL runs them on several connections.
    stats, groups, minutes, breakers, workers = await asyncio.gather(
        watch.stats(),
        failure_groups(visit),
        watch.read("trend", lambda ops: ops.trend()),
        watch.read("breakers", lambda ops: ops.breakers()),
        watch.read("workers", lambda ops: ops.workers()),
    )
    # Reuses the counts of `stats`.
    consumers, queues, retrying = await asyncio.gather(
        watch.read("consumers", lambda ops: ops.consumers(held=stats.loads)),
        watch.read("queues", lambda ops: ops.queues(held=stats.loads)),
        watch.read("retrying", lambda ops: ops.retrying(held=stats.loads)),
    )
    suspects = suspected(groups, workers, stats.now)
    return Page(
        "overview.html",
        {
            "stats": stats,
            "suspects": suspects[:_GROUPS],
            "more": max(0, len(suspects) - _GROUPS),
            "many_more": cut_off(groups),
            "retrying": retrying[:_GROUPS],
            "troubles": list(troubles(queues, consumers, breakers, workers, stats.now)),
            "charts": [chart.throughput(minutes), chart.failures(minutes), chart.age(watch.history, stats.now)],
            "empty": not consumers and not queues,
        },
    )


async def failure_groups(visit: Visit) -> Sequence[FailureGroup]:
    """Returns the largest failure groups, cached for all pages."""
    return await visit.watch.read("groups", lambda ops: ops.failure_groups(limit=_READ))


def cut_off(groups: Sequence[FailureGroup]) -> bool:
    """Whether more groups may exist than were read."""
    return len(groups) == _READ


def suspected(groups: Sequence[FailureGroup], workers: Sequence[Worker], now: datetime) -> list[Suspect]:
    """Returns the groups, growing ones first, then by size."""
    found = []
    for group in groups:
        first = group.first_failed_at
        came = max(
            (
                (one.started_at, one.generation)
                for one in workers
                if group.consumer in one.consumers
                and _before(one, first)
                and group.first_generation in (None, one.generation)
            ),
            default=None,
        )
        after = first - came[0] if came is not None and first is not None else None
        near = after is not None and after < _DEPLOYED
        found.append(
            Suspect(
                group=group,
                fresh=group.last_failed_at is not None and now - group.last_failed_at < _RECENT,
                after=after if near else None,
                deployed=came[1] if came is not None and near else None,
            )
        )
    return sorted(found, key=lambda one: (not one.fresh, -one.group.count))


def _before(worker: Worker, at: datetime | None) -> bool:
    return at is not None and worker.started_at <= at


def troubles(
    queues: Sequence[Queue],
    consumers: Sequence[ConsumerState],
    breakers: Sequence[BreakerState],
    workers: Sequence[Worker],
    now: datetime,
) -> Iterator[Trouble]:
    """Yields conditions that delay deliveries, most severe first."""
    if not any(worker.alive for worker in workers) and any(queue.pending for queue in queues):
        yield Trouble("no workers", "", "No worker is running and deliveries are waiting.", None, "/workers")
    for one in consumers:
        if one.blocked_until is not None:
            yield Trouble(
                "blocked",
                one.name,
                f"blocked: {one.blocked_resource} is unavailable; retried automatically",
                None,
                "/consumers",
            )
    for breaker in breakers:
        if breaker.state is not CircuitState.CLOSED:
            why = f": {breaker.why}" if breaker.why else ""
            yield Trouble(
                "circuit open",
                breaker.name,
                f"calls are rejected and deliveries are parked{why}",
                breaker.since,
                "/breakers",
            )
    for queue in queues:
        if queue.paused_at is not None:
            yield Trouble("paused", queue.name, f"queue paused, {queue.pending:,} waiting", queue.paused_at, "/queues")
        elif queue.lag > _LATE:
            yield Trouble(
                "late", queue.name, f"queue is falling behind, {queue.pending:,} waiting", now - queue.lag, "/queues"
            )
    for one in consumers:
        if one.paused_at is not None:
            yield Trouble("paused", one.name, f"consumer paused, {one.pending:,} waiting", one.paused_at, "/consumers")
        elif one.pending and not one.workers and any(worker.alive for worker in workers):
            yield Trouble(
                "unserved", one.name, f"no running worker serves it, {one.pending:,} waiting", None, "/consumers"
            )
