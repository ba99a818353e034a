"""Backends for the suites of others: Holdfast with what those suites expect of the backend that it replaces.

`RecordingBackend` has the list of results of Django's dummy backend, `RunningBackend` runs a task at once like the immediate
backend. Nothing else differs from `HoldfastBackend`. `StoredTasks` takes the place of the model of django-tasks-db, `run_worker`
and `prune_tasks` that of its commands. A task changes its status only because a worker claims or runs it.
"""

import asyncio
import contextlib
import io
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.db import connection
from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.signals import task_started
from django.utils import timezone

from holdfast import WorkerOptions
from holdfast.django import hf
from holdfast.django.task_backend.backend import HoldfastBackend
from holdfast.django.task_backend.stored_task import read_task
from holdfast.stores.deliveries.claim import claim, lanes
from holdfast.stores.queries.query import messages

_EMPTIED = ("message", "delivery", "run", "result")


def work(queues: dict[str, int] | None = None, *, slots: int = 50) -> None:
    """Runs what is due, in a new thread: this one may wait for async code."""
    options = WorkerOptions(
        until_idle=True, cron=False, idle_limit=timedelta(0), queues=queues, concurrency=slots, metrics_port=0
    )
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, hf.work(options)).result()


def execute(*statements: str) -> None:
    """Runs statements in a new connection. A `SimpleTestCase` allows none of Django's connections."""
    if connection.vendor == "sqlite":
        with contextlib.closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=10)) as opened, opened:
            for statement in statements:
                opened.execute(statement)
        return
    import psycopg

    with psycopg.connect(hf.dsn, autocommit=True) as session:
        for statement in statements:
            session.execute(statement.encode())


def table(name: str) -> str:
    return f"holdfast_{name}" if connection.vendor == "sqlite" else f"holdfast.{name}"


def delete_tasks() -> None:
    """Django's test cases empty the tables of models only."""
    execute(*(f"delete from {table(name)}" for name in _EMPTIED))


class RecordingBackend(HoldfastBackend):
    """Stores tasks and runs none."""

    @property
    def results(self) -> list[Any]:
        return [self.get_result(str(one.id)) for one in reversed(self.store.run_sync(messages(limit=1000)))]

    def clear(self) -> None:
        delete_tasks()


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


def prune_tasks(
    min_age_days: int = 14, queue_name: str = "*", dry_run: bool = False, stdout: Any = None, **_: Any
) -> None:
    """`manage.py holdfast prune`, with the count of its JSON output in the words of django-tasks-db."""
    if queue_name != "*":
        raise NotImplementedError("holdfast prune has no option for queues")
    options = ["--older-than", f"{min_age_days}d", "--messages", *(["--dry-run"] if dry_run else [])]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        call_command("holdfast", "prune", *options, "--yes", "--format", "json")
    if stdout is not None:
        count = json.loads(output.getvalue())["delivered"]
        stdout.write(f"{'Would delete' if dry_run else 'Deleted'} {count} task result(s)\n")


class TaskQuery:
    """Finds, counts and runs tasks by their status, like the query set of django-tasks-db."""

    def __init__(self, *statuses: str, due: bool = False, id: str | None = None, suffix: str = "") -> None:
        self._statuses, self._due, self._id, self._suffix = statuses, due, id, suffix

    def all(self) -> "TaskQuery":
        return self

    def using(self, _: str) -> "TaskQuery":
        return self

    def ready(self) -> "TaskQuery":
        return TaskQuery("READY", due=True)

    def running(self) -> "TaskQuery":
        return TaskQuery("RUNNING")

    def successful(self) -> "TaskQuery":
        return TaskQuery("SUCCESSFUL")

    def failed(self) -> "TaskQuery":
        return TaskQuery("FAILED")

    def finished(self) -> "TaskQuery":
        return TaskQuery("SUCCESSFUL", "FAILED")

    def filter(self, *, id: str) -> "TaskQuery":
        return TaskQuery(id=id)

    def select_for_update(self) -> "TaskQuery":
        return TaskQuery(suffix=" for update")

    def get(self, *, id: str) -> Any:
        return default_task_backend.get_result(id)

    def count(self) -> int:
        return len(self._found())

    def _found(self) -> list[str]:
        backend = default_task_backend
        found = [str(one.id) for one in backend.store.run_sync(messages(limit=1000))]
        return [
            id
            for id in found
            if self._id in (None, id)
            and (not self._statuses or backend.get_result(id).status in self._statuses)
            and (not self._due or _due_at(id) <= timezone.now())
        ]

    def create(self, *, priority: int, run_after: datetime, enqueued_at: datetime, args_kwargs: Any) -> Any:
        """Enqueues a task. The calls of the suite are in the order of `enqueued_at`."""
        noop_task: Any = import_module("tests.tasks").noop_task
        return noop_task.using(priority=priority, run_after=run_after).enqueue(
            *args_kwargs["args"], **args_kwargs["kwargs"]
        )

    def values_list(self, *_: str, flat: bool) -> list[str]:
        """The ids in the order in which a worker with one slot starts the tasks, once all are due."""
        day = "86400000" if connection.vendor == "sqlite" else "interval '1 day'"
        execute(f"update {table('delivery')} set run_at = run_at - {day}")
        started: list[str] = []
        task_started.connect(receiver := lambda task_result, **_: started.append(task_result.id))
        try:
            work(slots=1)
        finally:
            task_started.disconnect(receiver)
        return started

    def update(self, *, status: str | None = None, run_after: datetime | None = None, **columns: Any) -> None:
        """Brings the tasks into the status by a worker, or moves the time at which they are due."""
        found = self._found()
        if run_after is not None:
            ids = ", ".join(f"'{id}'" for id in found)
            execute(f"update {table('delivery')} set run_at = created_at where message_id in ({ids})")
        elif status == TaskResultStatus.RUNNING:
            store = default_task_backend.store
            due = store.run_sync(lanes(list(hf.handlers), 0))
            store.run_sync(claim(due, "a worker", timedelta(minutes=1), len(found)))
        else:
            work()
        ended = [default_task_backend.get_result(id) for id in found]
        wanted = columns.get("return_value")
        if status is not None and any(one.status != status or (wanted and one.return_value != wanted) for one in ended):
            raise AssertionError(f"the worker left {[one.status for one in ended]}")

    async def aupdate(self, **columns: Any) -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(self.update, **columns).result()

    def values(self, *_: str) -> "TaskQuery":
        return self

    @property
    def query(self) -> str:
        """A statement with one row for each task that another connection sees, or locks."""
        return f"select message_id from {table('delivery')}{self._suffix}"


def _due_at(id: str) -> datetime:
    stored = default_task_backend.store.run_sync(read_task(UUID(id)))
    if stored is None:
        raise LookupError(id)
    return stored.delivery.run_at


class StoredTasks:
    """In the place of the model of django-tasks-db."""

    objects = TaskQuery()
