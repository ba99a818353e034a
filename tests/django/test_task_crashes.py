"""Workers of Django tasks that are killed around the settlement: a result exists with it, is never lost and never early."""

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any

import django
import pytest
from django.db import transaction
from django.test import override_settings

if django.VERSION < (6, 0):
    pytest.importorskip("django_tasks", reason="before Django 6.0 the tests of the task backend need django-tasks")

from holdfast.django.task_backend import backend as backend_module
from holdfast.django.task_backend.api import TaskResultStatus
from tests.django.task_worker import TASKS
from tests.support.worker import drain, pass_time


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["settle.uncommitted", "settle.committed"])
def test_a_task_whose_worker_is_killed_ends_once_with_its_result(
    hf: Any, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(backend_module, "project_app", lambda: hf)
    with override_settings(TASKS=TASKS):
        from tests.django import shop_tasks

        with transaction.atomic():
            result = shop_tasks.add.enqueue(1, b=2)
        for name in ("markers", "pids"):
            (tmp_path / name).mkdir()
        environment = {**os.environ, "HOLDFAST_TEST_PLACE": str(tmp_path), "HOLDFAST_TEST_CRASH": point}
        worker = [sys.executable, "-m", "tests.django.task_worker", dsn]
        ended = subprocess.run(worker, env=environment, timeout=60, capture_output=True)
        assert ended.returncode == -SIGKILL, ended.stderr.decode()
        result.refresh()
        is_durable = point.endswith(".committed")
        assert result.status == (TaskResultStatus.SUCCESSFUL if is_durable else TaskResultStatus.RUNNING)
        shop_tasks.log.clear()

        async def finish() -> None:
            await pass_time(hf, timedelta(minutes=1), "delivery", "worker")
            await drain(hf)

        asyncio.run(finish())
        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        assert shop_tasks.log == ([] if is_durable else [("add", 1, 2)])
