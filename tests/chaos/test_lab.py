"""The fault lab in short: a few combinations of loads and faults, and a report that says what failed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.__main__ import main
from chaos.oracle import Counts
from chaos.report import Report
from chaos.scenario import Scenario

SOUND = Counts(accepted=5, applied=5, lost=0, repeated=1, twice=0, unexpected=0, stuck_seconds=1.5)


def test_a_report_names_what_was_lost_and_what_did_not_run(tmp_path: Path) -> None:
    lost = Counts(accepted=5, applied=4, lost=1, repeated=0, twice=0, unexpected=0, stuck_seconds=90)
    report = Report(
        7,
        [
            Scenario("sqlite", "kill worker", "work", SOUND),
            Scenario("sqlite", "kill worker", "complete", lost),
            Scenario("sqlite", "disk full", "work", None, "a small disk can be mounted only as root"),
        ],
        [],
        12,
    )
    assert [one.load for one in report.failed] == ["complete"]
    written, page = report.write(tmp_path)
    totals = json.loads(written.read_text())["totals"]
    assert (totals["scenarios"], totals["not_run"], totals["failed"], totals["lost"]) == (2, 1, 1, 1)
    assert "not run: a small disk" in page.read_text()
    assert "1 lost" in page.read_text()


@pytest.mark.parametrize("wrong", ["lost", "twice", "unexpected"])
def test_any_violation_fails_a_scenario(wrong: str) -> None:
    values = {name: getattr(SOUND, name) for name in Counts.__slots__}
    assert SOUND.holds
    assert not Counts(**{**values, wrong: 1}).holds


def test_an_unknown_name_is_refused() -> None:
    result = CliRunner().invoke(main, ["--only", "sqlit"])
    assert result.exit_code == 2
    assert "is no store, fault or load" in result.output


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("store", "fault"),
    [("sqlite", "kill worker"), pytest.param("postgres", "lose reply", marks=pytest.mark.soak)],
    ids=["sqlite", "postgres"],
)
def test_a_short_run_loses_and_doubles_nothing(store: str, fault: str, tmp_path: Path) -> None:
    selected = [store, fault, "publish", "work", "complete", "http"]
    options = [part for name in selected for part in ("--only", name)]
    result = CliRunner().invoke(main, [*options, "--seconds", "1", "--seed", "5", "--report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    totals = json.loads((tmp_path / "chaos.json").read_text())["totals"]
    assert totals["scenarios"] == 4
    assert totals["accepted"] > 20
