"""The doctor: reads facts about a store and its brokers, and runs the checks on them."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from holdfast.ops.doctor.broker_checks import CheckedEndpoint, check_brokers, check_intakes
from holdfast.ops.doctor.checks import Facts, Finding, run_checks, schema_finding, worst_first
from holdfast.ops.doctor.flow_checks import check_flow
from holdfast.ops.doctor.schedule_checks import check_schedules
from holdfast.ops.doctor.work_checks import GROUPS, check_work
from holdfast.ops.doctor.workflow_checks import LONG, check_workflows
from holdfast.ops.maintenance import now_and_skew
from holdfast.ops.queries.deliveries import failure_groups
from holdfast.ops.queries.held_keys import held
from holdfast.ops.queries.stats import loads
from holdfast.ops.queries.throughput import retrying
from holdfast.ops.resources.projectors import check_projectors
from holdfast.ops.resources.relays import relays
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.deliveries.worker import workers
from holdfast.stores.event_log.projection import projectors
from holdfast.stores.messages.intake import intakes
from holdfast.stores.messages.registry import consumers
from holdfast.stores.messages.schedule import overdue_schedules
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
from holdfast.stores.workflows.stalled_run import stalled_runs

_GRACE = timedelta(minutes=1)
_OLD = timedelta(minutes=5)


def doctor(
    local: Callable[[], datetime] = lambda: datetime.now(UTC), places: Sequence[CheckedEndpoint] = ()
) -> TaskSteps[list[Finding]]:
    """Runs all checks. Problems of deliveries come first, then the other findings, worst first.
    If the tables are not current, that is the only finding.

    Changes nothing. `local` is the clock of this machine; `places` are sources and targets at brokers to check.
    """
    status = yield from call_store(lambda store: store.schema_status())
    if not status.current:
        return [schema_finding(status)]
    dead = yield from transact(dead_letter_counts())
    facts = Facts(
        schema=status,
        skew=(yield from now_and_skew(local)),
        now=(yield from transact(clock())),
        settings=(yield from transact(server_settings())),
        workers=tuple((yield from transact(workers()))),
        consumers=tuple((yield from transact(consumers()))),
        paused_queues=(yield from transact(paused_queues())),
        counts=tuple((yield from transact(counts(dead=dead)))),
        lanes=tuple((yield from transact(lane_counts()))),
        overdue=(yield from transact(overdue(_GRACE))),
        at_bound=tuple((yield from transact(at_history_bound()))),
        lags=tuple((yield from transact(subscription_lag()))),
        old=tuple((yield from transact(old_transactions(_OLD)))),
        tables=tuple((yield from transact(table_health()))),
        pooled=(yield from call_store(lambda store: bool(getattr(store, "pooled", False)))),
        relays=tuple((yield from relays())),
    )
    brokers = yield from call_store(lambda store: check_brokers(places))
    sources = check_intakes((yield from transact(intakes())), facts.now)
    rebuilds = check_projectors((yield from transact(projectors())))
    work = check_work(
        facts,
        (yield from failure_groups(limit=GROUPS, dead=dead)),
        (yield from retrying(known_loads=loads(facts.counts))),
    )
    waiting = Counter({row.consumer: int(row.count) for row in facts.counts if row.state == "pending"})
    flow = check_flow(facts, (yield from held(facts.consumers, waiting)))
    late = check_schedules((yield from transact(overdue_schedules(_GRACE))), facts.now)
    runs = check_workflows((yield from transact(stalled_runs(LONG))), facts.now)
    return worst_first([*work, *flow, *late, *runs, *run_checks(facts), *sources, *rebuilds, *brokers])
