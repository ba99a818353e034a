"""The same failure has the same fingerprint, another one another."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failures.fingerprint import fingerprint, fingerprint_parts, stable_message


def fail(message: str, kind: Callable[[str], BaseException] = ValueError) -> BaseException:
    try:
        raise kind(message)
    except BaseException as exc:  # noqa: BLE001
        return exc


def fail_elsewhere(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as exc:
        return exc


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4711 not found"),
        ("no row 0b2165c4-6c62-41e8-a898-c83747e67abd", "no row 4a21a0c5-ac4d-403a-92d0-080135c6cdf7"),
        ("no user 'ada' here", "no user 'grace hopper' here"),
        ('column "a" is null', 'column "b" is null'),
        ("<Order object at 0x7f3a8c>", "<Order object at 0x55d0ff10>"),
        ("mail to ada@example.com bounced", "mail to g.h+x@navy.mil bounced"),
        ("cannot reach 10.0.0.1:5432", "cannot reach 192.168.7.250:5433"),
        ("cannot reach fe80::1", "cannot reach 2001:db8:0:0:1::9"),
        ("etag 9f86d081884c7d659a2feaa0c55ad015", "etag da39a3ee5e6b4b0d3255bfef95601890"),
        ("at 2026-01-02T03:04:05.678Z", "at 2027-12-31T23:59:59Z"),
        ("took 1.5 s", "took 12,000 s"),
        ("key u_8fk2 expired", "key u_9zz1 expired"),
        ("line\none", "line   one"),
    ],
)
def test_what_varies_between_runs_does_not_count(one: str, other: str) -> None:
    assert fingerprint(fail(one)) == fingerprint(fail(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fail("card declined"), fail("card expired")),
        (fail("x"), fail("x", KeyError)),
        (fail("x"), fail_elsewhere("x")),
    ],
)
def test_another_message_type_or_place_is_another_failure(one: BaseException, other: BaseException) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_an_apostrophe_does_not_swallow_the_message() -> None:
    assert stable_message("can't charge, don't retry") == "can't charge, don't retry"


def test_line_numbers_do_not_count() -> None:
    source = "{}def charge():\n    raise ValueError('x')\n"
    marks = set()
    for lines in ("", "\n" * 50):
        scope: dict[str, Callable[[], None]] = {"__name__": "shop"}  # type: ignore[dict-item]
        exec(source.format(lines), scope)  # noqa: S102
        try:
            scope["charge"]()
        except ValueError as exc:
            marks.add(fingerprint(exc))
    assert len(marks) == 1


def test_the_depth_of_a_recursion_does_not_count() -> None:
    def dig(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        dig(depth - 1)

    marks = set()
    for depth in (3, 30):
        try:
            dig(depth)
        except ValueError as exc:
            marks.add(fingerprint(exc))
    assert len(marks) == 1


def test_only_the_innermost_frames_count() -> None:
    def core() -> None:
        raise ValueError("x")

    def a() -> None:
        core()

    def b() -> None:
        a()

    def c() -> None:
        b()

    def d() -> None:
        c()

    def one() -> None:
        d()

    def other() -> None:
        d()

    marks = set()
    for run in (one, other):
        try:
            run()
        except ValueError as exc:
            marks.add(fingerprint(exc))
    assert len(marks) == 1


def test_the_type_of_a_cause_counts() -> None:
    one, other, none = ValueError("x"), ValueError("x"), ValueError("x")
    one.__cause__, other.__cause__ = KeyError(1), OSError(2)
    assert len({fingerprint(one), fingerprint(other), fingerprint(none)}) == 3


def test_causes_in_a_circle_come_to_an_end() -> None:
    exc = ValueError("x")
    exc.__cause__ = exc
    assert fingerprint(exc) == fingerprint(exc)


def test_a_group_is_known_by_its_members_in_any_order() -> None:
    first, second = ValueError("a"), KeyError("b")
    mark = fingerprint(ExceptionGroup("g", [first, second]))
    assert mark == fingerprint(ExceptionGroup("g", [second, first, first]))
    assert mark != fingerprint(ExceptionGroup("g", [first, first]))


def test_a_fingerprint_is_made_of_type_message_and_frames() -> None:
    assert fingerprint(ValueError("x")) == fingerprint_parts("ValueError", "x", [])

    def inner(number: int) -> int:
        raise ValueError("x")

    def outer() -> None:
        [inner(number) for number in (1, 2)]

    made = ""
    try:
        outer()
    except ValueError as exc:
        made = fingerprint(exc)
    here = f"{__name__}.test_a_fingerprint_is_made_of_type_message_and_frames"
    frames = [here, f"{here}.<locals>.outer", f"{here}.<locals>.inner"]
    assert made == fingerprint_parts("ValueError", "x", frames)


def test_a_fingerprint_is_stable_across_processes() -> None:
    script = (
        "from holdfast.core.failures.fingerprint import fingerprint_parts as f;"
        "print(f('ValueError', 'order 7 of \\'ada\\'', ['shop.charge', 'shop.pay'], ['KeyError']))"
    )
    marks = {
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        .stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    expected = fingerprint_parts("ValueError", "order 9 of 'bob'", ["shop.charge", "shop.pay"], ["KeyError"])
    assert marks == {expected}


def test_parts_are_not_confused_with_each_other() -> None:
    assert fingerprint_parts("a", "", ["b"]) != fingerprint_parts("a", "", [], ["b"])
    assert fingerprint_parts("a", "b", []) != fingerprint_parts("a", "", ["b"])


@given(st.text(), st.text(), st.lists(st.text()))
def test_a_fingerprint_is_sixteen_hexadecimal_characters(kind: str, message: str, frames: list[str]) -> None:
    mark = fingerprint_parts(kind, message, frames)
    assert len(mark) == 16
    assert set(mark) <= set("0123456789abcdef")


@pytest.mark.parametrize("evil", ["'" * 3_000, "a@" * 3_000, "1" * 3_000, ":" * 3_000, "0x" * 3_000, "a." * 3_000])
def test_a_message_made_to_slow_it_down_does_not(evil: str) -> None:
    assert len(stable_message(evil * 10)) <= 6_000


@pytest.mark.parametrize("unit", ["a", "_", "1.", "0:", "'", "a@b.", "ab1-"])
def test_no_message_makes_fingerprinting_slow(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the message takes eight times as long, or a little more."""
    monkeypatch.setattr("holdfast.core.failures.fingerprint._MESSAGE", 200_000)

    def seconds(size: int) -> float:
        def once() -> float:
            started = time.process_time()
            stable_message(unit * (size // len(unit)))
            return time.process_time() - started

        return min(once() for _ in range(3))

    assert seconds(40_000) < 30 * max(seconds(5_000), 0.001)
