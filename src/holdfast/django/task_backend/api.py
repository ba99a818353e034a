"""The names of `django.tasks`, or of the backport `django_tasks` before Django 6.0."""

from importlib import import_module
from typing import Any

import django

from holdfast.core.errors import ConfigurationError

_PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def _module(name: str) -> Any:
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ConfigurationError(
            f"Django {django.get_version()} has no tasks; install django-tasks, or Django 6.0 or later"
        ) from error


_base, _exceptions, _signals = _module("base"), _module("exceptions"), _module("signals")

BaseTaskBackend: Any = _module("backends.base").BaseTaskBackend
Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
InvalidTask: type[Exception] = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: type[Exception] = _exceptions.TaskResultDoesNotExist
task_enqueued, task_started, task_finished = _signals.task_enqueued, _signals.task_started, _signals.task_finished
normalize_json: Any = import_module(
    "django.utils.json" if _PACKAGE == "django.tasks" else "django_tasks.utils"
).normalize_json
