"""Metrics of an app, from its process and its store, for Prometheus and OpenTelemetry."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast._log import get_logger
from holdfast._version import __version__
from holdfast.core.errors import HoldfastError
from holdfast.core.query_interval import next_query
from holdfast.core.telemetry.metric import Distribution, Family, MetricKind
from holdfast.ops.queries.metrics import families
from holdfast.ops.queries.stats import Stats

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.metrics")

_FRESH_SECONDS, _LONGEST_SECONDS = 10.0, 60.0
_COST_FACTOR = 20.0
_NOTHING = Stats(
    now=datetime.min.replace(tzinfo=UTC),
    loads=(),
    workers=0,
    paused_queues=(),
    paused_consumers=(),
    blocked_consumers=(),
)
_IDLE = ("_ProxyMeterProvider", "NoOpMeterProvider")


class MetricsCollector:
    """Collects an app's metrics.

    It queries the store at most every ten seconds, and less often, once a minute, if the query is slow. While the store
    is unavailable, only the counts of this process are returned.
    """

    def __init__(self, app: "Holdfast") -> None:
        self._app = app
        self._stored: list[Family] = []
        self._due = 0.0
        self._querying = threading.Lock()

    def families(self) -> list[Family]:
        """All metrics. Blocks during the query."""
        return [*self.stored(), *self._app.meter.families()]

    def stored(self) -> list[Family]:
        """The metrics of the store. Blocks during the query."""
        with self._querying:
            started = time.monotonic()
            if started >= self._due:
                try:
                    self._stored = self._app.ops.sync.metrics()
                except HoldfastError as error:
                    log.warning("store metrics unavailable", error=str(error))
                    self._stored = []
                self._due = next_query(
                    started, time.monotonic(), factor=_COST_FACTOR, longest=_LONGEST_SECONDS, shortest=_FRESH_SECONDS
                )
            return self._stored


def export_once(app: "Holdfast") -> None:
    """Calls `export` when the first worker of a process starts, if the process has configured OpenTelemetry."""
    if not app.meter.exported:
        app.meter.exported = export(app)


def export(app: "Holdfast", provider: Any = None) -> bool:
    """Hands an app's metrics to OpenTelemetry, if the process has configured it. Returns whether it has."""
    if provider is None:
        api = sys.modules.get("opentelemetry.metrics")
        provider = None if api is None else api.get_meter_provider()
        if provider is None or type(provider).__name__ in _IDLE:
            return False
    meter, collector = provider.get_meter("holdfast", __version__), MetricsCollector(app)
    sizes: dict[str, Any] = {}
    for read, known in ((collector.stored, families(_NOTHING, ())), (app.meter.families, app.meter.families())):
        for family in known:
            name, unit = _named(family)
            match family.kind:
                case MetricKind.COUNTER:
                    meter.create_observable_counter(name, [_reader(read, family.name)], unit, family.help)
                case MetricKind.GAUGE:
                    meter.create_observable_gauge(name, [_reader(read, family.name)], unit, family.help)
                case MetricKind.HISTOGRAM:
                    sizes[family.name] = meter.create_histogram(name, unit, family.help)

    def settled(queue: str, consumer: str, operation: str, ran: float | None, held: float | None) -> None:
        labels = {"queue": queue, "consumer": consumer}
        for name, seconds in (("holdfast_run_seconds", ran), ("holdfast_claim_to_done_seconds", held)):
            if seconds is not None:
                sizes[name].record(seconds, labels)

    def called(service: str, operation: str, seconds: float) -> None:
        sizes["holdfast_call_seconds"].record(seconds, {"service": service, "operation": operation})

    app.meter.observe(settled)
    app.meter.observe_calls(called)
    return True


def _named(family: Family) -> tuple[str, str]:
    """The name and the unit in OpenTelemetry's form, with dots and without the unit in the name."""
    name, unit = family.name.removesuffix("_total"), ""
    if name.endswith("_seconds"):
        name, unit = name.removesuffix("_seconds"), "s"
    return name.replace("holdfast_", "holdfast.", 1), unit


def _reader(read: Callable[[], list[Family]], name: str) -> Callable[[Any], Iterable[Any]]:
    def observe(_: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        for family in read():
            for sample in family.samples if family.name == name else ():
                if not isinstance(sample.value, Distribution):
                    yield Observation(sample.value, dict(sample.labels))

    return observe
