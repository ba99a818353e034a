"""The report of a run, as JSON and as one HTML page: a matrix of loads and faults for each store."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from chaos.faults import FAULTS
from chaos.scenario import Scenario

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { border: 1px solid #8886; padding: .3rem .5rem; text-align: left; vertical-align: top; font-size: 13px; }
.bad { background: #c0392b; color: #fff; }
.none { color: #888; }
"""


class Report:
    """All scenarios of a run."""

    def __init__(self, seed: int, scenarios: Sequence[Scenario], details: Sequence[str], seconds: float) -> None:
        self.seed, self.scenarios, self.details, self.seconds = seed, scenarios, details, seconds

    @property
    def failed(self) -> list[Scenario]:
        return [one for one in self.scenarios if one.counts is not None and not one.counts.holds]

    @property
    def totals(self) -> dict[str, Any]:
        counted = [one.counts for one in self.scenarios if one.counts is not None]
        names = ("accepted", "applied", "lost", "repeated", "twice", "unexpected")
        return {
            "scenarios": len(counted),
            "not_run": len(self.scenarios) - len(counted),
            "failed": len(self.failed),
            **{name: sum(getattr(one, name) for one in counted) for name in names},
            "longest_stuck_seconds": max((one.stuck_seconds for one in counted), default=0.0),
        }

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Writes `chaos.json` and `chaos.html`."""
        directory.mkdir(parents=True, exist_ok=True)
        as_json, as_html = directory / "chaos.json", directory / "chaos.html"
        as_json.write_text(json.dumps(self._as_dict(), indent=1) + "\n")
        as_html.write_text(self._as_html())
        return as_json, as_html

    def _as_dict(self) -> dict[str, Any]:
        scenarios = [
            {**asdict(one), "holds": None if one.counts is None else one.counts.holds} for one in self.scenarios
        ]
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "python": platform.python_version(),
            "totals": self.totals,
            "scenarios": scenarios,
            "details": list(self.details),
        }

    def _as_html(self) -> str:
        totals = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.totals.items())
        stores = "".join(self._table(store) for store in dict.fromkeys(one.store for one in self.scenarios))
        meanings = "".join(f"<tr><th>{escape(one.name)}</th><td>{escape(one.meaning)}</td></tr>" for one in FAULTS)
        details = "".join(f"<pre>{escape(text)}</pre>" for text in self.details)
        return (
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Holdfast fault lab</title>"
            f"<style>{_STYLE}</style><h1>Holdfast fault lab</h1>"
            f"<p>Seed {self.seed}, {self.seconds:.0f} seconds. {escape(totals)}.</p>"
            "<p>A cell shows the accepted items, how many of their effects are lost or applied twice, runs that were "
            "repeated outside the database, and the seconds from the end of the fault until all was applied.</p>"
            f"{stores}<h2>Faults</h2><table>{meanings}</table>{details}</html>\n"
        )

    def _table(self, store: str) -> str:
        mine = {(one.load, one.fault): one for one in self.scenarios if one.store == store}
        loads, faults = (list(dict.fromkeys(key[place] for key in mine)) for place in (0, 1))
        head = "".join(f"<th>{escape(load)}</th>" for load in loads)
        rows = "".join(
            f"<tr><th>{escape(fault)}</th>{''.join(_cell(mine.get((load, fault))) for load in loads)}</tr>"
            for fault in faults
        )
        return f"<h2>{escape(store)}</h2><table><tr><th></th>{head}</tr>{rows}</table>"


def _cell(scenario: Scenario | None) -> str:
    if scenario is None or scenario.counts is None:
        return f"<td class='none'>not run: {escape(scenario.reason if scenario else 'not selected')}</td>"
    counts = scenario.counts
    text = f"{counts.accepted} accepted, {counts.lost} lost, {counts.twice} twice"
    text += f", {counts.repeated} repeated" if counts.repeated else ""
    problems = "".join(f"<br>{escape(problem)}" for problem in counts.problems)
    style = "" if counts.holds else " class='bad'"
    return f"<td{style}>{text}, {counts.stuck_seconds:g} s{problems}</td>"
