"""Backends for the suites of others: Holdfast with what those suites expect of the backend that it replaces.

`RecordingBackend` has the list of results of Django's dummy backend, `RunningBackend` runs a task at once like the immediate
backend. Nothing else differs from `HoldfastBackend`. `StoredTasks` and `run_worker` take the place of the model and of the command
of django-tasks-db.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from django.db import connection
from django.tasks import default_task_backend
from django.utils import timezone

from holdfast import WorkerOptions
from holdfast.django import hf
from holdfast.django.task_backend import HoldfastBackend
from holdfast.stores.queries.query import messages


def work(queues: dict[str, int] | None = None) -> None:
    """Runs what is due, in a new thread: this one may wait for async code."""
    options = WorkerOptions(until_idle=True, cron=False, idle_limit=timedelta(0), queues=queues)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, hf.work(options)).result()


class RecordingBackend(HoldfastBackend):
    """Stores tasks and runs none."""

    cleared = 0

    @property
    def results(self) -> list[Any]:
        found = self.store.run_sync(messages(limit=1000))
        return [self.get_result(str(one.id)) for one in reversed(found)][type(self).cleared :]

    def clear(self) -> None:
        type(self).cleared = len(self.store.run_sync(messages(limit=1000)))


class RunningBackend(HoldfastBackend):
    """Runs a task before `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        work()
        result.refresh()
        return result


def run_worker(queue_name: str = "default", exclude_queues: str = "", **_: Any) -> None:
    """The worker of django-tasks-db: the named queues, `*` for all but the excluded ones."""
    queues = default_task_backend.queues if queue_name == "*" else queue_name.split(",")
    work({one: 10 for one in queues if one not in exclude_queues.split(",")})


def start_test() -> None:
    """Tasks of earlier tests are not counted: their tables stay."""
    TaskQuery.earlier = frozenset(one.id for one in hf.store.run_sync(messages(limit=1000)))


class TaskQuery:
    """Counts tasks by their status, like the query set of django-tasks-db."""

    earlier: frozenset[Any] = frozenset()

    def __init__(self, *statuses: str, due: bool = False) -> None:
        self._statuses, self._due = statuses, due

    def all(self) -> "TaskQuery":
        return self

    def ready(self) -> "TaskQuery":
        return TaskQuery("READY", due=True)

    def successful(self) -> "TaskQuery":
        return TaskQuery("SUCCESSFUL")

    def failed(self) -> "TaskQuery":
        return TaskQuery("FAILED")

    def count(self) -> int:
        backend = default_task_backend
        found = [one.id for one in backend.store.run_sync(messages(limit=1000)) if one.id not in self.earlier]
        results = [backend.get_result(str(id)) for id in found]
        return sum((not self._statuses or one.status in self._statuses) and self._is_due(one) for one in results)

    def _is_due(self, result: Any) -> bool:
        at = result.task.run_after
        return not self._due or at is None or at <= timezone.now()

    def values(self, *_: str) -> "TaskQuery":
        return self

    @property
    def query(self) -> str:
        """A statement with one row for each task that another connection sees."""
        table = "holdfast_message" if connection.vendor == "sqlite" else "holdfast.message"
        known = ", ".join(f"'{id}'" for id in self.earlier) or "null"
        return f"select id from {table} where id not in ({known})" if self.earlier else f"select id from {table}"


class StoredTasks:
    """In the place of the model of django-tasks-db."""

    objects = TaskQuery()
