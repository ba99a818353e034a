"""Columns of lists of deliveries."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.core.delivery import Status
from holdfast.interfaces.cli.deliveries.columns import delivery_columns
from holdfast.ops.doctor.work_checks import _error as failure_text
from holdfast.ops.doctor.workflow_checks import _text as step_text
from holdfast.ops.service import SyncOperations
from holdfast.runtime.store_factory import open_store
from holdfast.stores.queries.query import Filter, deliveries
from tests.cli.conftest import Shop


@pytest.mark.parametrize(
    ("status", "shown"),
    [(Status.FAILED, "OSError: smtp 421"), (Status.PENDING, "OSError: smtp 421"), (Status.DELIVERED, "")],
)
def test_an_error_has_its_class_and_a_delivered_delivery_shows_none(shop: Shop, status: Status, shown: str) -> None:
    store = open_store(shop.dsn)
    one = store.run_sync(deliveries(Filter(ids=(shop.dead[0],)), 1))[0]
    store.close_sync()
    row = replace(one.delivery, status=status, error_type="OSError", last_error="smtp 421")
    cells = {column.title: column.text(replace(one, delivery=row)) for column in delivery_columns(datetime.now(UTC))}
    assert cells["ERROR"] == shown


def test_an_error_that_is_cut_ends_with_an_ellipsis(shop: Shop) -> None:
    store = open_store(shop.dsn)
    (group, *_) = SyncOperations(store).failure_groups(limit=1)
    store.close_sync()
    shown = failure_text(replace(group, last_error="payment was declined " * 20, frame=None))
    assert shown.endswith("…")
    assert len(shown) < 200
    assert step_text("payment was declined " * 20).endswith("…")


def test_a_delivery_without_an_error_has_an_empty_one(shop: Shop) -> None:
    listed = shop.run("deliveries", "list", "--consumer", "receipts").stdout
    assert "None" not in listed
