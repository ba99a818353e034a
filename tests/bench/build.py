"""Results as a run would leave them, built by hand."""

from bench.measure import Measurement, Results

MACHINE = {
    "cores": 2,
    "memory_gb": 4.0,
    "kernel": "6.1",
    "processor": "a processor",
    "python": "3.11.7",
    "sqlite": "3.40.0",
}


def results(*figures: tuple[str, str, str, float] | tuple[str, str, str, float, str | float]) -> Results:
    """Figures given as suite, subject, metric, value and, where there is one, the point on the axis."""
    found = Results({"form": "short", "machine": MACHINE, "load_before": 0.1, "minutes": 1.0})
    for suite, subject, metric, value, *point in figures:
        turn = sum((m.suite, m.subject, m.metric) == (suite, subject, metric) for m in found.measurements)
        found.add(Measurement(suite, subject, metric, value, "/s", turn, point[0] if point else None, 100))
    return found
