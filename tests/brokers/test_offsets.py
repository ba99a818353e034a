"""Which offset may be committed, over every order of handing over, settling and reading again."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.brokers.offsets import Offsets, TrackedOffset

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hand"), st.integers(1, 3)),  # how far on: compaction leaves gaps
        st.tuples(st.just("settle"), st.integers(0, 30)),  # which of all that were ever handed over
        st.tuples(st.just("rewind"), st.integers(0, 30)),  # to which of them
        st.tuples(st.just("reach"), st.integers(0, 3)),  # how far the end lies behind the last record
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_nothing_that_is_not_done_lies_before_the_offset_to_commit(steps: list[tuple[str, int]]) -> None:
    offsets, next_offset = Offsets(0), 0
    ever: list[TrackedOffset] = []
    current: dict[int, TrackedOffset] = {}
    for step, number in steps:
        match step:
            case "hand":
                next_offset += number
                handed = offsets.track(next_offset - 1)
                ever.append(handed)
                current[handed.offset] = handed
            case "reach":
                next_offset += number
                offsets.reach(next_offset)
            case "settle" if ever:
                offsets.settle(ever[number % len(ever)])
            case "rewind" if ever:
                next_offset = ever[number % len(ever)].offset
                offsets.rewind(next_offset)
                current = {offset: handed for offset, handed in current.items() if offset < next_offset}
            case "commit" if (due := offsets.due()) is not None:
                offsets.committed(due)
                assert offsets.due() is None
        waiting = [offset for offset, handed in current.items() if not handed.done]
        if (due := offsets.due()) is not None:
            assert all(offset >= due for offset in waiting)
        assert len(offsets) >= len(waiting)
    for handed in current.values():
        offsets.settle(handed)
    assert len(offsets) == 0


def test_the_offset_moves_past_what_was_done_early_once_the_first_is_done() -> None:
    offsets = Offsets(0)
    first, second, third = offsets.track(5), offsets.track(7), offsets.track(8)
    offsets.settle(second)
    offsets.settle(third)
    assert offsets.due() is None
    offsets.settle(first)
    assert offsets.due() == 9


def test_records_from_before_a_rewind_settle_nothing() -> None:
    offsets = Offsets(0)
    before = [offsets.track(offset) for offset in range(3)]
    again = offsets.track(0)  # the topic was created again
    for handed in before:
        offsets.settle(handed)
    assert offsets.due() is None
    offsets.settle(again)
    assert offsets.due() == 1


def test_a_commit_may_go_back() -> None:
    offsets = Offsets(0)
    offsets.settle(offsets.track(9))
    offsets.committed(10)
    offsets.settle(offsets.track(0))
    assert offsets.due() == 1


def test_the_end_of_a_partition_is_committed_after_the_last_record_is_done() -> None:
    offsets = Offsets(0)
    last = offsets.track(4)
    offsets.reach(7)  # two records of an aborted transaction
    assert offsets.due() is None
    offsets.settle(last)
    assert offsets.due() == 7
    offsets.reach(7)
    assert (offsets.due(), len(offsets)) == (7, 0)
