"""Metrics of the store: pending, running and failed deliveries, workers, pauses, relays and circuits."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.circuit import CircuitState
from holdfast.core.telemetry.metric import Family, MetricKind, Sample
from holdfast.ops.queries.flow_keys import Hold
from holdfast.ops.queries.held_keys import HeldKeys, held
from holdfast.ops.queries.stats import Load, Stats, stats
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.messages.registry import consumers
from holdfast.stores.workflows.run_page import WorkflowCounts, workflow_counts
from holdfast.stores.workflows.stalled_run import BlockedStep, blocked_steps

_MAX_LOADS = 500
_STATES: dict[str, Callable[[Load], int]] = {
    "pending": lambda load: load.pending,
    "suspect": lambda load: load.suspects,
    "in_flight": lambda load: load.in_flight,
    "failed": lambda load: load.failed,
    "discarded": lambda load: load.discarded,
}


def metrics() -> TaskSteps[list[Family]]:
    """The current state of the store as metrics. Any process may serve them, because all report the same values.

    Counts are exact, because a graph must not stop at a bound; the time grows with the number of unfinished deliveries.
    """
    now = yield from stats(exact=True)
    known = yield from transact(consumers())
    busy = {load.consumer for load in now.loads}
    # A series that disappears would hide a rise, so an idle consumer has zeros.
    idle = [Load(queue=one.queue, consumer=one.name) for one in known if one.name not in busy]
    now = replace(now, loads=(*now.loads, *idle))
    circuits = [
        one.name for one in (yield from transact(breakers())) if one.circuit.state(one.now) is CircuitState.OPEN
    ]
    waiting = Counter[str]()
    for load in now.loads:
        waiting[load.consumer] += int(load.pending)
    runs = yield from transact(workflow_counts())
    blocked = (yield from transact(blocked_steps())) if runs else ()
    return [*families(now, circuits, (yield from held(known, waiting))), *workflow_families(runs, blocked)]


def workflow_families(runs: Sequence[WorkflowCounts], blocked: Sequence[BlockedStep]) -> list[Family]:
    """Active runs by workflow and state, and blocked steps. The steps themselves are consumers of the other families."""
    steps = Counter((one.workflow, one.step) for one in blocked)
    return [
        _gauge(
            "holdfast_workflow_runs",
            "Active workflow runs among the newest 20,000 runs.",
            [
                Sample({"workflow": one.workflow, "state": state}, int(getattr(one, state)))
                for one in runs
                for state in ("running", "compensating")
            ],
        ),
        _gauge(
            "holdfast_workflow_blocked_steps",
            "Steps whose attempts are used up and whose run waits for an operator; at most 200 per workflow.",
            [Sample({"workflow": workflow, "step": step}, count) for (workflow, step), count in steps.items()],
        ),
    ]


def _flow(found: Sequence[HeldKeys]) -> list[Family]:
    """What flow control holds up, by consumer and reason. There is no label for the key: there may be any number of them."""
    return [
        _gauge(
            "holdfast_flow_waiting",
            "Due deliveries held up by flow control: at the limit, at the rate, of paused keys, behind a dead letter.",
            [
                Sample({"consumer": one.consumer.name, "reason": hold.value}, one.waiting(hold))
                for one in found
                for hold in (Hold.LIMIT, Hold.RATE, Hold.PAUSED, Hold.DEAD_LETTER)
            ],
        ),
        _gauge(
            "holdfast_flow_blocked_keys",
            "Keys of ordered consumers that a dead letter blocks.",
            [
                Sample(
                    {"consumer": one.consumer.name},
                    sum(key.hold is Hold.DEAD_LETTER for key in one.keys),
                )
                for one in found
                if one.settings.order == "block"
            ],
        ),
    ]


def families(now: Stats, open_circuits: Sequence[str], held_up: Sequence[HeldKeys] = ()) -> list[Family]:
    """Statistics as metrics. Every family exists, also without samples."""
    return [
        *_loads(now),
        _gauge("holdfast_workers", "Workers alive.", [Sample({}, now.workers)]),
        _gauge(
            "holdfast_paused",
            "Paused queues and consumers.",
            [Sample({"kind": "queue", "name": name}, 1) for name in now.paused_queues]
            + [Sample({"kind": "consumer", "name": name}, 1) for name in now.paused_consumers],
        ),
        _gauge(
            "holdfast_blocked",
            "Consumers blocked because a resource is unavailable.",
            [Sample({"consumer": name}, 1) for name in now.blocked_consumers],
        ),
        _gauge(
            "holdfast_relay_lag_seconds",
            "Waiting time of the oldest event to relay.",
            [Sample({"relay": one.name}, one.lag.total_seconds()) for one in now.relays],
        ),
        _gauge(
            "holdfast_circuit_open",
            "Open circuits.",
            [Sample({"circuit": name}, 1) for name in open_circuits[:_MAX_LOADS]],
        ),
        *_flow(held_up),
    ]


def _loads(now: Stats) -> list[Family]:
    # Those with the most failures; the totals below include all.
    shown = sorted(now.loads, key=lambda load: (-load.failed, -load.pending, load.queue, load.consumer))[:_MAX_LOADS]
    shown.sort(key=lambda load: (load.queue, load.consumer))
    labels = [{"queue": load.queue, "consumer": load.consumer} for load in shown]
    return [
        _gauge(
            "holdfast_deliveries",
            "Unfinished deliveries by state; pending includes suspects and retry waits.",
            [
                Sample({**one, "state": state}, count(load))
                for one, load in zip(labels, shown, strict=True)
                for state, count in _STATES.items()
            ],
        ),
        _gauge(
            "holdfast_oldest_pending_seconds",
            "Waiting time of the oldest due delivery.",
            [Sample(one, load.lag.total_seconds()) for one, load in zip(labels, shown, strict=True)],
        ),
        _gauge(
            "holdfast_deliveries_all",
            "Unfinished deliveries of all queues and consumers by state.",
            [Sample({"state": state}, sum(count(load) for load in now.loads)) for state, count in _STATES.items()],
        ),
    ]


def _gauge(name: str, help: str, samples: list[Sample]) -> Family:
    return Family(name, MetricKind.GAUGE, help, samples)
