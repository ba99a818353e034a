"""`python -m bench.page results.json`: puts tables and plots of a run into the documentation."""

import json
from pathlib import Path
from typing import Any

import click

from bench.acceptance import verdicts
from bench.environment import ROOT
from bench.measure import Results, Spread
from bench.plot import bars, lines
from bench.table import acceptance, figures, problems

_BEGIN, _END = "<!-- results -->", "<!-- end of results -->"
_TITLES = {
    "drain-postgres": "PostgreSQL: bulk publish and drain",
    "transact": "One publish in a caller's transaction",
    "publish-size": "Publish by batch size and driver",
    "latency": "Idle latency",
    "steady": "Steady load",
    "drain-sqlite": "SQLite: bulk publish and drain",
    "drain-redis": "Redis: bulk publish and drain",
    "calls": "A call that succeeds at once",
    "brokers": "Brokers: records taken in, events relayed",
    "memory": "Memory of a worker",
    "growth": "Cost as it grows",
    "snapshot": "An old snapshot held open",
    "store": "A big store",
    "workflow-postgres": "PostgreSQL: workflows",
    "workflow-sqlite": "SQLite: workflows",
    "workflow-peers": "A workflow of three steps, compared with peers",
}
_BARS = (
    ("drain-postgres", "drain", "Drained deliveries a second, PostgreSQL, one worker process"),
    ("drain-postgres", "publish", "Published messages a second, PostgreSQL, in bulk"),
    ("drain-sqlite", "drain", "Drained deliveries a second, SQLite, one worker process"),
    ("drain-redis", "drain", "Drained deliveries a second, Redis, one worker process"),
)
_LINES = (
    ("processes", "Drained deliveries a second by worker processes", "processes"),
    ("payload", "Drained deliveries a second by payload", "bytes"),
    ("consumers", "Drained deliveries a second by consumers per event", "consumers per event"),
)


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--docs", default=ROOT / "docs", type=click.Path(path_type=Path), help="Where the documentation is.")
def main(results: Path, docs: Path) -> None:
    """Writes the results into benchmarks.md, with their plots and the raw figures next to it."""
    found = Results.from_json(json.loads(results.read_text()))
    folder = docs / "benchmarks"
    folder.mkdir(exist_ok=True)
    for name, picture in plots(found).items():
        (folder / f"{name}.svg").write_text(picture)
    (folder / "results.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")
    page = docs / "benchmarks.md"
    page.write_text(insert(page.read_text(), render(found)))


def insert(page: str, results: str) -> str:
    """The page with its results replaced; what is written around them stays."""
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return f"{page[:begin]}\n\n{results.strip()}\n\n{page[end:]}"


def plots(results: Results) -> dict[str, str]:
    """The pictures that a run has figures for, by file name."""
    made = {}
    for suite, metric, title in _BARS:
        rows = [(subject, _spread(results, suite, subject, metric)) for subject in results.subjects(suite, metric)]
        if rows:
            made[f"{suite}-{metric}"] = bars(title, "/s", rows)
    for metric, title, axis in _LINES:
        series = {
            subject: [
                (float(point), _spread(results, "growth", subject, metric, point))
                for point in results.points("growth", subject, metric)
                if isinstance(point, int | float)
            ]
            for subject in results.subjects("growth", metric)
        }
        if series:
            made[f"growth-{metric}"] = lines(title, axis, series)
    return made


def render(results: Results) -> str:
    """Everything between the marks of the page."""
    pictures = plots(results)
    titles = {f"{suite}-{metric}": title for suite, metric, title in _BARS}
    titles |= {f"growth-{metric}": title for metric, title, _ in _LINES}
    parts = [_circumstances(results), "## Bars", acceptance(verdicts(results))]
    for suite in dict.fromkeys(m.suite for m in results.measurements):
        parts.append(f"## {_TITLES.get(suite, suite)}")
        parts += [f"![{titles[name]}](benchmarks/{name}.svg)" for name in pictures if name.startswith(suite)]
        parts.append(figures(results, suite))
    if results.problems:
        parts += ["## Missing, unable or too slow", problems(results.problems)]
    parts += ["## Versions and settings", _versions(results.facts.get("subjects", {}))]
    return "\n\n".join(parts)


def _circumstances(results: Results) -> str:
    facts: dict[str, Any] = results.facts
    machine, stores = facts["machine"], facts.get("stores", {})
    said = (
        f"Form: {facts['form']}, {facts.get('minutes', 0):.0f} minutes. Machine: {machine['cores']} cores "
        f"({machine['processor']}), {machine['memory_gb']} GB of memory, Linux {machine['kernel']}; "
        f"Python {machine['python']}, SQLite {machine['sqlite']}; load before the run {facts['load_before']:.2f}."
    )
    stored = []
    for name in ("postgres", "redis", "sqlite"):
        if settings := stores.get(f"{name}_settings"):
            version = stores.get(name, machine.get(name, ""))
            listed = ", ".join(f"`{key} = {value}`" for key, value in settings.items() if value != "")
            stored.append(f"- {name} {version}: {listed}")
    return "\n".join([said, "", *stored])


def _versions(subjects: dict[str, Any]) -> str:
    lines = []
    for name, about in subjects.items():
        packages = ", ".join(f"{package} {version}" for package, version in about["packages"].items())
        settings = json.dumps(about.get("settings") or {})
        python = f"Python {about['python']}, " if "python" in about else ""
        shown = "" if settings == "{}" else f"; settings `{settings}`"
        lines.append(f"- {name}: {python}{packages}{shown}")
    return "\n".join(lines)


def _spread(results: Results, suite: str, subject: str, metric: str, point: str | float | None = None) -> Spread:
    found = results.spread(suite, subject, metric, point)
    assert found is not None
    return found


if __name__ == "__main__":
    main()
