"""The interval of an expensive query is proportional to its duration, within limits."""

import pytest

from holdfast.core.query_interval import next_query


@pytest.mark.parametrize(
    ("took", "after"),
    [(0.0, 1.0), (0.1, 2.0), (1.0, 20.0), (1.5, 30.0), (3600.0, 30.0)],
    ids=["cheap", "expensive", "very expensive", "at the limit", "process suspended for an hour"],
)
def test_a_query_is_repeated_after_a_multiple_of_its_duration_within_limits(took: float, after: float) -> None:
    assert next_query(100.0, 100.0 + took, factor=20.0, longest=30.0, shortest=1.0) == pytest.approx(100 + took + after)
