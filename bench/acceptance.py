"""The bars that a run is held against, as ratios within the run: who was measured against whom, on one machine."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.measure import Results
from bench.subject import BOUND, OURS

DRAIN, SQLITE = "drain-postgres", "drain-sqlite"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar: what was asked, what was found, and whether it was held; `held` is None when it was not measured."""

    bar: str
    asked: str
    found: str
    held: bool | None

    @property
    def word(self) -> str:
        return {True: "held", False: "missed", None: "not measured"}[self.held]


def verdicts(results: Results) -> list[Verdict]:
    """Every bar, in the order of the suites."""
    return [
        _at_least(results, "PostgreSQL drain vs PgQueuer's best", 2.0, DRAIN, "drain", _of("pgqueuer")),
        _at_least(results, "PostgreSQL drain vs the bare loop", 0.6, DRAIN, "drain", _of(BOUND)),
        _at_least(results, "bulk publish vs PgQueuer's best", 1.2, DRAIN, "publish", _of("pgqueuer")),
        _at_least(
            results,
            "publish in a caller's transaction vs the fastest peer",
            1.0,
            "transact",
            "transactions",
            _peers,
        ),
        *(
            _at_least(
                results,
                f"publish in batches of {batch} vs PgQueuer",
                least,
                "publish-size",
                "publish",
                _of("pgqueuer"),
                batch,
            )
            for batch, least in (("1", 1.1), ("10", 1.1), ("100", 1.1), ("1000", 1.1), ("5000", 1.3))
        ),
        _at_least(
            results,
            "drain of 30,000 with start-up vs PgQueuer's best",
            2.0,
            "start",
            "drain with start-up",
            _of("pgqueuer"),
        ),
        _at_most(results, "idle latency p50 vs the bare round trip", 2.0, "latency", "commit to start p50", _of(BOUND)),
        *(
            _at_most(
                results,
                f"steady load p99 vs the best peer, at {point}",
                1.0,
                "steady",
                "publish to done p99",
                _peers,
                point,
            )
            for point in ("half of ours", "half of the fastest peer")
        ),
        _points(results, "claim in a big store vs an empty one", "store", "claim", ("big", "empty"), most=1.5),
        _points(results, "drain under a held snapshot vs none", "snapshot", "drain", ("with", "without"), least=0.7),
        _points(
            results, "p50 under a held transaction vs before", "held", "due to handled p50", ("held", "before"), most=2
        ),
        _points(
            results, "throughput under a held transaction vs before", "held", "handled", ("held", "before"), least=0.9
        ),
        _below(results, "recovery after a held transaction", 15, "held", "recovered after", "s"),
        _below(results, "commit to claim p99 of 50 ms transactions", 100, "snapshot", "commit to claim p99", "ms"),
        _at_least(results, "SQLite drain vs Huey's best", 5.0, SQLITE, "drain", _of("huey")),
        _at_least(results, "SQLite drain vs the bare loop", 0.5, SQLITE, "drain", _of(BOUND)),
        *(
            _at_most(
                results,
                f"`with_retry` vs the cheaper of stamina and tenacity, {colour}",
                1.0,
                "calls",
                colour,
                _libraries,
            )
            for colour in ("async", "plain")
        ),
        *_workflows(results),
        _below(results, "memory of a worker at rest", 80, "memory", "at rest", "MB"),
        _below(results, "memory after many deliveries vs the beginning", 1.1, "memory", "growth", "times"),
    ]


def _workflows(results: Results) -> Iterator[Verdict]:
    """Three-step runs against three plain jobs, and against the workflows of the peers."""
    steps, jobs = "three-step runs", "three jobs"
    for store, suite, drain, both in (
        ("PostgreSQL", "workflow-postgres", 0.33, 0.6),
        ("SQLite", "workflow-sqlite", 0.5, 0.75),
    ):
        bar = f"{store}, three-step runs vs three jobs"
        yield _points(results, f"{bar}, drain", suite, "drain", (steps, jobs), least=drain)
        yield _points(results, f"{bar}, start and drain", suite, "start and drain", (steps, jobs), least=both)
        yield _longer(results, f"{bar}, outcome to next claim", suite, "step to step p50", (steps, jobs), 0.6)
        yield _below(results, f"{store}, advance of 500 steps", 25, suite, "advance of 500", "ms")
        yield _above(results, f"{store}, fan-in of 10,000", 12_000, suite, "fan-in of 10,000", "children/s")
        waits = ("10,000 runs wait", "no run waits")
        yield _points(results, f"{store}, plain drain while runs wait", suite, "plain drain", waits, least=0.98)
    for peer in ("dbos", "absurd"):
        yield _at_least(results, f"three-step workflows vs {peer}", 5.0, "workflow-peers", "workflows", _of(peer))


Others = Callable[[Iterable[str]], list[str]]


def _of(peer: str) -> Others:
    return lambda subjects: [one for one in subjects if one.partition("/")[0] == peer]


def _peers(subjects: Iterable[str]) -> list[str]:
    return [one for one in subjects if one.partition("/")[0] not in (OURS, BOUND)]


def _libraries(subjects: Iterable[str]) -> list[str]:
    return [one for one in subjects if one in ("stamina", "tenacity")]


def _at_least(
    results: Results, bar: str, ratio: float, suite: str, metric: str, others: Others, point: str | None = None
) -> Verdict:
    """Ours must reach so many times the best of the others; more is better."""
    asked = f"at least {ratio:g} times"
    ours = _best(results, suite, metric, _ours(results, suite, metric, any_driver=suite == "transact"), max, point)
    theirs = _best(results, suite, metric, others(results.subjects(suite, metric)), max, point)
    if ours is None or theirs is None:
        return Verdict(bar, asked, "", None)
    found = ours[1] / theirs[1]
    return Verdict(bar, asked, f"{found:.2f} times ({ours[0]} vs {theirs[0]})", found >= ratio)


def _at_most(
    results: Results, bar: str, ratio: float, suite: str, metric: str, others: Others, point: str | None = None
) -> Verdict:
    """Ours may take at most so many times what the best of the others takes; less is better."""
    asked = f"at most {ratio:g} times"
    ours = _best(results, suite, metric, _ours(results, suite, metric), min, point)
    theirs = _best(results, suite, metric, others(results.subjects(suite, metric)), min, point)
    if ours is not None and theirs is None and _too_slow(results, suite, point):
        return Verdict(bar, asked, "no peer holds the rate", True)
    if ours is None or theirs is None:
        return Verdict(bar, asked, "", None)
    found = ours[1] / theirs[1]
    return Verdict(bar, asked, f"{found:.2f} times ({ours[0]} vs {theirs[0]})", found <= ratio)


def _too_slow(results: Results, suite: str, point: str | None) -> bool:
    """Whether peers were there, could not do what ours was asked to do, and none was kept from it otherwise."""
    found = [one for one in results.problems if one.suite == suite]
    named = any(point is not None and point in one.reason for one in found)
    return named and {one.kind for one in found} == {"too slow"}


def _points(
    results: Results,
    bar: str,
    suite: str,
    metric: str,
    points: tuple[str, str],
    *,
    most: float | None = None,
    least: float | None = None,
) -> Verdict:
    """The same subject under two circumstances."""
    asked = f"at most {most:g} times" if most is not None else f"at least {least:g} times"
    one, other = (results.spread(suite, OURS, metric, point) for point in points)
    if one is None or other is None:
        return Verdict(bar, asked, "", None)
    found = one.median / other.median
    held = (most is None or found <= most) and (least is None or found >= least)
    return Verdict(bar, asked, f"{found:.2f} times", held)


def _below(results: Results, bar: str, limit: float, suite: str, metric: str, unit: str) -> Verdict:
    asked = f"under {limit:g} {unit}"
    found = results.spread(suite, OURS, metric)
    if found is None:
        return Verdict(bar, asked, "", None)
    return Verdict(bar, asked, f"{found.median:.3g} {unit}", found.median < limit)


def _above(results: Results, bar: str, limit: float, suite: str, metric: str, unit: str) -> Verdict:
    asked = f"at least {limit:,g} {unit}"
    found = results.spread(suite, OURS, metric)
    if found is None:
        return Verdict(bar, asked, "", None)
    return Verdict(bar, asked, f"{found.median:,.0f} {unit}", found.median >= limit)


def _longer(
    results: Results, bar: str, suite: str, metric: str, points: tuple[str, str], milliseconds: float
) -> Verdict:
    """The first may take so many milliseconds more than the second."""
    asked = f"at most {milliseconds:g} ms more"
    one, other = (results.spread(suite, OURS, metric, point) for point in points)
    if one is None or other is None:
        return Verdict(bar, asked, "", None)
    found = one.median - other.median
    return Verdict(bar, asked, f"{found:.2f} ms more", found <= milliseconds)


def _ours(results: Results, suite: str, metric: str, *, any_driver: bool = False) -> list[str]:
    """By defaults alone; in a caller's transaction the driver is the caller's choice, as it is the peers'."""
    return [
        one for one in results.subjects(suite, metric) if one == OURS or (any_driver and one.partition("/")[0] == OURS)
    ]


def _best(
    results: Results,
    suite: str,
    metric: str,
    subjects: list[str],
    choose: Callable[[Iterable[tuple[float, str]]], tuple[float, str]],
    point: str | None = None,
) -> tuple[str, float] | None:
    found = [(one.median, subject) for subject in subjects if (one := results.spread(suite, subject, metric, point))]
    if not found:
        return None
    value, subject = choose(found)
    return subject, value
