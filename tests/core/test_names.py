"""Names, types and patterns: what is let in, and what is said to the rest."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidName
from holdfast.core.events.pattern import candidates, check_pattern, matches
from holdfast.core.values.names import check_name, check_schema, check_type

HOSTILE = ["'", '"', "$$", "\n", "\x00", "\ud800", " ", ";", "\\", "%", "*", "é", "\uff11", "\u202e"]


@pytest.mark.parametrize("kind", ["queue", "consumer", "job", "projector"])
@pytest.mark.parametrize("name", ["a", "mail", "send_receipt", "_x", "9", "a:b/c-d", "A" * 100])
def test_an_ordinary_name_is_returned_as_it_is(kind: str, name: str) -> None:
    assert check_name(kind, name) == name


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("kind", ["queue", "consumer", "source", "schema", "type", "worker"])
@pytest.mark.parametrize("form", ["a{}b", "{}b", "a{}"])
def test_a_hostile_character_is_refused_in_every_name(kind: str, bad: str, form: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(kind, form.format(bad))
    assert repr(bad[0]) in str(caught.value)
    assert kind in str(caught.value)


@pytest.mark.parametrize("kind", ["schema", "queue", "consumer", "job", "command", "projector"])
def test_a_dot_is_refused_where_a_name_may_end_up_in_sql(kind: str) -> None:
    with pytest.raises(InvalidName, match=re.escape("character '.' at position 2")):
        check_name(kind, "a.b")


def test_sources_and_types_may_hold_dots() -> None:
    assert check_name("source", "com.acme.shop") == "com.acme.shop"
    assert check_name("type", "order.placed") == "order.placed"


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("queue", "", "empty"),
        ("queue", "x" * 101, "101 characters"),
        ("queue", "-x", "'-' at position 1 is not allowed there"),
        ("queue", 7, "is of type int"),
        ("queue", None, "is of type NoneType"),
        ("queue", "mail\n", r"'\\n' at position 5"),
        ("schema", 7, "is of type int"),
        ("type", None, "is of type NoneType"),
        ("queue", "a b", "' ' at position 2 is not allowed;"),
        ("schema", "Holdfast", "'H' at position 1"),
        ("schema", "1a", "'1' at position 1"),
        ("schema", "a-b", "'-' at position 2"),
        ("schema", "x" * 64, "64 characters"),
        ("schema", 'a";drop schema public', "'\"' at position 2"),
        ("type", "", "empty"),
        ("type", ".a", "empty part"),
        ("type", "a.", "empty part"),
        ("type", "a..b", "empty part"),
        ("type", "a" * 101, "101 characters"),
        ("type", "a.b c", "' ' at position 4"),
        ("source", ".a", "'.' at position 1"),
    ],
)
def test_a_refusal_says_what_is_wrong(kind: str, name, problem: str) -> None:
    with pytest.raises(InvalidName, match=problem):
        check_name(kind, name)


def test_the_longest_names_are_accepted() -> None:
    assert check_name("type", "a" * 100)
    assert check_name("source", "a" * 100)
    assert check_name("schema", "a" * 63)


def test_a_refusal_of_a_huge_name_is_short() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("queue", "x" * 10_000_000)
    assert len(str(caught.value)) < 400


@given(st.text())
def test_a_schema_that_passes_needs_no_quotes(value: str) -> None:
    try:
        check_schema(value)
    except InvalidName:
        return
    assert re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", value)


segments = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_:/-]{0,8}", fullmatch=True)
types = st.lists(segments, min_size=1, max_size=6).map(".".join)


@given(types)
def test_a_type_of_ordinary_parts_is_accepted(value: str) -> None:
    assert check_type(value) == value


@pytest.mark.parametrize("pattern", ["*", "order.placed", "order.*", "a.b.c.*", "order"])
def test_a_pattern_is_a_type_a_prefix_or_everything(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern", ["", ".*", "order*", "order.*.x", "**", "*.placed", "order..*", "a.*\n", None, "a'"]
)
def test_another_pattern_is_refused(pattern) -> None:
    with pytest.raises(InvalidName, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "type", "expected"),
    [
        ("order.placed", "order.placed", True),
        ("order.placed", "order.placed.late", False),
        ("order.*", "order.placed", True),
        ("order.*", "order.line.added", True),
        ("order.*", "order", False),
        ("order.*", "orders.placed", False),
        ("order.line.*", "order.placed", False),
        ("*", "order", True),
        ("*", "order.placed", True),
    ],
)
def test_a_pattern_matches_what_lies_below_it(pattern: str, type: str, expected: bool) -> None:
    assert matches(pattern, type) is expected


def test_candidates_run_from_the_exact_type_to_everything() -> None:
    assert candidates("a.b.c") == ("a.b.c", "a.b.*", "a.*", "*")
    assert candidates("a") == ("a", "*")


@given(types, types)
def test_a_pattern_matches_exactly_if_it_is_a_candidate(one: str, other: str) -> None:
    found = candidates(one)
    assert len(set(found)) == len(found)
    for pattern in {*candidates(other), *found}:
        assert check_pattern(pattern)
        assert matches(pattern, one) is (pattern in found)
