"""`HoldfastBackend`, for `TASKS = {"default": {"BACKEND": "holdfast.django.task_backend.HoldfastBackend"}}`."""

import difflib
from datetime import datetime
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core import checks
from django.utils import timezone

from holdfast.app.declaration.handler_options import HandlerOptions
from holdfast.core.errors import HoldfastError
from holdfast.core.message import DEFAULT_PRIORITY, LOWEST_PRIORITY
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.duration import to_timedelta
from holdfast.core.values.names import check_name, check_type
from holdfast.django.app import DjangoHoldfast, project_app
from holdfast.django.configuration import SettingsError
from holdfast.django.connection_store import ConnectionStore
from holdfast.django.task_backend.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from holdfast.django.task_backend.declared_task import DeclaredTask, consumer_name, declared_tasks
from holdfast.django.task_backend.stored_task import TaskCall, read_task, task_result
from holdfast.runtime.store_factory import use_cipher
from holdfast.stores.protocol import Store

_OPTIONS = ("attempts", "result", "timeout")


class HoldfastBackend(BaseTaskBackend):
    """Runs Django's tasks as jobs of the project's Holdfast app, in the open `atomic` block of its database.

    `OPTIONS`: `result` is how long results are kept (default 7 days), `attempts` how many times a task that raises is run
    (default once; a task whose worker died is run again in any case), `timeout` limits a run.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self.handler_options = _handler_options(alias, self.options)
        except SettingsError:
            raise
        except (TypeError, HoldfastError) as error:
            raise SettingsError(f"TASKS[{alias!r}]['OPTIONS'] cannot be used: {error}") from error

    @property
    def app(self) -> DjangoHoldfast:
        """The app that stores and runs the tasks."""
        return project_app()

    @property
    def store(self) -> Store:
        """The store, on the connection of an open `atomic` block if there is one."""
        app = self.app
        if app._ambient is not None and app._ambient.connection() is not None:
            return use_cipher(ConnectionStore(app.configuration.database, app.schema), app.cipher)
        return app.store

    def validate_task(self, task: Any) -> None:
        """Declares a valid task as a job of this process; raises `InvalidTask` otherwise."""
        super().validate_task(task)
        try:
            check_name("consumer", consumer_name(task.module_path))
            check_type(f"job.{consumer_name(task.module_path)}")
        except HoldfastError as error:
            raise InvalidTask(f"The path of task {task.module_path} cannot be the name of a job: {error}") from error
        declared_tasks(self.app).declare(task, self)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Stores the call in the open `atomic` block; outside of one it commits at once."""
        self.validate_task(task)
        declared = declared_tasks(self.app).find(consumer_name(task.module_path))
        result = _new_result(task, args, kwargs, self.alias)
        call = TaskCall(
            priority=task.priority,
            run_after=None if task.run_after is None else task.run_after.isoformat(),
            backend=self.alias,
            enqueued_at=timezone.now().isoformat(),
        )
        handle = self._job(declared, task).sync.enqueue(args=result.args, kwargs=result.kwargs, call=call)
        object.__setattr__(result, "id", str(handle.id))
        object.__setattr__(result, "enqueued_at", datetime.fromisoformat(call["enqueued_at"]))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _job(self, declared: DeclaredTask, task: Any) -> Any:
        return declared.job.using(
            queue=task.queue_name,
            priority=priority_level(task.priority),
            run_at=None if task.run_after is None else _aware(task.run_after),
        )

    def get_result(self, result_id: str) -> Any:
        """The result as any process sees it, and inside an `atomic` block also what that block enqueued."""
        try:
            id = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        stored = self.store.run_sync(read_task(id))
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        return task_result(stored, declared_tasks(self.app))

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """The app is installed, and the queues have names that Holdfast accepts."""
        found = list(super().check(**kwargs))
        if not apps.is_installed("holdfast.django"):
            found.append(
                checks.Error(
                    f"TASKS[{self.alias!r}] needs the app of Holdfast.",
                    hint="Add 'holdfast.django' to INSTALLED_APPS.",
                    id="holdfast.E004",
                )
            )
        for queue in self.queues:
            try:
                check_name("queue", queue)
            except HoldfastError as error:
                found.append(checks.Error(f"TASKS[{self.alias!r}]['QUEUES']: {error}", id="holdfast.E005"))
        return found


def priority_level(priority: int) -> int:
    """Django's priority (-100 to 100, the highest first) as one of the four levels of Holdfast.

    Above 0 is level 0, 0 the default level 1, -1 to -50 level 2, and below that level 3.
    """
    if priority > 0:
        return 0
    if priority == 0:
        return DEFAULT_PRIORITY
    return LOWEST_PRIORITY - 1 if priority >= -50 else LOWEST_PRIORITY


def _handler_options(alias: str, options: dict[str, Any]) -> HandlerOptions:
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(str(name), _OPTIONS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(
                f"TASKS[{alias!r}]['OPTIONS'] has no key {name!r}; {hint}It takes {', '.join(_OPTIONS)}"
            )
    for name in ("result", "timeout"):
        if name in options:
            to_timedelta(options[name], name=name)
    made: HandlerOptions = {"keep_runs": True, "result": options.get("result", "7d")}
    if "timeout" in options:
        made["timeout"] = options["timeout"]
    if (attempts := options.get("attempts", 1)) == 1:
        # A run that a dead worker left behind is repeated by the default policy; a run that raised is not.
        made["dead_on"] = (Exception, SystemExit)
    else:
        made["retry"] = RetryPolicy.exponential(attempts=attempts)
        made["retry_on"] = (Exception,)
    return made


def _new_result(task: Any, args: Any, kwargs: Any, alias: str) -> Any:
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def _aware(at: datetime) -> datetime:
    return at if timezone.is_aware(at) else timezone.make_aware(at)
