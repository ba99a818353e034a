"""The alert rules, tried by Prometheus' own tool on the figures that a store and its workers really tell."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.core.telemetry.metric import Distribution, Family
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.support.builders import register_consumers
from tests.support.failures import dead_letters
from tests.support.stores import ops, place, store

__all__ = ["ops", "place", "store"]

RULES = Path(__file__).parents[2] / "docs" / "dashboards" / "alerts.yml"
DEAD = "HoldfastDeadLetters"
MAIL = {"queue": "default", "consumer": "mail"}


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus), so the alert rules are not tried")
    found = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


def try_rule(
    folder: Path, alert: str, series: Mapping[str, str], firing: Mapping[str, Sequence[Mapping[str, str]]]
) -> None:
    """Checks which alerts of a rule fire at which time, given what was scraped every 30 seconds."""
    (rule,) = [one for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"] if one["alert"] == alert]
    # What it says to people is checked elsewhere.
    rules = {"groups": [{"name": "tried", "rules": [{key: rule[key] for key in rule if key != "annotations"}]}]}
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    test: dict[str, Any] = {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": at,
                "alertname": alert,
                "exp_alerts": [{"exp_labels": {**rule["labels"], **labels}} for labels in alerts],
            }
            for at, alerts in firing.items()
        ],
    }
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": [test]})
    )
    promtool("test", "rules", str(folder / "test.yml"))


def failed(consumer: str = "mail", instance: str = "a:1") -> str:
    return f'holdfast_deliveries{{queue="default",consumer="{consumer}",state="failed",instance="{instance}"}}'


def test_the_rules_are_well_formed() -> None:
    promtool("check", "rules", str(RULES))


def test_a_burst_fires_although_its_series_are_born_with_it(tmp_path: Path) -> None:
    runs = 'holdfast_runs_total{queue="default",consumer="mail",operation="dead_letter",instance="a:1"}'
    born = {failed(): "_x40 5000x80", runs: "_x40 5000x80"}
    try_rule(tmp_path, DEAD, born, {"19m": [], "21m": [MAIL], "29m": [MAIL], "35m": []})


def test_a_second_burst_fires_and_old_dead_letters_alone_do_not(tmp_path: Path) -> None:
    series = {failed(): "7x79 9x40", failed("export"): "3x120"}
    try_rule(tmp_path, DEAD, series, {"15m": [], "39m": [], "41m": [MAIL], "55m": []})


def test_what_dies_again_after_a_replay_fires_and_the_replay_does_not(tmp_path: Path) -> None:
    # Two processes tell the same store; the second one reads it half a minute later.
    series = {
        failed(): "60000x40 40000 20000 0x20 10x40",
        failed(instance="b:1"): "60000x41 40000 20000 0x20 10x39",
    }
    try_rule(tmp_path, DEAD, series, {"20m": [], "21m": [], "22m": [], "30m": [], "33m": [MAIL]})


def test_a_process_that_starts_with_old_dead_letters_does_not_fire(tmp_path: Path) -> None:
    series = {failed(): "7x60 _x60", failed(instance="b:1"): "_x58 7x60"}
    try_rule(tmp_path, DEAD, series, {"20m": [], "29m30s": [], "31m": [], "45m": []})


@pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
async def test_the_first_burst_of_a_store_fires_by_its_own_metrics(
    store: Store, ops: Operations, tmp_path: Path
) -> None:
    """Every figure before the burst, at it, and after everything was replayed, as a scrape finds it."""
    await register_consumers(store, {"mail": []})
    before = _values(await ops.metrics())
    ids = await dead_letters(store, 5)
    burst = _values(await ops.metrics())
    await ops.discard(ids, actor="ada", reason="a test")
    after = _values(await ops.metrics())
    series = {
        name: " ".join(f"{found.get(name, '_')}x39" for found in (before, burst, after, burst))
        for name in before | burst | after
    }
    try_rule(tmp_path, DEAD, series, {"19m": [], "21m": [MAIL], "45m": [], "61m": [MAIL]})


def _values(families: Sequence[Family]) -> dict[str, float]:
    found = {}
    for family in families:
        for sample in family.samples:
            assert not isinstance(sample.value, Distribution)
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{family.name}{{{labels}}}"] = sample.value
    return found
