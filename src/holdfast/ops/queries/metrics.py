"""Metrics of the store: what waits, runs and has failed, whoever works on it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.circuit import CircuitState
from holdfast.core.telemetry.metric import Family, MetricKind, Sample
from holdfast.ops.queries.stats import Load, Stats, stats
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.messages.registry import consumers

_MOST_LOADS = 500
_STATES: dict[str, Callable[[Load], int]] = {
    "pending": lambda load: load.pending,
    "suspect": lambda load: load.suspects,
    "in_flight": lambda load: load.in_flight,
    "failed": lambda load: load.failed,
    "discarded": lambda load: load.discarded,
}


def metrics() -> TaskSteps[list[Family]]:
    """The store at this moment as metrics. One process of many may tell them, or all: they say the same.

    Counted to the end, in a time that grows with what is not done: a graph must not lie flat at a bound.
    """
    now = yield from stats(exact=True)
    busy = {load.consumer for load in now.loads}
    # A series that comes and goes hides a rise: a consumer with nothing to do is at zero.
    idle = [
        Load(queue=one.queue, consumer=one.name) for one in (yield from transact(consumers())) if one.name not in busy
    ]
    now = replace(now, loads=(*now.loads, *idle))
    circuits = [
        one.name for one in (yield from transact(breakers())) if one.circuit.state(one.now) is CircuitState.OPEN
    ]
    return families(now, circuits)


def families(now: Stats, open_circuits: Sequence[str]) -> list[Family]:
    """Figures as metrics; every family is there, also one without samples."""
    return [
        *_loads(now),
        _gauge("holdfast_workers", "Workers alive.", [Sample({}, now.workers)]),
        _gauge(
            "holdfast_paused",
            "Queues and consumers that somebody paused.",
            [Sample({"kind": "queue", "name": name}, 1) for name in now.paused_queues]
            + [Sample({"kind": "consumer", "name": name}, 1) for name in now.paused_consumers],
        ),
        _gauge(
            "holdfast_blocked",
            "Consumers held back because something they need is out.",
            [Sample({"consumer": name}, 1) for name in now.blocked_consumers],
        ),
        _gauge(
            "holdfast_relay_lag_seconds",
            "How long the oldest event that is to be relayed has waited.",
            [Sample({"relay": one.name}, one.lag.total_seconds()) for one in now.relays],
        ),
        _gauge(
            "holdfast_circuit_open",
            "Circuits that let no call pass.",
            [Sample({"circuit": name}, 1) for name in open_circuits[:_MOST_LOADS]],
        ),
    ]


def _loads(now: Stats) -> list[Family]:
    # Those with the most to tell; the totals below hold for all.
    shown = sorted(now.loads, key=lambda load: (-load.failed, -load.pending, load.queue, load.consumer))[:_MOST_LOADS]
    shown.sort(key=lambda load: (load.queue, load.consumer))
    labels = [{"queue": load.queue, "consumer": load.consumer} for load in shown]
    return [
        _gauge(
            "holdfast_deliveries",
            "Deliveries that are not done, by state; pending includes suspects and retry waits.",
            [
                Sample({**one, "state": state}, count(load))
                for one, load in zip(labels, shown, strict=True)
                for state, count in _STATES.items()
            ],
        ),
        _gauge(
            "holdfast_oldest_pending_seconds",
            "How long the oldest delivery that is due has waited.",
            [Sample(one, load.lag.total_seconds()) for one, load in zip(labels, shown, strict=True)],
        ),
        _gauge(
            "holdfast_deliveries_all",
            "Deliveries of all queues and consumers that are not done, by state.",
            [Sample({"state": state}, sum(count(load) for load in now.loads)) for state, count in _STATES.items()],
        ),
    ]


def _gauge(name: str, help: str, samples: list[Sample]) -> Family:
    return Family(name, MetricKind.GAUGE, help, samples)
