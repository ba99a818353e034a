"""Backends for the suites of others: Holdfast with what those suites expect of the backend that it replaces.

`RecordingBackend` has the list of results of Django's dummy backend, `RunningBackend` runs a task at once like the immediate
backend. Nothing else differs from `HoldfastBackend`.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from holdfast import WorkerOptions
from holdfast.django import hf
from holdfast.django.task_backend import HoldfastBackend
from holdfast.stores.queries.query import messages


def work() -> None:
    """Runs what is due, in a new thread: this one may wait for async code."""
    options = WorkerOptions(until_idle=True, cron=False, idle_limit=timedelta(0))
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
