"""Tables of what a run has found, as Markdown: the same on a terminal and in the documentation."""

from collections.abc import Sequence

from bench.acceptance import Verdict
from bench.measure import Problem, Results

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row]) -> str:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    padded = (" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(f"| {line} |" for line in padded)


def figures(results: Results, suite: str) -> str:
    """Every figure of a suite: the median of the rounds, and from the lowest to the highest."""
    metrics = dict.fromkeys((m.metric, m.unit) for m in results.measurements if m.suite == suite)
    rows = []
    for metric, unit in metrics:
        for subject in results.subjects(suite, metric):
            for point in results.points(suite, subject, metric):
                found = results.spread(suite, subject, metric, point)
                assert found is not None
                counts = [
                    m.count
                    for m in results.measurements
                    if (m.suite, m.subject, m.metric, m.point) == (suite, subject, metric, point)
                ]
                rows.append(
                    (
                        metric if point is None else f"{metric}, {point}",
                        subject,
                        f"{number(found.median)} {unit}",
                        "" if found.rounds == 1 else f"{number(found.low)} to {number(found.high)}",
                        str(found.rounds),
                        "" if counts[0] is None else f"{counts[0]:,}",
                    )
                )
    return table(("figure", "subject", "median", "spread", "rounds", "deliveries"), rows)


def acceptance(verdicts: Sequence[Verdict]) -> str:
    return table(("bar", "asked", "found", ""), [(v.bar, v.asked, v.found, v.word) for v in verdicts])


def problems(found: Sequence[Problem]) -> str:
    return table(("suite", "subject", "", "why"), [(p.suite, p.subject, p.kind, p.reason) for p in found])


def number(value: float) -> str:
    """Three digits that count, no exponents."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
