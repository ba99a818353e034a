"""The files for Grafana and Prometheus use metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.app.telemetry import _NOTHING
from holdfast.core.telemetry.metric import Family, MetricKind
from holdfast.engine.telemetry.meter import Meter
from holdfast.ops.queries.metrics import families, workflow_families

FOLDER = Path(__file__).parents[2] / "docs" / "dashboards"
_NAME = re.compile(r"holdfast_\w+")
_LABELS = {
    "queue",
    "consumer",
    "state",
    "operation",
    "le",
    "kind",
    "name",
    "circuit",
    "relay",
    "service",
    "outcome",
    "reason",
    "workflow",
    "step",
}


def exported() -> list[Family]:
    return [*families(_NOTHING, ()), *workflow_families((), ()), *Meter().families()]


def names() -> set[str]:
    return {name for family in exported() for name in _samples(family)}


def _samples(family: Family) -> list[str]:
    if family.kind is MetricKind.HISTOGRAM:
        return [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
    return [family.name]


def panels() -> Iterator[tuple[str, str]]:
    board = json.loads((FOLDER / "holdfast.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(("title", "expr"), [*panels(), *((rule["alert"], rule["expr"]) for rule in rules())])
def test_every_named_metric_exists(title: str, expr: str) -> None:
    used = set(_NAME.findall(expr))
    assert used
    assert used <= names()
    assert expr.count("(") == expr.count(")")
    for labels in re.findall(r"by \(([^)]*)\)", expr):
        assert {label.strip() for label in labels.split(",")} <= _LABELS


def test_every_exported_metric_is_on_the_dashboard() -> None:
    shown = {name for _, expr in panels() for name in _NAME.findall(expr)}
    assert {name.removesuffix("_bucket") for name in shown} == {family.name for family in exported()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_rule_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_panels_do_not_lie_on_one_another() -> None:
    places: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / "holdfast.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places
        assert at["x"] + at["w"] <= 24
        places |= cells
