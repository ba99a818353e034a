"""The overview page: failure groups, retries, alerts, totals and charts."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.circuit import CircuitState
from holdfast.interfaces.console.pages.chart_range import RANGES, trend_charts
from holdfast.interfaces.console.request import ConsoleRequest, HtmlPage
from holdfast.ops.resources.breakers import BreakerState
from holdfast.ops.resources.consumers import ConsumerState
from holdfast.ops.resources.queues import QueueState
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.queries.delivery_counts import DeadLetterCounts
from holdfast.stores.queries.query import FailureGroup

_MAX_CARDS = 6
_MAX_GROUPS_READ = 200
_LATE = timedelta(minutes=1)
_RECENT = timedelta(minutes=1)
_NEAR_DEPLOY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class FailureGroupCard:
    """A failure group as shown on the overview.

    `is_growing`: its newest failure is less than a minute old, and a live worker serves its consumer. `after`: time between the start of a worker of generation `deployed` and the first
    failure, if that is less than an hour.
    """

    group: FailureGroup
    is_growing: bool
    after: timedelta | None
    deployed: int | None


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition other than a failure that delays deliveries, with the path of the page that shows it."""

    kind: str
    item: str
    text: str
    since: datetime | None
    path: str


async def overview(request: ConsoleRequest) -> HtmlPage:
    cache = request.cache
    dead = await cache.read("dead letters", lambda ops: ops.dead_letter_counts())
    # Concurrent: PostgreSQL runs them on several connections.
    now = dead.now if dead is not None else await request.ops.now()
    stats, groups, (charts, trend, figures), breakers, workers = await asyncio.gather(
        cache.stats(dead),
        failure_groups(request, dead),
        trend_charts(request, now, dead),
        cache.read("breakers", lambda ops: ops.breakers()),
        cache.read("workers", lambda ops: ops.workers()),
    )
    # Reuses the counts of `stats`.
    consumers, queues, retrying = await asyncio.gather(
        cache.read("consumers", lambda ops: ops.consumers(known_loads=stats.loads)),
        cache.read("queues", lambda ops: ops.queues(known_loads=stats.loads)),
        cache.read("retrying", lambda ops: ops.retrying(known_loads=stats.loads)),
    )
    cards = failure_group_cards(groups, workers, stats.now)
    return HtmlPage(
        "overview.html",
        {
            "stats": stats,
            "cards": cards[:_MAX_CARDS],
            "more": max(0, len(cards) - _MAX_CARDS),
            "many_more": is_truncated(groups),
            "retrying": retrying[:_MAX_CARDS],
            "alerts": list(alerts(queues, consumers, breakers, workers, stats.now)),
            "charts": charts,
            "trend": trend,
            "figures": figures,
            "ranges": RANGES,
            "empty": not consumers and not queues,
        },
    )


async def failure_groups(request: ConsoleRequest, dead: DeadLetterCounts | None = None) -> Sequence[FailureGroup]:
    """Returns the largest failure groups, cached for all pages."""
    return await request.cache.read("groups", lambda ops: ops.failure_groups(limit=_MAX_GROUPS_READ, dead=dead))


def is_truncated(groups: Sequence[FailureGroup]) -> bool:
    """Whether more groups may exist than were read."""
    return len(groups) == _MAX_GROUPS_READ


def failure_group_cards(
    groups: Sequence[FailureGroup], workers: Sequence[WorkerRecord], now: datetime
) -> list[FailureGroupCard]:
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
        near = after is not None and after < _NEAR_DEPLOY
        served = any(one.alive and group.consumer in one.consumers for one in workers)
        is_recent = group.last_failed_at is not None and now - group.last_failed_at < _RECENT
        found.append(
            FailureGroupCard(
                group=group,
                is_growing=served and is_recent,
                after=after if near else None,
                deployed=came[1] if came is not None and near else None,
            )
        )
    return sorted(found, key=lambda one: (not one.is_growing, -one.group.count))


def _before(worker: WorkerRecord, at: datetime | None) -> bool:
    return at is not None and worker.started_at <= at


def alerts(
    queues: Sequence[QueueState],
    consumers: Sequence[ConsumerState],
    breakers: Sequence[BreakerState],
    workers: Sequence[WorkerRecord],
    now: datetime,
) -> Iterator[Alert]:
    """Yields conditions that delay deliveries, most severe first."""
    if not any(worker.alive for worker in workers) and any(queue.pending for queue in queues):
        yield Alert("no workers", "", "No worker is running and deliveries are waiting.", None, "/workers")
    for one in consumers:
        if one.blocked_until is not None:
            yield Alert(
                "blocked",
                one.name,
                f"{one.blocked_resource} is unavailable; retried automatically",
                None,
                "/consumers",
            )
    for breaker in breakers:
        if breaker.state is not CircuitState.CLOSED:
            why = f": {breaker.why}" if breaker.why else ""
            yield Alert(
                "circuit open",
                breaker.name,
                f"calls are rejected and deliveries are parked{why}",
                breaker.since,
                "/breakers",
            )
    for queue in queues:
        if queue.paused_at is not None:
            yield Alert("paused", queue.name, f"queue paused, {queue.pending:,} waiting", queue.paused_at, "/queues")
        elif queue.lag > _LATE:
            yield Alert(
                "late", queue.name, f"queue is falling behind, {queue.pending:,} waiting", now - queue.lag, "/queues"
            )
    for one in consumers:
        if one.paused_at is not None:
            yield Alert("paused", one.name, f"consumer paused, {one.pending:,} waiting", one.paused_at, "/consumers")
        elif one.pending and not one.workers and any(worker.alive for worker in workers):
            yield Alert(
                "unserved", one.name, f"no running worker serves it, {one.pending:,} waiting", None, "/consumers"
            )
