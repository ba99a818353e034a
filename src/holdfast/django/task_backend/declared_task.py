"""The tasks that this process has declared. Stored paths are only looked up here, never imported."""

import threading
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.app.jobs.job import Job
from holdfast.core.errors import ConfigurationError
from holdfast.django.app import DjangoHoldfast
from holdfast.django.connection_cleanup import with_cleanup
from holdfast.django.task_backend.task_run import task_function

if TYPE_CHECKING:
    from holdfast.django.task_backend.backend import HoldfastBackend


@dataclass(slots=True)
class DeclaredTask:
    """A task of this process and the job that runs it."""

    task: Any
    backend: "HoldfastBackend"
    job: Job[..., Any]


class DeclaredTasks:
    """The declared tasks of an app, by the names of their jobs. Importing the module of a task declares it."""

    def __init__(self, app: DjangoHoldfast) -> None:
        self._app = app
        self._tasks: dict[str, DeclaredTask] = {}
        self._lock = threading.Lock()

    def declare(self, task: Any, backend: "HoldfastBackend") -> None:
        """Makes a task known. The first declaration of a path sets its queue and its options."""
        name = consumer_name(task.module_path)
        with self._lock:
            known = self._tasks.get(name)
            if known is None:
                function = task_function(self._app, lambda: self.find(name), is_async=iscoroutinefunction(task.func))
                options = {**backend.handler_options, "name": name, "queue": task.queue_name}
                job: Any = self._app.job(**options)(with_cleanup(function))
                self._tasks[name] = DeclaredTask(task, backend, job)
            elif known.task.func is not task.func:
                known.task, known.backend = task, backend

    def find(self, name: str) -> DeclaredTask:
        """The task of a job; raises `ConfigurationError` if this process has not imported it."""
        found = self._tasks.get(name)
        if found is None:
            raise ConfigurationError(
                f"task {name.replace(':', '.')} is not declared in this process; import its module, or add the name of the "
                "module to settings.HOLDFAST['MODULES'], which are imported from each installed app"
            )
        return found


def consumer_name(path: str) -> str:
    """The name of the job that runs the task of this module path: names of consumers have no dots."""
    return path.replace(".", ":")


_DECLARED: "WeakKeyDictionary[DjangoHoldfast, DeclaredTasks]" = WeakKeyDictionary()


def declared_tasks(app: DjangoHoldfast) -> DeclaredTasks:
    """The declared tasks of an app."""
    return _DECLARED.setdefault(app, DeclaredTasks(app))
