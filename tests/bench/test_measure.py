import json

import pytest

from bench.environment import Missing
from bench.measure import Measurement, Results, Spread, quantile, spread
from bench.revisions import at_revision
from bench.subject import Kind
from bench.suites.revisions import ratios
from tests.bench.build import results


def test_a_spread_is_the_median_with_the_lowest_and_the_highest() -> None:
    assert spread([3.0, 1.0, 10.0, 2.0, 4.0]) == Spread(3.0, 1.0, 10.0, 5)
    assert spread([2.0, 4.0]) == Spread(3.0, 2.0, 4.0, 2)
    assert spread([]) is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_quantile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected


def test_a_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no value"):
        quantile([], 0.5)


def test_rounds_are_gathered_by_suite_subject_figure_and_point() -> None:
    found = results(
        ("growth", "holdfast", "payload", 10.0, 100),
        ("growth", "holdfast", "payload", 5.0, 1000),
        ("growth", "holdfast", "payload", 20.0, 100),
        ("growth", "other", "payload", 7.0, 100),
    )
    assert found.spread("growth", "holdfast", "payload", 100) == Spread(15.0, 10.0, 20.0, 2)
    assert found.spread("growth", "holdfast", "payload") is None
    assert found.subjects("growth", "payload") == ["holdfast", "other"]
    assert found.points("growth", "holdfast", "payload") == [100, 1000]


def test_results_survive_json_and_a_problem_is_named_once() -> None:
    found = results(("calls", "holdfast", "async", 1.5))
    found.blame("drain", "peer", "missing", "needs Python 3.14")
    found.blame("drain", "peer", "missing", "needs Python 3.14")
    assert len(found.problems) == 1
    assert Results.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_comparison_divides_the_medians_of_the_working_tree_by_those_of_each_revision() -> None:
    found = Results()
    for subject, rates in (("holdfast", (90, 110, 400)), ("holdfast/c3ba26e4", (100, 100, 100))):
        found.add(*(Measurement("revisions-sqlite", subject, "drain", rate, "/s", n) for n, rate in enumerate(rates)))
    assert ratios(found) == [("revisions-sqlite", "drain", "holdfast/c3ba26e4", 1.1)]


def test_a_revision_that_does_not_exist_is_named() -> None:
    with pytest.raises(Missing, match=r"no such revision|git failed"):
        at_revision("no-such-branch", Kind.SQLITE)
