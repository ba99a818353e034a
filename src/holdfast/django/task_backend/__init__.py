"""The backend of `django.tasks` (Django 6.0) and of the `django-tasks` backport: `TASKS` runs on Holdfast.

`backend` is the class that `TASKS` names. A declared task becomes a job under its module path (`declared_task`), which a
worker runs (`task_run`). `stored_task` reads the result of a task from its delivery. `api` has the names of the package
that is installed.
"""

from holdfast.django.task_backend.backend import HoldfastBackend

__all__ = ["HoldfastBackend"]
