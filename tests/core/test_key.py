"""Keys: stable and validated; their parts can be distinguished."""

from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidKey
from holdfast.core.key import MAX_KEY, check_key, job_key, key

characters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=":")
parts = st.text(characters, min_size=1, max_size=20)
operations = st.lists(parts, min_size=1, max_size=4).map(":".join)


def test_a_key_is_its_parts_joined_by_colons() -> None:
    assert key("order", "u_1", 42, "cancel", "v1") == "order:u_1:42:cancel:v1"
    assert key("order", UUID(int=1), 42, "cancel:refund", 2) == f"order:{UUID(int=1)}:42:cancel:refund:2"


@given(parts, parts, parts, operations, parts)
def test_a_key_is_read_back_into_its_parts(domain: str, user: str, entity: str, operation: str, version: str) -> None:
    first, second, third, *rest, last = key(domain, user, entity, operation, version).split(":")
    assert (first, second, third, ":".join(rest), last) == (domain, user, entity, operation, version)


@given(st.tuples(parts, parts, parts, operations, parts), st.tuples(parts, parts, parts, operations, parts))
def test_different_parts_never_make_the_same_key(one, other) -> None:
    assume(one != other)
    assert key(*one) != key(*other)


@given(st.tuples(parts, parts, parts, operations, parts), parts, parts, parts)
def test_a_job_key_is_never_mistaken_for_another_key(one, job_id: str, operation: str, entity: str) -> None:
    assert key("job", *one[1:]) != job_key(job_id, operation, entity)


def test_a_job_key_names_job_operation_and_entity() -> None:
    assert job_key(9, "charge", "invoice-3") == "job:9:charge:invoice-3"


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_only_the_operation_may_hold_a_colon(position: int) -> None:
    given_parts = ["order", "u", "e", "op", "v1"]
    given_parts[position] = "a:b"
    with pytest.raises(InvalidKey, match="colon"):
        key(*given_parts)


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("bad", ["", None, True, 1.5, "a\n", "\x00"])
def test_a_part_that_is_empty_or_odd_is_refused(position: int, bad) -> None:
    given_parts = ["order", "u", "e", "op", "v1"]
    given_parts[position] = bad
    with pytest.raises(InvalidKey):
        key(*given_parts)


@pytest.mark.parametrize("operation", [":", "a:", ":a", "a::b"])
def test_an_operation_has_no_empty_parts(operation: str) -> None:
    with pytest.raises(InvalidKey, match="empty part"):
        key("order", "u", "e", operation, "v1")


@pytest.mark.parametrize("bad", [("a:b", "op", "e"), ("1", "o:p", "e"), ("1", "op", "a:b"), ("", "op", "e")])
def test_no_part_of_a_job_key_holds_a_colon_or_nothing(bad: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidKey):
        job_key(*bad)


@pytest.mark.parametrize("value", ["a", "order 7 / é 😀", "x" * MAX_KEY, "a:b", " "])
def test_any_bounded_text_is_a_key(value: str) -> None:
    assert check_key(value) == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "0 characters"),
        ("x" * (MAX_KEY + 1), "501 characters"),
        ("a\x00", "position 2"),
        ("a\nb", "position 2"),
        ("\x7f", "position 1"),
        ("\x85", "position 1"),
        ("\ud800", "position 1"),
        (7, "is of type int"),
        (None, "is of type NoneType"),
        (b"x", "is of type bytes"),
    ],
)
def test_what_is_no_key_is_refused_with_a_reason(value, problem: str) -> None:
    with pytest.raises(InvalidKey, match=problem):
        check_key(value)


def test_a_job_key_with_an_invalid_part_is_refused() -> None:
    with pytest.raises(InvalidKey, match="not printable"):
        job_key(1, "op\n", "e")
    with pytest.raises(InvalidKey, match="characters"):
        job_key(1, "op", "e" * 500)


def test_a_key_made_of_long_parts_is_refused() -> None:
    with pytest.raises(InvalidKey, match="characters"):
        key("order", "u" * 500, "e", "op", "v1")
