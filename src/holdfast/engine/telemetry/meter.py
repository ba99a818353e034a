"""Counts what this process claims, runs and settles, for metrics."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from holdfast._log import get_logger
from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.telemetry.metric import Distribution, Family, MetricKind, Sample
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.deliveries.claim import Claimed

log = get_logger("holdfast.metrics")

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OTHERS = "(others)"
"""Stands for all queues and consumers beyond the limit: one endpoint per tenant must not flood a monitoring system."""

_MOST_SERIES = 500
_MOST_HELD = 100_000

Observer = Callable[[str, str, str, float | None, float | None], None]
"""Called for each settled run: queue, consumer, operation, seconds it ran, seconds from claim to durable."""


class _Sizes:
    """A histogram of seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BOUNDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def read(self) -> Distribution:
        return Distribution(BOUNDS, tuple(self.counts), self.sum)


class _Series:
    """The counts of one consumer in one queue."""

    __slots__ = ("claims", "lost", "operations", "run", "held")  # noqa: RUF023

    def __init__(self) -> None:
        self.claims = self.lost = 0
        # A monitoring system sees no increase in a counter that first appears above zero: the common ones start at zero.
        self.operations = dict.fromkeys((Deliver.name, Retry.name, DeadLetter.name), 0)
        self.run, self.held = _Sizes(), _Sizes()


class _Calls:
    """The counts of one operation of another service."""

    __slots__ = ("duration", "outcomes")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter(success=0)
        self.duration = _Sizes()


class Meter:
    """Counts what a worker does. Counts never decrease while the process runs; only durable outcomes are counted."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Series] = {}
        self._calls: dict[tuple[str, str], _Calls] = {}
        # Keyed by object identity: hashing a UUID for each delivery costs more than everything else here.
        self._begun: dict[int, float] = {}
        self._published = 0
        self._alerts = 0
        self._lock = threading.Lock()
        self._observers: list[Observer] = []
        self._call_observers: list[Callable[[str, str, float], None]] = []
        self.exported = False
        """Whether OpenTelemetry reads these counts."""

    def observe(self, observer: Observer) -> None:
        """Calls `observer` for every settled run."""
        self._observers.append(observer)

    def observe_calls(self, observer: Callable[[str, str, float], None]) -> None:
        """Calls `observer` with service, operation and seconds after each attempt of a call. It must not raise."""
        self._call_observers.append(observer)

    def claimed(self, claims: Sequence[Claimed]) -> None:
        """Counts new claims."""
        now = time.monotonic()
        if len(self._begun) > _MOST_HELD:
            self._begun.clear()
        self._begun.update(dict.fromkeys(map(id, claims), now))
        for (queue, consumer), count in Counter([(claim.queue, claim.consumer) for claim in claims]).items():
            self._of(queue, consumer).claims += count

    def settled(self, run: Invocation, operation: str, elapsed: float | None) -> None:
        """Counts a run whose outcome is durable."""
        series = self._series.get((run.queue, run.consumer)) or self._of(run.queue, run.consumer)
        series.operations[operation] = series.operations.get(operation, 0) + 1
        if elapsed is not None:
            series.run.add(elapsed)
        held, begun = None, self._begun.pop(id(run), None)
        if begun is not None:
            series.held.add(held := time.monotonic() - begun)
        for observer in self._observers:
            try:
                observer(run.queue, run.consumer, operation, elapsed, held)
            except Exception as error:  # noqa: BLE001
                # It is not called again: an observer must not disturb settlements.
                self._observers = [one for one in self._observers if one is not observer]
                log.warning("metrics observer removed", **error_fields(error))

    def lost(self, run: Invocation) -> None:
        """Counts a run whose outcome was refused: another worker owns the delivery."""
        self._begun.pop(id(run), None)
        self._of(run.queue, run.consumer).lost += 1

    def published(self, count: int) -> None:
        """Counts written messages; their transaction may still roll back. Safe from any thread."""
        with self._lock:
            self._published += count

    def called(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Counts an attempt of a call to another service. Safe from any thread."""
        with self._lock:
            key = (service, operation)
            if key not in self._calls and len(self._calls) >= _MOST_SERIES:
                key = (OTHERS, OTHERS)
            calls = self._calls.setdefault(key, _Calls())
            calls.outcomes[outcome] += 1
            calls.duration.add(seconds)
        for observer in self._call_observers:
            observer(*key, seconds)

    def alerted(self) -> None:
        """Counts a call of the alert hooks."""
        self._alerts += 1

    @property
    def settled_count(self) -> int:
        """How many runs have a durable outcome."""
        return sum(sum(one.operations.values()) for one in self._series.copy().values())

    def families(self) -> list[Family]:
        """The current counts. Safe from any thread."""
        series = sorted(self._series.copy().items())

        def each(read: Callable[[_Series], Iterable[tuple[dict[str, str], float | Distribution]]]) -> list[Sample]:
            return [
                Sample({"queue": queue, "consumer": consumer, **labels}, value)
                for (queue, consumer), one in series
                for labels, value in read(one)
            ]

        with self._lock:
            calls = [
                ({"service": service, "operation": operation}, one.outcomes.copy(), one.duration.read())
                for (service, operation), one in sorted(self._calls.items())
            ]
        return [
            Family(
                "holdfast_claims_total",
                MetricKind.COUNTER,
                "Deliveries this process claimed.",
                each(lambda one: [({}, one.claims)]),
            ),
            Family(
                "holdfast_runs_total",
                MetricKind.COUNTER,
                "Runs of handlers whose outcome is stored, by outcome.",
                each(lambda one: [({"operation": name}, count) for name, count in sorted(one.operations.items())]),
            ),
            Family(
                "holdfast_lost_total",
                MetricKind.COUNTER,
                "Runs whose outcome was refused, because their lease was lost.",
                each(lambda one: [({}, one.lost)]),
            ),
            Family(
                "holdfast_run_seconds",
                MetricKind.HISTOGRAM,
                "How long handlers ran.",
                each(lambda one: [({}, one.run.read())]),
            ),
            Family(
                "holdfast_claim_to_done_seconds",
                MetricKind.HISTOGRAM,
                "How long it took from the claim until the outcome was stored.",
                each(lambda one: [({}, one.held.read())]),
            ),
            Family(
                "holdfast_published_total",
                MetricKind.COUNTER,
                "Messages this process published.",
                [Sample({}, self._published)],
            ),
            Family(
                "holdfast_alerts_total",
                MetricKind.COUNTER,
                "Alerts that were sent about groups of dead letters.",
                [Sample({}, self._alerts)],
            ),
            Family(
                "holdfast_calls_total",
                MetricKind.COUNTER,
                "Attempts of calls to other services, by outcome.",
                [
                    Sample({**labels, "outcome": outcome}, count)
                    for labels, outcomes, _ in calls
                    for outcome, count in sorted(outcomes.items())
                ],
            ),
            Family(
                "holdfast_call_seconds",
                MetricKind.HISTOGRAM,
                "Durations of attempts of calls to other services.",
                [Sample(labels, duration) for labels, _, duration in calls],
            ),
        ]

    def _of(self, queue: str, consumer: str) -> _Series:
        found = self._series.get((queue, consumer))
        if found is None:
            key = (queue, consumer) if len(self._series) < _MOST_SERIES else (OTHERS, OTHERS)
            found = self._series.setdefault(key, _Series())
        return found
