"""Runs the task suites of Django and of django-tasks-db with only the backend swapped.

`python outside_suites.py SDISTS` with Django 6.0 or later, django-tasks-db and Holdfast installed. SDISTS is a folder with the
unpacked source distributions of the first two. Every case that does not run is printed with the reason. The database is a SQLite
file, or the one that `HOLDFAST_SUITE_DSN` names (`postgresql://user@host:port/name`).

Swapped are the backend, the commands that run its worker and delete old tasks, the model that its cases count and change tasks
with, the version of its ids, the words of errors, and the checks of how many statements it executes. The cases with worker
processes get longer times: `manage.py holdfast worker` takes about a second to start on a small machine.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from suite_reasons import REASONS, SQLITE_REASONS  # type: ignore[import-not-found]

BACKENDS = Path(__file__).with_name("suite_backends.py")
SWAPS = {
    "from django.tasks.backends.dummy import DummyBackend": (
        "from suite_backends import RecordingBackend as DummyBackend, work"
    ),
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
        "from django_tasks_db.models import get_date_max\n"
        "from suite_backends import StoredTasks as DBTaskResult, prune_tasks, run_worker"
    ),
    "self.assertNumQueries(": "contextlib.nullcontext(",
    ".version, 4)": ".version, 7)",
    # The words of the task of that name in Django's suite.
    "This task failed due to ValueError": "This Task failed due to ValueError",
    # The words of Django's JSON encoder, as its own suite expects them.
    "is not JSON serializable": "Unsupported type",
    'self.assertIn("django_tasks_db", errors': 'self.assertIn("holdfast.django", errors',
    'call_command, "prune_db_task_results"': "prune_tasks",
    """enqueued_result = default_task_backend.results[0]
        object.__setattr__(enqueued_result, "status", TaskResultStatus.SUCCESSFUL)
""": "work()\n",
    "isinstance(sql, QuerySet)": "not isinstance(sql, str)",
    # A worker does not see what the transaction of a TestCase has not committed.
    "class DBTaskResultOrderingTestCase(TestCase)": "class DBTaskResultOrderingTestCase(TransactionTestCase)",
    '''"db_worker", "--max-tasks", "-1"]
                )
        self.assertIn("Must be greater than zero"''': '''"holdfast", "worker", "--max-deliveries", "-1"]
                )
        self.assertIn("is not in the range x>=1"''',
    '''"db_worker", "--max-tasks", "0"]
                )
        self.assertIn("Must be greater than zero"''': '''"holdfast", "worker", "--max-deliveries", "0"]
                )
        self.assertIn("is not in the range x>=1"''',
    '''"prune_db_task_results", "--min-age-days", "-1"]
                )
        self.assertIn("Must be greater than zero"''': '''"holdfast", "prune", "--older-than", "-1d"]
                )
        self.assertIn("cannot be read"''',
    """"db_worker",
                "--verbosity",
                "3",
                "--no-startup-delay",
                "--worker-id",
                worker_id,
""": """"holdfast",
                "worker",
""",
    '["--batch"]': '["--until-idle"]',
    'self.assertIn("gracefully", stdout_text)': 'self.assertIn("worker stopped", stdout_text)',
    "WORKER_STARTUP_TIME = 1": "WORKER_STARTUP_TIME = 4",
    "sleep_for.enqueue(2)": "sleep_for.enqueue(8)",
    "process.wait(timeout=2)": "process.wait(timeout=20)",
    "process.wait(timeout=0.5)": "process.wait(timeout=2)",
    "process.wait(timeout=5)": "process.wait(timeout=20)",
}
POSTGRES = os.environ.get("HOLDFAST_SUITE_DSN")
LEAST = {"tasks": 80, "tests": 52 if POSTGRES else 50}
REASON_OF = {
    case: reason for reason, cases in {**REASONS, **({} if POSTGRES else SQLITE_REASONS)}.items() for case in cases
}
# The lines of Django itself, without the fields that a worker of Holdfast adds to them.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"plain": {"class": "logging.StreamHandler"}},
    "loggers": {"django.tasks": {"handlers": ["plain"], "level": "DEBUG", "propagate": False}},
}
MANAGE = """import sys

from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""


def main(sdists: Path) -> int:
    scratch = Path(tempfile.mkdtemp())
    try:
        # Where Python starts it finds `tests` first: the worker processes would get the tests of Holdfast.
        sdists = sdists.resolve()
        with contextlib.chdir(scratch):
            return run(sdists, scratch)
    finally:
        shutil.rmtree(scratch)


def run(sdists: Path, scratch: Path) -> int:
    (django_tests,) = sdists.glob("django-[0-9]*/tests/tasks")
    (others,) = sdists.glob("django_tasks_db-*/tests")
    unused = swapped(django_tests, scratch / "tasks") & swapped(others, scratch / "tests")
    if unused:
        print(f"the suites have no text for these swaps: {sorted(unused)}")
        return 1
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
            for kind in {type(test) for test in tests_of(suite)}:
                if kind.__module__.startswith("tests."):
                    kind.setUp = emptied_before(kind.setUp, backends.delete_tasks)
            for test in tests_of(suite):
                cases.add(test.id())
                if reason := REASON_OF.get(short_name(test.id())):
                    setattr(test, test._testMethodName, unittest.skip(reason)(getattr(test, test._testMethodName)))
            return suite

        def run_suite(self, suite: Any, **kwargs: Any) -> Any:
            result = super().run_suite(suite, **kwargs)
            skipped.update((test.id(), reason) for test, reason in result.skipped)
            return result

        def teardown_databases(self, *args: Any, **kwargs: Any) -> None:
            # PostgreSQL does not drop a database that has other connections.
            asyncio.run(backends.hf.close())
            super().teardown_databases(*args, **kwargs)

    cases: set[str] = set()
    skipped: dict[str, str] = {}
    failures: int = Runner(verbosity=1, interactive=False).run_tests(["tasks", "tests.tests"])
    return 0 if report(cases, skipped) and not failures else 1


def report(cases: set[str], skipped: dict[str, str]) -> bool:
    """Prints what was left out, and returns whether enough cases ran and each reason names a case."""
    for reason in sorted(set(skipped.values())):
        ids = sorted(id for id, why in skipped.items() if why == reason)
        print(f"left out, {len(ids)}: {reason}")
        for id in ids:
            print(f"    {id}")
    unknown = REASON_OF.keys() - {short_name(id) for id in cases}
    if unknown:
        print(f"no case of the suites has these names: {sorted(unknown)}")
    ran = {suite: sum(id.startswith(f"{suite}.") for id in cases - skipped.keys()) for suite in ("tasks", "tests")}
    print(f"run with the backend of Holdfast: {ran['tasks']} cases of Django, {ran['tests']} of django-tasks-db")
    return not unknown and ran["tasks"] >= LEAST["tasks"] and ran["tests"] >= LEAST["tests"]


def short_name(id: str) -> str:
    return ".".join(id.split(".")[-2:])


def emptied_before(set_up: Callable[[Any], None], empty: Callable[[], None]) -> Callable[[Any], None]:
    def emptied(test: Any) -> None:
        if isinstance(test, import_module("django.test").TransactionTestCase):
            empty()
        set_up(test)

    return emptied


def swapped(source: Path, target: Path) -> set[str]:
    """Copies a suite and swaps the backend in it. Returns the swaps that it has no text for."""
    shutil.copytree(source, target)
    unused = set(SWAPS)
    for path in target.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for before, after in SWAPS.items():
            if before in text:
                unused.discard(before)
                text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    return unused


def database(scratch: Path) -> dict[str, Any]:
    """An entry of `DATABASES`."""
    if POSTGRES:
        split = urlsplit(POSTGRES)
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
    """Configures Django here and, with the test database, for the worker processes."""
    import django
    from django.conf import settings

    own: dict[str, Any] = {
        "DATABASES": {"default": database(scratch)},
        "INSTALLED_APPS": ["holdfast.django", "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                           "django.contrib.messages", "django_tasks_db"],
        "TASKS": {
            "default": {"BACKEND": "suite_backends.HoldfastBackend", "QUEUES": ["default", "queue-1"]},
            "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        },
        "USE_TZ": True,
        "SECRET_KEY": "suites",
        "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
        # The suite opens no page.
        "SILENCED_SYSTEM_CHECKS": ["admin.E403", "admin.E408", "admin.E409", "admin.E410"],
    }  # fmt: skip
    place = own["DATABASES"]["default"]
    name = place["TEST"]["NAME"] if "TEST" in place else f"test_{place['NAME']}"
    workers = {**own, "DATABASES": {"default": {**place, "NAME": name}}}
    workers["LOGGING"] = LOGGING
    workers["INSTALLED_APPS"] = [*own["INSTALLED_APPS"], "tests"]
    (scratch / "manage.py").write_text(MANAGE, encoding="utf-8")
    (scratch / "tests" / "db_worker_test_settings.py").write_text(f"globals().update({workers!r})\n", encoding="utf-8")
    os.environ["PYTHONPATH"] = str(scratch)
    settings.configure(**own)
    django.setup()


def tests_of(suite: Any) -> Iterator[Any]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        else:
            yield one


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
