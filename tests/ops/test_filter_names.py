"""Names in filters that exist nowhere, and the names of the audit log."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.core.errors import NotFound
from holdfast.ops.queries.audit_names import AUDITED_ACTIONS, AUDITED_KINDS
from holdfast.ops.queries.filter_names import unknown_name
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import Action
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import job, message, put, register_consumers, sql

_ENTRY = re.compile(r'(?:(?:audited|record)\([\w.]+|switched\("\w+"), "([a-z_-]+)"(?:, "([a-z ]+)")?')


def test_every_action_and_kind_that_the_code_records_is_known() -> None:
    found = set()
    for file in Path(holdfast.__file__).parent.rglob("*.py"):
        found |= set(_ENTRY.findall(file.read_text()))
    actions, kinds = {action for action, _ in found}, {kind for _, kind in found if kind}
    assert {"pause", "resume", "trip", "prune", "put", "catch-up", "finish"} <= actions, "the expression finds them"
    assert actions <= AUDITED_ACTIONS
    assert kinds <= AUDITED_KINDS
    assert {action.value for action in Action} <= AUDITED_ACTIONS


async def test_a_type_that_only_a_prefix_covers_is_unknown_once_every_message_was_read(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register_consumers(store, {"all": ["order.*"], "mail": []})
    await put(store, message("order.yearly"), *(message("order.placed") for _ in range(30)))
    await ops.check_filter(Filter(type="order.yearly"))
    await ops.check_filter(Filter(type="order.*"))
    await ops.check_filter(Filter(type="job.mail"))
    with pytest.raises(NotFound, match=r"no type 'order.placd'"):
        await ops.check_filter(Filter(type="order.placd"))
    monkeypatch.setattr("holdfast.stores.queries.pagination.STRETCH", 5)
    monkeypatch.setattr("holdfast.ops.queries.pages._SCAN_SECONDS", 0)
    await ops.check_filter(Filter(type="order.yearly"))
    with pytest.raises(NotFound, match=r"no type 'ordr.placed'"):
        await ops.check_filter(Filter(type="ordr.placed"))


async def test_what_only_old_deliveries_have_exists(store: Store, ops: Operations) -> None:
    await put(store, job("legacy", queue="old"))
    sql(store, "update {hf}delivery set status = 'delivered', completed_at = run_at")
    await ops.check_filter(Filter(consumers=("legacy",), queue="old"))
    with pytest.raises(NotFound, match="no consumer 'legacyy' in this store; registered: none yet"):
        await ops.check_filter(Filter(consumers=("legacyy",)))


def test_an_unknown_name_is_refused_with_the_nearest_and_at_most_twenty() -> None:
    error = unknown_name("consumer", "mial", ["mail", *(f"c{n:02}" for n in range(30))], "registered")
    assert "did you mean 'mail'? registered: c00, " in str(error)
    assert str(error).endswith(" and 11 more")
