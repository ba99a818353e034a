"""Measurements, and what is made of them: medians, spreads and quantiles."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of one subject in one round. `point` places it on a plot's axis, where a suite has one."""

    suite: str
    subject: str
    metric: str
    value: float
    unit: str
    round: int = 0
    point: str | float | None = None
    count: int | None = None
    """How many deliveries the figure stands for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What kept a subject from being measured: it is missing, unable, failed, or was wrong."""

    suite: str
    subject: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float
    rounds: int

    @property
    def relative(self) -> float:
        """How far apart the rounds are, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(slots=True)
class Results:
    """Everything a run has found."""

    facts: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, *measurements: Measurement) -> None:
        self.measurements.extend(measurements)

    def blame(self, suite: str, subject: str, kind: str, reason: str) -> None:
        problem = Problem(suite, subject, kind, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def spread(self, suite: str, subject: str, metric: str, point: str | float | None = None) -> Spread | None:
        """The rounds of one figure taken together; none when it was not measured."""
        return spread(
            m.value
            for m in self.measurements
            if (m.suite, m.subject, m.metric, m.point) == (suite, subject, metric, point)
        )

    def subjects(self, suite: str, metric: str) -> list[str]:
        """Who has this figure, in the order they were measured."""
        return list(dict.fromkeys(m.subject for m in self.measurements if (m.suite, m.metric) == (suite, metric)))

    def points(self, suite: str, subject: str, metric: str) -> list[str | float | None]:
        """The places on the axis that one subject was measured at."""
        found = (m.point for m in self.measurements if (m.suite, m.subject, m.metric) == (suite, subject, metric))
        return list(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, read: dict[str, Any]) -> "Results":
        return cls(
            read["facts"],
            [Measurement(**one) for one in read["measurements"]],
            [Problem(**one) for one in read["problems"]],
        )


def spread(values: Iterable[float]) -> Spread | None:
    """Median, lowest and highest; none of nothing."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found)) if found else None


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no value to take a quantile of")
    position = -(-share * len(ordered) // 1)
    return ordered[max(0, min(len(ordered), int(position)) - 1)]
