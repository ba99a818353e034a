import pytest

from bench.check import Wrong, check
from bench.suites.growth import together
from bench.suites.memory import peaks


def test_a_run_that_handled_and_settled_each_once_is_right() -> None:
    check(3, [2, 0, 1], {"settled": 3, "twice": 0})
    check(3, [2, 0, 1], {})


@pytest.mark.parametrize(
    ("ids", "settled", "reason"),
    [
        ([0, 1], {}, "1 of 3 were never handled"),
        ([0, 1, 2, 2], {}, "1 of 3 were handled again"),
        ([0, 1, 2, 3], {}, "1 ids were handled that were never published"),
        ([0, 1, 2], {"settled": 2}, "the store holds 2 settled of 3"),
        ([0, 1, 2], {"settled": 3, "twice": 1}, "settled or tried twice"),
    ],
)
def test_a_run_that_lost_or_repeated_one_is_wrong(ids: list[int], settled: dict[str, int], reason: str) -> None:
    with pytest.raises(Wrong, match=reason):
        check(3, ids, settled)


def test_the_joint_rate_counts_only_while_all_were_at_work() -> None:
    early = [0.0, 1.0, 2.0, 3.0, 4.0]
    late = [2.0, 3.0, 4.0, 5.0]
    assert together([early, late]) == 6 / 2.0


def test_peaks_are_the_highest_of_each_part() -> None:
    assert peaks([1, 5, 2, 2, 3, 3, 9, 1, 4, 4], 5) == [5, 2, 3, 9, 4]
    assert peaks([7], 5) == [7] * 5
