"""A worker of a Django project that is killed at a named point. Argument: the DSN."""

import sys
from datetime import timedelta

from tests.engine.programs import crash
from tests.support.django_project import configure_django, set_database

TASKS = {
    "default": {"BACKEND": "holdfast.django.task_backend.HoldfastBackend", "QUEUES": ["default", "mail"]},
    "retried": {"BACKEND": "holdfast.django.task_backend.HoldfastBackend", "OPTIONS": {"attempts": 3}},
}

if __name__ == "__main__":
    configure_django()
    from django.test import override_settings

    from holdfast import WorkerOptions
    from holdfast.django.app import project_app

    set_database("default", sys.argv[1])
    crash.install()
    with override_settings(TASKS=TASKS):
        from tests.django import shop_tasks

        shop_tasks.add.get_backend().validate_task(shop_tasks.add)
        options = WorkerOptions(lease=timedelta(seconds=1), poll=timedelta(milliseconds=20), cron=False)
        project_app().run(until_idle=True, options=options)
