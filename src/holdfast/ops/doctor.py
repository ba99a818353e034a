"""The doctor: gathers facts about a store and judges them; each finding names its remedy."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from holdfast.ops.brokers import Place, examine, judge_intakes
from holdfast.ops.deliveries import failure_groups
from holdfast.ops.findings import Facts, Finding, judge, schema_finding, worst_first
from holdfast.ops.projectors import judge_projectors
from holdfast.ops.relays import relays
from holdfast.ops.stats import loads
from holdfast.ops.trend import retrying
from holdfast.ops.upkeep import now_and_skew
from holdfast.ops.work import Work, ask, do
from holdfast.ops.work_findings import GROUPS, judge_work
from holdfast.stores.deliveries.worker import workers
from holdfast.stores.event_log.projection import projectors
from holdfast.stores.messages.intake import intakes
from holdfast.stores.messages.registry import consumers
from holdfast.stores.queries.delivery_counts import counts, dead_letter_counts
from holdfast.stores.queries.health import (
    at_history_bound,
    lane_counts,
    old_transactions,
    overdue,
    server_settings,
    subscription_lag,
    table_health,
)
from holdfast.stores.queries.query import clock, paused_queues

_GRACE = timedelta(minutes=1)
_OLD = timedelta(minutes=5)


def doctor(
    local: Callable[[], datetime] = lambda: datetime.now(UTC), places: Sequence[Place] = ()
) -> Work[list[Finding]]:
    """What is well and what is not: dead letters, failing consumers and old work first, then the worst; without current
    tables that alone is found.

    Changes nothing. `local` is this machine's clock; `places` are sources and targets at brokers to be asked, too.
    """
    status = yield from ask(lambda store: store.schema_status())
    if not status.current:
        return [schema_finding(status)]
    dead = yield from do(dead_letter_counts())
    facts = Facts(
        schema=status,
        skew=(yield from now_and_skew(local)),
        now=(yield from do(clock())),
        settings=(yield from do(server_settings())),
        workers=tuple((yield from do(workers()))),
        consumers=tuple((yield from do(consumers()))),
        paused_queues=(yield from do(paused_queues())),
        counts=tuple((yield from do(counts(dead=dead)))),
        lanes=tuple((yield from do(lane_counts()))),
        overdue=(yield from do(overdue(_GRACE))),
        at_bound=tuple((yield from do(at_history_bound()))),
        lags=tuple((yield from do(subscription_lag()))),
        old=tuple((yield from do(old_transactions(_OLD)))),
        tables=tuple((yield from do(table_health()))),
        pooled=(yield from ask(lambda store: bool(getattr(store, "pooled", False)))),
        relays=tuple((yield from relays())),
    )
    asked = yield from ask(lambda store: examine(places))
    read = judge_intakes((yield from do(intakes())), facts.now)
    rebuilds = judge_projectors((yield from do(projectors())))
    work = judge_work(
        facts, (yield from failure_groups(limit=GROUPS, dead=dead)), (yield from retrying(held=loads(facts.counts)))
    )
    return worst_first([*work, *judge(facts), *read, *rebuilds, *asked])
