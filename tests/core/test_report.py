"""Any exception of a handler can be recorded (FAULTS 37, 39)."""

import sys
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failures.exception_groups import leaves
from holdfast.core.failures.report import CUT_OFF, LEASE_EXPIRED, MESSAGE_LIMIT, TRACE_LIMIT, ErrorReport, report
from holdfast.core.values.text import storable


def raised(make: Callable[[], BaseException]) -> BaseException:
    try:
        raise make()
    except BaseException as exc:  # noqa: BLE001
        return exc


def is_storable(made: ErrorReport) -> bool:
    texts = (made.type, made.message, made.trace, made.fingerprint)
    bounded = len(made.type) <= 300 and len(made.message) <= MESSAGE_LIMIT and len(made.trace) <= TRACE_LIMIT
    return bounded and len(made.fingerprint) == 16 and all(type(text) is str and storable(text) for text in texts)


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return b"x"  # type: ignore[return-value]


class CauseRaises(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise StrRaises


def cyclic() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain() -> BaseException:
    exc: BaseException = ValueError("root")
    for number in range(100_000):
        link = ValueError(f"link {number}")
        link.__cause__ = exc
        exc = link
    return exc


def nested_group() -> BaseException:
    exc: Exception = ValueError("core")
    for _ in range(5_000):
        exc = ExceptionGroup("shell", [exc])
    return exc


def noted() -> BaseException:
    exc = ValueError("x")
    exc.__notes__ = ["n" * 1_000_000, StrRaises(), "\x00"] * 100  # type: ignore[list-item]
    return exc


def odd_notes() -> BaseException:
    exc = ValueError("x")
    exc.__notes__ = 7  # type: ignore[assignment]
    return exc


def recursion() -> BaseException:
    def dig() -> None:
        dig()

    try:
        dig()
    except RecursionError as exc:
        return exc
    raise AssertionError


def wordy_chain() -> BaseException:
    exc: BaseException = ValueError("root")
    for _ in range(15):
        link = ValueError("x" * 5_000)
        link.__cause__ = exc
        exc = link
    return exc


HOSTILE: list[Callable[[], BaseException]] = [
    lambda: ValueError("x" * 50_000_000),
    lambda: ValueError("a\x00b\ud800c"),
    lambda: ValueError(float("nan"), 2**64),
    lambda: ValueError(b"\xff" * 1_000_000),
    StrRaises,
    StrExits,
    StrIsNoText,
    CauseRaises,
    cyclic,
    long_chain,
    wordy_chain,
    nested_group,
    noted,
    odd_notes,
    recursion,
    lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(50_000)]),
    lambda: BaseExceptionGroup("mixed", [KeyboardInterrupt(), StrRaises()]),
    lambda: type("X" * 10_000, (Exception,), {"__module__": "\x00"})(),
    lambda: SyntaxError("bad", ("f.py", 1, 1, "x" * 1_000_000)),
    lambda: UnicodeDecodeError("utf-8", b"\xff" * 1000, 0, 1, "bad"),
    lambda: KeyError("\ud800"),
    lambda: OSError(2, "gone", "\udcff"),
]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_hostile_failure_is_recorded_within_bounds(make: Callable[[], BaseException]) -> None:
    made = report(raised(make))
    assert is_storable(made)
    assert ("cannot be rendered" in made.trace) is (make is CauseRaises)


def test_a_report_names_type_message_place_and_cause() -> None:
    def inner() -> None:
        raise KeyError("id")

    def outer() -> None:
        try:
            inner()
        except KeyError as exc:
            raise ValueError("no id given") from exc

    made = report(raised_by(outer))
    assert (made.type, made.message) == ("ValueError", "no id given")
    cause, _, last = made.trace.partition("\nThe above exception was the direct cause of the following exception:\n")
    assert "KeyError: 'id'" in cause
    assert "in inner" in cause
    assert last.endswith("ValueError: no id given\n")
    assert "left out" not in made.trace
    assert "in outer" in last


def raised_by(run: Callable[[], None]) -> Exception:
    try:
        run()
    except Exception as exc:  # noqa: BLE001
        return exc
    raise AssertionError


def test_a_context_is_shown_and_a_suppressed_one_is_not() -> None:
    def careless(*, hide: bool) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            if hide:
                raise ValueError("second") from None
            raise ValueError("second")  # noqa: B904

    shown = report(raised_by(partial(careless, hide=False))).trace
    hidden = report(raised_by(partial(careless, hide=True))).trace
    assert "During handling" in shown
    assert "During handling" not in hidden


def test_the_members_of_a_group_are_shown_with_their_places() -> None:
    def part() -> None:
        raise KeyError("part 1")

    def whole() -> None:
        raise ExceptionGroup("several", [raised_by(part), ValueError("part 2")])

    trace = report(raised_by(whole)).trace
    assert "several" in trace
    assert "in part" in trace
    assert "ValueError: part 2" in trace


@pytest.mark.parametrize(("links", "left_out"), [(19, False), (20, True)])
def test_a_long_chain_says_that_it_was_cut(links: int, left_out: bool) -> None:
    exc: BaseException = KeyError("root")
    for _ in range(links):
        link = KeyError("link")
        link.__cause__ = exc
        exc = link
    trace = report(exc).trace
    assert ("older causes left out" in trace) is left_out
    assert ("root" in trace) is not left_out
    assert trace.count("KeyError") == 20


@pytest.mark.parametrize(("members", "left_out"), [(5, False), (6, True)])
def test_a_large_group_says_that_it_was_cut(members: int, left_out: bool) -> None:
    trace = report(ExceptionGroup("g", [KeyError("member")] * members)).trace
    assert ("further members left out" in trace) is left_out
    assert trace.count("KeyError") == 5


def test_a_huge_message_does_not_push_the_frames_out_of_the_trace() -> None:
    exc = raised(lambda: ValueError("x" * 1_000_000))
    assert "in raised" in report(exc).trace
    assert len(report(exc).trace) < 3_000
    exc.add_note("y" * 1_000_000)
    assert "in raised" in report(exc).trace
    assert len(report(exc).trace) < 5_000


def test_an_exception_without_a_message_is_its_type() -> None:
    assert report(ValueError()).trace == "ValueError\n"


def test_the_leaves_of_a_group_are_bounded_and_in_order() -> None:
    first, second, third = ValueError(1), ValueError(2), ValueError(3)
    nested = ExceptionGroup("g", [first, ExceptionGroup("h", [second]), third])
    assert list(leaves(nested, 9)) == [first, second, third]
    assert list(leaves(nested, 2)) == [first, second]
    assert list(leaves(first, 2)) == [first]


def test_notes_are_shown() -> None:
    exc = ValueError("x")
    exc.add_note("while charging order 7")
    assert "while charging order 7" in report(exc).trace


def test_a_deep_stack_keeps_both_of_its_ends() -> None:
    def dig(depth: int) -> None:
        if depth:
            one_way(depth - 1) if depth % 2 else other_way(depth - 1)
        else:
            raise ValueError("bottom")

    def one_way(depth: int) -> None:
        dig(depth)

    def other_way(depth: int) -> None:
        dig(depth)

    def entrance() -> None:
        dig(200)

    trace = report(raised_by(entrance)).trace
    assert "in entrance" in trace
    assert "frames left out" in trace
    assert trace.endswith("ValueError: bottom\n")


def test_a_trace_shows_no_local_values() -> None:
    def pay() -> None:
        password = "hunter" + str(2)
        raise ValueError(len(password))

    assert "hunter2" not in report(raised_by(pay)).trace


def test_an_exception_that_was_returned_and_never_raised_is_recorded() -> None:
    made = report(ValueError("returned"))
    assert made.trace == "ValueError: returned\n"


@given(st.text())
def test_any_message_can_be_stored(message: str) -> None:
    assert is_storable(report(ValueError(message)))


def test_an_expired_lease_has_its_own_report() -> None:
    assert LEASE_EXPIRED.message == "worker lease expired"
    assert is_storable(LEASE_EXPIRED)
    assert is_storable(CUT_OFF)
    assert LEASE_EXPIRED.fingerprint != CUT_OFF.fingerprint


def test_reporting_leaves_the_recursion_limit_alone() -> None:
    before = sys.getrecursionlimit()
    report(recursion())
    assert sys.getrecursionlimit() == before


def test_control_characters_of_an_exception_are_escaped() -> None:
    shown = report(ValueError("paid\x1b[2J\x9b31m\u202e\r\nnext line"))
    assert shown.message == "paid\\x1b[2J\\x9b31m\\u202e\\r\nnext line"
    assert "\x1b" not in shown.trace
    assert "paid\\x1b[2J" in shown.trace
