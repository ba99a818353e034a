"""`run_deliveries` runs handlers inside the transaction of a test."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from holdfast import ConfigurationError, RetryPolicy
from holdfast.django.test_database import table_names
from holdfast.django.testing import delete_everything, run_deliveries, transaction_harness
from holdfast.stores.queries.query import messages
from tests.django.conftest import project

pytestmark = pytest.mark.usefixtures("test_environment")


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


def test_only_what_is_due_runs_without_advancing_the_clock(hf: Any) -> None:
    ran: list[int] = []

    @hf.job(retry=RetryPolicy.fixed("1h", attempts=2))
    def send(to: int) -> None:
        ran.append(to)
        if to == 1 and len(ran) == 1:
            raise ConnectionError("the first run fails")

    with transaction.atomic():
        send.sync.enqueue(1)
        send.using(delay="1d").sync.enqueue(2)
        run_deliveries(hf, advance=False)
        assert ran == [1]
        run_deliveries(hf, advance=False)
        assert ran == [1]
        run_deliveries(hf)
        assert ran == [1, 1, 2]
        transaction.set_rollback(True)


def test_deliveries_can_run_inside_a_harness_and_its_assertions_see_them(hf: Any) -> None:
    ran: list[int] = []

    @hf.consumer("order.placed")
    def bill(order: dict[str, Any]) -> None:
        ran.append(order["id"])

    with transaction.atomic():
        hf.sync.publish("order.placed", {"id": 1})
        with transaction_harness(hf) as harness:
            with harness.fail("bill", ConnectionError):
                run_deliveries(hf, advance=False)
                assert (ran, harness.statuses("bill")) == ([], ["pending"])
            run_deliveries(hf)
            assert (ran, harness.statuses("bill")) == ([1], ["delivered"])
            with pytest.raises(TypeError, match="takes a job or a task of Django, not 'bill'"):
                harness.assert_enqueued("bill")
        transaction.set_rollback(True)


def test_a_traceback_in_a_test_begins_with_the_handler(hf: Any, caplog: pytest.LogCaptureFixture) -> None:
    @hf.consumer("order.placed", dead_on=(ValueError,))
    def bill(order: dict[str, Any]) -> None:
        raise ValueError("no stock")

    with transaction.atomic():
        hf.sync.publish("order.placed", {"id": 1})
        run_deliveries(hf)
        transaction.set_rollback(True)
    assert "no stock" in caplog.text
    assert "asgiref" not in caplog.text


def test_deleting_everything_empties_each_table_of_holdfast(hf: Any, dsn: str) -> None:
    @hf.consumer("order.placed")
    def bill(order: dict[str, Any]) -> None: ...

    known = "select name from sqlite_master where type = 'table' and name like 'holdfast!_%' escape '!'"
    prefix, dialect = "holdfast_", "sqlite"
    if connection.vendor == "postgresql":
        known, prefix, dialect = (
            "select tablename from pg_tables where schemaname = 'holdfast'",
            "holdfast.",
            "postgres",
        )
    names = {name.removeprefix("holdfast_") for (name,) in execute(known)} - {"schema_version"}
    assert names == set(table_names(dialect))
    for _ in range(2):
        hf.sync.publish("order.placed", {"id": 1})
        assert len(hf.store.run_sync(messages())) == 1
        run_deliveries(hf)
        delete_everything(hf)
        assert [name for name in names if execute(f"select count(*) from {prefix}{name}") != [(0,)]] == []
    hf.store.check_schema()


def test_the_names_of_the_project_are_refused(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    name = str(connection.settings_dict["NAME"])
    monkeypatch.setattr(apps.get_app_config("holdfast"), "names_at_start", {"default": name})
    hf.sync.publish("order.placed", {"id": 1})
    for call in (run_deliveries, delete_everything):
        with pytest.raises(ConfigurationError, match=rf"{call.__name__}\(\) runs only on a test database"):
            call(hf)
    with pytest.raises(ConfigurationError, match="is the database of the project"), transaction_harness(hf):
        pass
    assert len(hf.store.run_sync(messages())) == 1
