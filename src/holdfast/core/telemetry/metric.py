"""Metrics as values: families of samples, independent of a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """A counter only increases, a gauge goes up and down, a histogram collects observations."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations by size: a count per bound, one more count for values above the last bound, and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """The cumulative count for each bound; the last one is the total."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One value with its labels."""

    labels: Mapping[str, str]
    value: float | Distribution


@dataclass(frozen=True, slots=True)
class Family:
    """All samples with one name. Counters end in `_total`; names include the unit."""

    name: str
    kind: MetricKind
    help: str
    samples: Sequence[Sample] = ()


def exposition(families: Sequence[Family]) -> str:
    """Return families in Prometheus' text format 0.0.4.

    >>> print(exposition([Family("up", MetricKind.GAUGE, "Whether it is up.", [Sample({"a": "b"}, 1)])]), end="")
    # HELP up Whether it is up.
    # TYPE up gauge
    up{a="b"} 1
    """
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.help, quotes=False)}", f"# TYPE {family.name} {family.kind}"]
        for sample in family.samples:
            if not isinstance(sample.value, Distribution):
                lines.append(f"{family.name}{_labels(sample.labels)} {_number(sample.value)}")
                continue
            for bound, count in sample.value.cumulative:
                lines.append(f"{family.name}_bucket{_labels({**sample.labels, 'le': bound})} {count}")
            lines.append(f"{family.name}_sum{_labels(sample.labels)} {_number(sample.value.sum)}")
            lines.append(f"{family.name}_count{_labels(sample.labels)} {sum(sample.value.counts)}")
    return "\n".join((*lines, ""))


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
