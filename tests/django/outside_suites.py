"""Runs the task suites of Django and of django-tasks-db with only the backend swapped.

`python outside_suites.py SDISTS` with Django 6.0 or later, django-tasks-db and Holdfast installed. SDISTS is a folder with the
unpacked source distributions of the first two. Every case that does not run is printed with the reason. The database is a SQLite
file, or the one that `HOLDFAST_SUITE_DSN` names (`postgresql://user@host:port/name`).

Swapped are the backend, the command that runs its worker, the model that its cases count tasks with, the version of its ids, and
the checks of how many statements it executes.
"""

import asyncio
import inspect
import os
import re
import shutil
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BACKENDS = Path(__file__).with_name("suite_backends.py")
SWAPS = {
    "from django.tasks.backends.dummy import DummyBackend": "from suite_backends import RecordingBackend as DummyBackend",
    "from django.tasks.backends.immediate import ImmediateBackend": (
        "from suite_backends import RunningBackend as ImmediateBackend"
    ),
    "django.tasks.backends.dummy.DummyBackend": "suite_backends.RecordingBackend",
    "django.tasks.backends.immediate.ImmediateBackend": "suite_backends.RunningBackend",
    "from django_tasks_db import DatabaseBackend, compat": (
        "from django_tasks_db import compat\nfrom suite_backends import HoldfastBackend as DatabaseBackend"
    ),
    '"django_tasks_db.DatabaseBackend"': '"suite_backends.HoldfastBackend"',
    'call_command,\n            "db_worker",\n': "run_worker,\n",
    "from django_tasks_db.models import DBTaskResult, get_date_max": (
        "from django_tasks_db.models import get_date_max\nfrom suite_backends import StoredTasks as DBTaskResult, run_worker"
    ),
    "self.assertNumQueries(": "contextlib.nullcontext(",
    ".version, 4)": ".version, 7)",
    # The words of the task of that name in Django's suite.
    "This task failed due to ValueError": "This Task failed due to ValueError",
}
REASONS = {
    "DummyBackendTestCase.test_refresh_result": "changes the object in the list of the dummy backend",
    "DummyBackendTestCase.test_refresh_result_async": "changes the object in the list of the dummy backend",
    "DummyBackendTestCase.test_clear": "empties the list of the dummy backend",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": "a worker turns KeyboardInterrupt into its own end",
    "ImmediateBackendTestCase.test_cannot_get_result": "expects a backend without get_result",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "expects a backend without get_result",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "expects a backend without run_after",
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "expects a task to run before the transaction that enqueues it commits"
    ),
}
PATTERNS = {
    r"objects\.(create|bulk_create|get|using)\b|update\(|db_task_result|_create_task|get_date_max|get_locked|_meta": (
        "changes or locks rows of the model of django-tasks-db"
    ),
    r"in objects|DBTaskResult\.objects\.ready\(\)\]": "expects the order of the model's rows, by 201 priorities",
    r"db_worker|prune_|start_worker|max_tasks|verbosity": "tests a command of django-tasks-db",
    r"backend_name=|CommandError": "tests an option of the worker of django-tasks-db",
    r"id_function|database_backend_app_missing|compat\.|exclusive_transaction|normalize_uuid|django_tasks_db": (
        "tests an option or a helper of django-tasks-db"
    ),
    r"is not JSON serializable": "expects the words of the JSON encoder of django-tasks-db",
}


def main(sdists: Path) -> int:
    scratch = Path(tempfile.mkdtemp())
    try:
        return run(sdists, scratch)
    finally:
        shutil.rmtree(scratch)


def run(sdists: Path, scratch: Path) -> int:
    (django_tests,) = sdists.glob("django-[0-9]*/tests/tasks")
    (others,) = sdists.glob("django_tasks_db-*/tests")
    swapped(django_tests, scratch / "tasks")
    swapped(others, scratch / "tests")
    # The tasks of django-tasks-db's suite are not in its source distribution; Django has tasks of the same names.
    shutil.copy(scratch / "tasks" / "tasks.py", scratch / "tests" / "tasks.py")
    (scratch / "tests" / "__init__.py").touch()
    shutil.copy(BACKENDS, scratch)
    sys.path[:] = [str(scratch), *(path for path in sys.path if path != str(Path(__file__).parent))]
    configure(scratch)
    from django.test.runner import DiscoverRunner

    backends: Any = import_module("suite_backends")

    class Runner(DiscoverRunner):  # type: ignore[misc]
        def build_suite(self, *args: Any, **kwargs: Any) -> Any:
            suite = super().build_suite(*args, **kwargs)
            for test in tests_of(suite):
                if reason := reason_of(test):
                    skipped[reason].append(test.id())
                    setattr(test, test._testMethodName, unittest.skip(reason)(getattr(test, test._testMethodName)))
                else:
                    ran[test.id().partition(".")[0]] += 1
                    if "setUp" not in vars(type(test)) and type(test).__module__.startswith("tests."):
                        type(test).setUp = lambda _: backends.start_test()
            return suite

        def teardown_databases(self, *args: Any, **kwargs: Any) -> None:
            # PostgreSQL does not drop a database that has other connections.
            asyncio.run(backends.hf.close())
            super().teardown_databases(*args, **kwargs)

    skipped: dict[str, list[str]] = {reason: [] for reason in [*dict.fromkeys(REASONS.values()), *PATTERNS.values()]}
    ran: Counter[str] = Counter()
    failures: int = Runner(verbosity=1, interactive=False).run_tests(["tasks", "tests.tests"])
    for reason, ids in skipped.items():
        print(f"left out, {len(ids)}: {reason}")
        for id in sorted(ids):
            print(f"    {id}")
    print(f"run with the backend of Holdfast: {ran['tasks']} cases of Django, {ran['tests']} of django-tasks-db")
    return 1 if failures or ran["tasks"] < 77 or ran["tests"] < 26 else 0


def swapped(source: Path, target: Path) -> None:
    """Copies a suite and swaps the backend in it."""
    shutil.copytree(source, target)
    for path in target.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for before, after in SWAPS.items():
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")


def database(scratch: Path) -> dict[str, Any]:
    """An entry of `DATABASES`."""
    if dsn := os.environ.get("HOLDFAST_SUITE_DSN"):
        split = urlsplit(dsn)
        place = {
            "HOST": split.hostname,
            "PORT": str(split.port),
            "USER": split.username,
            "PASSWORD": split.password or "",
        }
        return {"ENGINE": "django.db.backends.postgresql", "NAME": split.path[1:], **place}
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(scratch / "suite.db"),
        "TEST": {"NAME": str(scratch / "test.db")},
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }


def configure(scratch: Path) -> None:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": database(scratch)},
        INSTALLED_APPS=["holdfast.django", "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                        "django.contrib.messages", "django_tasks_db"],
        TASKS={
            "default": {"BACKEND": "suite_backends.HoldfastBackend", "QUEUES": ["default", "queue-1"]},
            "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        },
        USE_TZ=True,
        SECRET_KEY="suites",
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        SILENCED_SYSTEM_CHECKS=["admin.E403", "admin.E408", "admin.E409", "admin.E410"],  # the suite opens no page
    )  # fmt: skip
    django.setup()


def tests_of(suite: Any) -> Iterator[Any]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        else:
            yield one


def reason_of(test: Any) -> str | None:
    name = f"{type(test).__name__}.{test._testMethodName}"
    if name in REASONS:
        return REASONS[name]
    if not type(test).__module__.startswith("tests."):
        return None
    source = inspect.getsource(getattr(type(test), test._testMethodName))
    return next((reason for pattern, reason in PATTERNS.items() if re.search(pattern, source)), None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
