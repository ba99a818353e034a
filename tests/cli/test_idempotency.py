"""`holdfast idempotency`: looking at keys and letting go of one."""

import json
from datetime import timedelta

import pytest

from holdfast.stores.integrations.idempotency import Reservation, StoredResponse, reserve, store_response
from tests.cli.conftest import Shop

LEASE, DAY = timedelta(minutes=5), timedelta(days=1)
STARTED = Reservation("tenant-1", "k-1", "hash", "owner-1", "POST", "/orders")
DONE = Reservation("tenant-2", "k-2", "hash", "owner-2", "PATCH", "/orders/\x1b[31m7")


@pytest.fixture(params=["shop", "postgres_shop"])
def keys(request: pytest.FixtureRequest) -> Shop:
    """A shop with a key in use and one that was answered."""
    either: Shop = request.getfixturevalue(request.param)
    either.ask(reserve(STARTED, LEASE, DAY))
    either.ask(reserve(DONE, LEASE, DAY))
    either.ask(store_response(DONE, StoredResponse(201, (("content-type", "application/json"),), b'{"id": 7}')))
    return either


def test_keys_are_listed_by_scope_and_state(keys: Shop) -> None:
    table = keys.run("idempotency", "list").stdout
    assert "tenant-1" in table
    assert "PATCH" in table
    assert "\x1b" not in table
    only = json.loads(keys.run("idempotency", "list", "--status", "completed", "--format", "json").stdout)
    assert [(one["scope"], one["key"], one["response_status"]) for one in only] == [("tenant-2", "k-2", 201)]
    assert json.loads(keys.run("idempotency", "list", "--scope", "tenant-3", "--format", "json").stdout) == []


def test_a_key_is_shown_with_its_answer(keys: Shop) -> None:
    shown = keys.run("idempotency", "show", "tenant-2", "k-2").stdout
    assert '{"id": 7}' in shown
    assert "201, 9 bytes" in shown
    detail = json.loads(keys.run("idempotency", "show", "tenant-2", "k-2", "--format", "json").stdout)
    assert detail["body"] == '{"id": 7}'
    assert "lease" in keys.run("idempotency", "show", "tenant-1", "k-1").stdout
    assert keys.run("idempotency", "show", "tenant-1", "k-2").exit_code == 3


def test_the_token_of_the_reserving_request_is_not_printed(keys: Shop) -> None:
    """It fences the reservation. No operation takes it, so an operator has no use for it."""
    listed = keys.run("idempotency", "list", "--format", "json").stdout
    shown = keys.run("idempotency", "show", "tenant-1", "k-1", "--format", "json").stdout
    assert (len(json.loads(listed)), json.loads(shown)["record"]["key"]) == (2, "k-1")
    assert "owner" not in listed + shown


def test_a_stuck_key_is_released_and_an_answered_one_only_by_force(keys: Shop) -> None:
    assert keys.run("idempotency", "release", "tenant-1", "k-1", "--reason", "stuck").exit_code == 0
    assert keys.run("idempotency", "release", "tenant-1", "k-1").exit_code == 3
    refused = keys.run("idempotency", "release", "tenant-2", "k-2")
    assert refused.exit_code == 4
    assert "force" in refused.stderr
    assert keys.run("idempotency", "release", "tenant-2", "k-2", "--force").exit_code == 0
    assert json.loads(keys.run("idempotency", "list", "--format", "json").stdout) == []
    audit = json.loads(keys.run("audit", "list", "--format", "json", "--limit", "2").stdout)
    assert [one["target"] for one in audit] == ["tenant-2 k-2", "tenant-1 k-1"]


def test_expired_keys_are_pruned_with_the_rest(keys: Shop) -> None:
    keys.ask(reserve(Reservation("tenant-3", "old", "hash", "owner-3"), timedelta(0), timedelta(milliseconds=-1000)))
    assert "1 idempotency key" in keys.run("prune", "--older-than", "30d", "--dry-run").stderr
    assert "1 idempotency key" in keys.run("prune", "--older-than", "30d", "--yes").stderr
    assert len(json.loads(keys.run("idempotency", "list", "--format", "json").stdout)) == 2
