"""Filters: parsed and checked once for the CLI, the HTTP API, the console and MCP."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.presentation.filters import (
    as_cli_options,
    delivery_filter,
    parse_filter,
    parse_id,
    parse_target,
    parse_time,
    parse_timestamp,
)
from holdfast.stores.queries.query import Filter

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
ID = "01a1de9e-3feb-7141-acf8-3a160ca18709"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("2026-11-15T09:00Z", NOW - timedelta(days=1)),
        ("2026-11-15T09:00", NOW - timedelta(days=1)),
        ("2026-11-15T10:00+01:00", NOW - timedelta(days=1)),
    ],
)
def test_a_time_is_an_age_or_an_iso_time_in_utc_unless_it_has_an_offset(text: str, parsed: datetime) -> None:
    assert parse_time(text, NOW) == parsed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Filter()),
        ({"status": "pending,in_flight"}, Filter(statuses=(Status.PENDING, Status.IN_FLIGHT))),
        ({"status": "failed"}, Filter(statuses=(Status.FAILED,), discarded=False)),
        ({"status": "discarded"}, Filter(discarded=True)),
        ({"consumer": "billing, stock,"}, Filter(consumers=("billing", "stock"))),
        ({"type": "*", "queue": "", "group": "97"}, Filter(group="97")),
        ({"since": "2h"}, Filter(since=NOW - timedelta(hours=2))),
    ],
)
def test_a_filter_of_a_url_has_the_meaning_of_the_cli_options(given: dict[str, str], expected: Filter) -> None:
    assert parse_filter(given, NOW) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [("waiting", Filter(dead=True)), ("replayed", Filter(replayed=True)), ("discarded", Filter(discarded=True))],
)
def test_dead_letters_are_waiting_replayed_or_discarded(state: str, expected: Filter) -> None:
    assert delivery_filter(state=state) == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"status": "gone"},
            "'gone' is not a valid state; write one of pending, in_flight, delivered, failed, discarded",
        ),
        ({"status": "failed,discarded"}, "cannot be combined with other states"),
        ({"since": "1h", "until": "2h"}, "`since` must be before `until`"),
        ({"since": "yesterday"}, r"'yesterday' is neither an age \(2h, 3d\) nor a time"),
    ],
)
def test_an_invalid_filter_names_the_value_and_what_to_write(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_filter(given, NOW)


@pytest.mark.parametrize("text", ["", "01a1de9e", f"{ID}0", f"urn:uuid:{ID}", ID.replace("-", "")])
def test_an_id_is_a_full_uuid(text: str) -> None:
    assert str(parse_id(f" {ID.upper()} ")) == ID
    with pytest.raises(ConfigurationError, match="copy the full id"):
        parse_id(text)


@pytest.mark.parametrize(
    "text", ["2h", "2026-11-15", "2026-11-15T09:00:00", "2026-02-30T09:00:00Z", "٢026-11-15T09:00:00Z"]
)
def test_a_timestamp_is_complete_and_has_an_offset(text: str) -> None:
    assert parse_timestamp("2026-11-16t10:00:00.123456789+01:00") == NOW + timedelta(microseconds=123456)
    with pytest.raises(ConfigurationError, match="must be a time with an offset"):
        parse_timestamp(text)


def test_the_target_of_an_audit_entry_is_a_delivery_id_or_a_kind_with_a_name() -> None:
    assert parse_target(ID.upper()) == ("delivery", ID)
    assert parse_target("idempotency:user:7/k") == ("idempotency", "user:7/k")
    for text in ("queue", ":mail", "queue:"):
        with pytest.raises(ConfigurationError, match="such as queue:mail"):
            parse_target(text)


def test_the_filter_of_a_page_is_shown_as_cli_options() -> None:
    given = {"consumer": "billing, stock", "error_type": "KeyError", "type": "order.*", "page": "2"}
    assert as_cli_options(given) == " --consumer billing --consumer stock --type 'order.*' --error-type KeyError"
