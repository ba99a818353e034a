"""`run_deliveries` runs handlers inside the transaction of a test."""

from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from holdfast import RetryPolicy
from holdfast.django.testing import run_deliveries, transaction_harness
from holdfast.stores.queries.query import messages
from tests.django.conftest import project


def execute(text: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


def declare(hf: Any) -> Any:
    failures = iter([True])

    @hf.job(retry=RetryPolicy.exponential(attempts=3))
    def place(id: int) -> None:
        if next(failures, None):
            raise ConnectionError("the first run fails")
        with transaction.atomic():
            execute(f"insert into holdfast_test_orders values ({id})")
            hf.sync.publish("order.placed", {"id": id})

    @hf.consumer("order.placed")
    async def bill(order: dict[str, Any]) -> None:
        await sync_to_async(execute)(f"insert into holdfast_test_orders values ({order['id'] + 1})")

    return place


def check_deliveries_in_a_transaction(hf: Any) -> None:
    place = declare(hf)
    with transaction.atomic():
        execute("create table holdfast_test_orders (id integer)")
        place.sync.enqueue(7)
        run_deliveries(hf)
        assert execute("select id from holdfast_test_orders order by id") == [(7,), (8,)]
        with transaction_harness(hf) as harness:
            harness.assert_published("order.placed", id=7)
            harness.assert_enqueued(place, id=7)
        transaction.set_rollback(True)
    assert hf.handlers["place"].is_async is False


def test_handlers_run_in_the_transaction_of_the_test_and_nothing_is_left(hf: Any) -> None:
    check_deliveries_in_a_transaction(hf)
    assert hf.store.run_sync(messages()) == []


def test_a_database_in_memory_has_the_same_support() -> None:
    for hf in project("sqlite:///x", NAME="file:memorydb_holdfast?mode=memory&cache=shared"):
        hf.store.migrate()
        check_deliveries_in_a_transaction(hf)
        hf.sync.publish("order.placed", {"id": 1})
        assert len(hf.store.run_sync(messages())) == 1
