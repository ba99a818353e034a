"""Payloads by field: comparison of two, and the inputs that only failures have."""

import pytest

from holdfast.interfaces.presentation.payloads import FieldPair, compare, fields, input_fields


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("{}", {"$": "{}"}),
        ("7", {"$": "7"}),
        ('{"a": {"b": [1, {"c": null}]}, "d": []}', {"a.b.0": "1", "a.b.1.c": "null", "d": "[]"}),
        ("no json", {}),
        ('{"$encrypted": {"key": "2026-11", "data": "q83v"}}', {}),
        ('"' + "x" * 1_000_001 + '"', {}),
    ],
)
def test_a_payload_has_its_values_by_path(payload: str, expected: dict[str, str]) -> None:
    assert fields(payload) == expected


def test_a_payload_with_many_fields_is_bounded() -> None:
    assert len(fields("[" + ",".join("1" for _ in range(5000)) + "]")) == 200


def test_fields_that_differ_come_first_and_missing_ones_are_none() -> None:
    assert compare('{"same": 1, "sku": "cup", "old": 2}', '{"same": 1, "sku": "kettle", "new": 3}') == [
        FieldPair("sku", '"cup"', '"kettle"'),
        FieldPair("old", "2", None),
        FieldPair("new", None, "3"),
        FieldPair("same", "1", "1"),
    ]


def test_a_value_that_all_failures_have_and_no_success_has_is_suspect() -> None:
    failed = ['{"id": 1, "sku": "kettle", "shop": "eu"}', '{"id": 2, "sku": "kettle", "shop": "eu"}']
    found = input_fields(failed, ['{"id": 3, "sku": "cup", "shop": "eu"}'])
    assert [(one.path, one.is_suspect) for one in found] == [("sku", True), ("shop", False), ("id", False)]
    assert found[0].failed == (('"kettle"', 2),)
    assert found[0].delivered == (('"cup"', 1),)


@pytest.mark.parametrize(
    ("failed", "delivered"),
    [
        (['{"sku": "kettle"}'], ['{"sku": "cup"}']),  # one failure shows nothing
        (['{"sku": "kettle"}', '{"sku": "kettle"}'], []),  # nothing to compare with
        (['{"sku": "kettle"}', '{"sku": "cup"}'], ['{"sku": "pot"}']),
        (['{"sku": "kettle"}', '{"sku": "kettle"}', "{}"], ['{"sku": "pot"}']),
        (['{"sku": "kettle"}', '{"sku": "kettle"}'], ['{"sku": "pot"}', '{"sku": "kettle"}']),
    ],
)
def test_other_values_are_not_suspect(failed: list[str], delivered: list[str]) -> None:
    assert not any(one.is_suspect for one in input_fields(failed, delivered))
