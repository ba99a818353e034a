"""The backend of `django.tasks`, and of its backport on Django 5.2."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

if django.VERSION < (6, 0):
    pytest.importorskip("django_tasks", reason="before Django 6.0 the tests of the task backend need django-tasks")

from holdfast import ConfigurationError, WorkerOptions
from holdfast.django.configuration import SettingsError
from holdfast.django.task_backend import backend as backend_module
from holdfast.django.task_backend.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from holdfast.django.task_backend.backend import HoldfastBackend, priority_level
from holdfast.django.task_backend.declared_task import declared_tasks
from holdfast.django.testing import run_deliveries, transaction_harness
from holdfast.interfaces.presentation.deliveries import attempts
from holdfast.stores.queries.query import Filter
from tests.django.conftest import project

BACKEND = "holdfast.django.task_backend.HoldfastBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
    "retried": {"BACKEND": BACKEND, "OPTIONS": {"attempts": 3, "timeout": "1m", "result": "1h"}},
}


@pytest.fixture
def shop(hf: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tasks of the tests on the app `hf`."""
    monkeypatch.setattr(backend_module, "project_app", lambda: hf)
    with override_settings(TASKS=TASKS):
        from tests.django import shop_tasks

        shop_tasks.log.clear()
        yield shop_tasks


pytestmark = pytest.mark.usefixtures("test_environment")


def work(hf: Any) -> None:
    asyncio.run(hf.work(WorkerOptions(until_idle=True, cron=False, idle_limit=timedelta(0))))


def test_tasks_run_and_their_results_can_be_read(hf: Any, shop: Any) -> None:
    added, sent = shop.add.enqueue(1, b=2), shop.send.enqueue(to="ada")
    failed, left, complex_value = shop.fail.enqueue(), shop.leave.enqueue(), shop.complex_value.enqueue()
    looked = shop.look.enqueue(7)
    later = shop.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(5)
    assert (added.status, added.enqueued_at is not None, added.args, added.kwargs) == (
        TaskResultStatus.READY,
        True,
        [1],
        {"b": 2},
    )
    fresh = shop.add.get_result(added.id)
    assert (fresh.status, fresh.started_at, fresh.finished_at, fresh.attempts) == (
        TaskResultStatus.READY,
        None,
        None,
        0,
    )
    work(hf)
    for result in (added, sent, failed, left, complex_value, looked, later):
        result.refresh()
    assert (added.status, added.return_value, added.attempts, added.errors) == (TaskResultStatus.SUCCESSFUL, 3, 1, [])
    # The first time is by the clock of the app, the others by that of the database.
    assert abs(added.started_at - added.enqueued_at) < timedelta(minutes=1)
    assert added.started_at <= added.finished_at
    assert (sent.return_value, sent.task.priority, sent.task.queue_name) == ({"to": "ada"}, 10, "mail")
    assert (failed.status, failed.attempts) == (TaskResultStatus.FAILED, 1)
    assert failed.errors[0].exception_class is ValueError
    assert "no stock" in failed.errors[0].traceback
    assert (left.status, left.errors[0].exception_class) == (TaskResultStatus.FAILED, SystemExit)
    assert (complex_value.status, complex_value.errors[0].exception_class) == (TaskResultStatus.FAILED, TypeError)
    assert looked.return_value == [1, 7, "RUNNING", 1, looked.id]
    assert (later.status, later.task.run_after is not None) == (TaskResultStatus.READY, True)


def test_a_task_joins_the_open_transaction_and_its_result_is_visible_in_it(hf: Any, shop: Any) -> None:
    shop.add.enqueue(0)
    with transaction.atomic():
        result = shop.add.enqueue(1)
        assert shop.add.get_result(result.id).status == TaskResultStatus.READY
        run_deliveries(hf)
        assert shop.add.get_result(result.id).return_value == 2
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(result.id)
    shop.log.clear()
    with transaction.atomic():
        result = async_to_sync(shop.send.aenqueue)("bob")
    work(hf)
    assert sorted(shop.log) == [("add", 0, 1), ("send", "bob")]
    assert async_to_sync(shop.send.aget_result)(result.id).return_value == {"to": "bob"}


def test_a_harness_finds_the_calls_of_a_task_by_their_arguments(hf: Any, shop: Any) -> None:
    with transaction.atomic():
        shop.add.enqueue(1, b=2)
        shop.look.enqueue(7)
        with transaction_harness(hf) as harness:
            assert harness.assert_enqueued(shop.add, a=1, b=2).type == "job.tests:django:shop_tasks:add"
            harness.assert_enqueued(shop.add)
            harness.assert_enqueued(shop.look, n=7)
            with pytest.raises(
                AssertionError, match=r"shop_tasks.add with \{'a': 2\} was not enqueued.*\n  \{'a': 1, 'b': 2\}"
            ):
                harness.assert_enqueued(shop.add, a=2)
            with pytest.raises(AssertionError, match="nothing at all"):
                harness.assert_enqueued(shop.send)
        transaction.set_rollback(True)


def test_a_result_can_be_read_in_the_transaction_of_an_app_with_a_cipher(dsn: str, monkeypatch: Any) -> None:
    from holdfast.cipher import AesGcm

    hf: Any
    for hf in project(dsn, options={"cipher": AesGcm({"k": AesGcm.new_key()})}):
        monkeypatch.setattr(backend_module, "project_app", lambda hf=hf: hf)
        with override_settings(TASKS=TASKS):
            from tests.django import shop_tasks

            with transaction.atomic():
                result = shop_tasks.add.enqueue(1)
                assert shop_tasks.add.get_result(result.id).args == [1]
            work(hf)
            with transaction.atomic():
                assert shop_tasks.add.get_result(result.id).return_value == 2


def test_a_task_that_failed_in_its_only_run_is_not_shown_as_the_first_of_five(hf: Any, shop: Any) -> None:
    shop.fail.enqueue()
    assert [attempts(one) for one in hf.ops.sync.deliveries(Filter())] == ["0/5"]
    work(hf)
    assert [attempts(one) for one in hf.ops.sync.deliveries()] == ["1"]


def test_a_task_with_attempts_is_run_again_and_ends_once(hf: Any, shop: Any) -> None:
    signals: list[Any] = []

    def finished(sender: Any, task_result: Any, **_: Any) -> None:
        signals.append((sender, task_result.status))

    task_finished.connect(finished)
    result = shop.fail_once.enqueue()
    with transaction.atomic():
        run_deliveries(hf)
    task_finished.disconnect(finished)
    result.refresh()
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)
    assert result.errors[0].exception_class is ConnectionError
    assert signals == [(HoldfastBackend, TaskResultStatus.SUCCESSFUL)]


def test_signals_are_sent_and_a_broken_receiver_fails_no_task(hf: Any, shop: Any) -> None:
    seen: list[Any] = []

    def receiver(signal: Any, task_result: Any, **_: Any) -> None:
        seen.append(task_result.status)
        if signal is not task_enqueued:
            raise ZeroDivisionError

    signals = (task_enqueued, task_started, task_finished)
    for signal in signals:
        signal.connect(receiver)
    try:
        done = shop.add.enqueue(1)
        work(hf)
    finally:
        for signal in signals:
            signal.disconnect(receiver)
    assert seen == ["READY", "RUNNING", "SUCCESSFUL"]
    assert shop.add.get_result(done.id).return_value == 2


def test_a_task_that_raises_keyboard_interrupt_fails_and_does_not_end_the_worker(hf: Any, shop: Any) -> None:
    finished: list[Any] = []
    task_finished.connect(receiver := lambda task_result, **_: finished.append(task_result))
    try:
        interrupted = shop.interrupt.enqueue()
        work(hf)
        added = shop.add.enqueue(1)
        work(hf)
    finally:
        task_finished.disconnect(receiver)
    interrupted.refresh()
    added.refresh()
    assert (interrupted.status, interrupted.attempts) == (TaskResultStatus.FAILED, 1)
    assert interrupted.errors[0].exception_class is KeyboardInterrupt
    assert "KeyboardInterrupt: by the task" in interrupted.errors[0].traceback
    assert added.return_value == 2
    assert [one.id for one in finished] == [interrupted.id, added.id]
    assert finished[0].errors[0].exception_class is KeyboardInterrupt


def test_a_stored_path_is_never_imported(hf: Any, shop: Any) -> None:
    published = hf.sync.publish("job.os.system", {"args": ["true"], "kwargs": {}, "call": {}})
    backend = shop.add.get_backend()
    for unknown in (published.id, "none", "01890000-0000-7000-8000-000000000000"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(str(unknown))
    result = shop.add.enqueue(1)
    tasks = declared_tasks(hf)._tasks
    known = tasks.pop("tests:django:shop_tasks:add")
    with pytest.raises(ConfigurationError, match=r"task tests.django.shop_tasks.add is not declared in this process"):
        backend.get_result(result.id)
    tasks["tests:django:shop_tasks:add"] = known


def test_wrong_tasks_and_options_are_refused(hf: Any, shop: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no key 'atempts'; did you mean 'attempts'"):
        HoldfastBackend("default", {"OPTIONS": {"atempts": 3}})
    for options, problem in (({"timeout": "5 parsecs"}, "timeout '5 parsecs'"), ({"attempts": 0}, "attempts")):
        with pytest.raises(SettingsError, match=rf"TASKS\['default'\]\['OPTIONS'\] cannot be used: .*{problem}"):
            HoldfastBackend("default", {"OPTIONS": options})
    with pytest.raises(InvalidTask):
        shop.add.using(queue_name="unknown").enqueue(1)
    with pytest.raises(InvalidTask):
        shop.add.using(priority=101)
    with pytest.raises(TypeError):
        shop.add.enqueue({1, 2})
    assert HoldfastBackend("default", {"QUEUES": ["a b"]}).check()[0].id == "holdfast.E005"


def test_priorities_are_mapped_to_four_levels() -> None:
    levels = [priority_level(priority) for priority in range(100, -101, -1)]
    assert levels == [0] * 100 + [1] + [2] * 50 + [3] * 50
