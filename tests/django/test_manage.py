"""`manage.py` of a real project in its own process: tests with Django's runner, dumpdata, and wrong settings."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_project import database_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "django.md").read_text(encoding="utf-8")
FILES = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        execute_from_command_line(sys.argv)
    """,
    "settings.py": """
        import json, os
        INSTALLED_APPS = ["holdfast.django", "shop"]
        DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
        HOLDFAST = json.loads(os.environ["SHOP_HOLDFAST"])
        ROOT_URLCONF = "shop.urls"
        SECRET_KEY = "tests"
        USE_TZ = True
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models
        class Stock(models.Model):
            id = models.AutoField(primary_key=True)
            item = models.TextField()
            reserved = models.IntegerField()
    """,
    "shop/urls.py": """
        from holdfast.django import hf
        urlpatterns = []
    """,
    "shop/test_separate.py": """
        import unittest
        from django.db import connection
        from django.test import TestCase, TransactionTestCase
        from holdfast.django import hf
        from holdfast.django.test_database import table_names
        from holdfast.django.testing import delete_everything, run_deliveries
        from shop.models import Stock

        def count():
            prefix = '"holdfast".' if connection.vendor == "postgresql" else "holdfast_"
            with connection.cursor() as cursor:
                counts = []
                for name in table_names("postgres" if connection.vendor == "postgresql" else "sqlite"):
                    cursor.execute(f"select count(*) from {prefix}{name}")
                    counts += cursor.fetchone()
                return sum(counts)

        class NothingTest(TestCase):
            def test_nothing(self):
                pass

        class LeakTest(TransactionTestCase):
            def order(self):
                self.assertEqual(hf.ops.sync.messages(), [])
                self.assertEqual(hf.ops.sync.deliveries(), [])
                Stock.objects.create(item="tea", reserved=0)
                hf.sync.publish("order.placed", {"item": "tea"})
                self.assertEqual(len(hf.ops.sync.deliveries()), 1)
                run_deliveries()
                self.assertEqual(Stock.objects.get().reserved, 1)
                hf.sync.publish("order.placed", {"item": "tea"})

            def test_one(self):
                self.order()

            def test_two(self):
                self.order()

        class LastTest(unittest.TestCase):  # Django runs it last, so that its connection is open when the database is dropped
            def test_a_connection_stays_open(self):
                hf.sync.publish("order.placed", {"item": "tea"}, conn=None)

        class SerializedTest(TransactionTestCase):
            serialized_rollback = True

            def test_everything_can_be_deleted(self):
                hf.sync.publish("order.placed", {"item": "tea"})
                delete_everything()
                self.assertEqual(count(), 0)
                hf.sync.publish("order.placed", {"item": "tea"})
                delete_everything()
    """,
}


def example(name: str) -> str:
    """The file of the page that begins with this comment."""
    (found,) = re.findall(rf"```python\n# {re.escape(name)}\nfrom django.(?:db|test) (.*?)```", PAGE, re.DOTALL)
    return f"from django.{'test' if 'test' in name else 'db'} {found}"


@pytest.fixture(params=["sqlite", "postgres18"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The DSN of the project's database, which is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return str(request.getfixturevalue(request.param).create_database(f"shop_{secrets.token_hex(4)}"))


@pytest.fixture
def manage(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of the project."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        lines = text.splitlines()
        path.write_text("\n".join(line.removeprefix("        ") for line in lines))
    for name in ("shop/handlers.py", "shop/tests.py"):
        (tmp_path / name).write_text(example(name))

    def run(*arguments: str, dsn: str, holdfast: object = None) -> subprocess.CompletedProcess[str]:
        place = database_settings(dsn)
        if dsn.startswith("sqlite"):
            place["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "DJANGO"))},
            "SHOP_DATABASE": json.dumps(place),
            "SHOP_HOLDFAST": json.dumps(holdfast or {}),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)]),
        }
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_the_tests_of_a_project_pass_with_the_runner_of_django_and_leave_nothing(manage: Any, address: str) -> None:
    ended = manage("test", "--noinput", "-v", "2", dsn=address)
    assert ended.returncode == 0, ended.stderr
    assert "Ran 8 tests" in ended.stderr
    assert "W001" not in ended.stderr
    if address.startswith("postgresql"):
        import psycopg

        with psycopg.connect(address) as connection:
            rows = connection.execute("select datname from pg_database where datname like 'test\\_%'").fetchall()
        assert f"test_{address.rpartition('/')[2]}" not in [name for (name,) in rows]


def test_tests_ignore_a_dsn_that_names_the_real_database(manage: Any, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path / 'shop.db'}"
    ended = manage("test", "--noinput", dsn=dsn, holdfast={"DSN": dsn})
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "shop.db").exists()


def test_helpers_of_tests_refuse_the_real_database(manage: Any, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path / 'shop.db'}"
    script = """
from django.test.utils import setup_test_environment
from holdfast.django import hf, testing
hf.sync.publish("order.placed", {})
setup_test_environment()
for call in (testing.run_deliveries, testing.transaction_harness().__enter__, testing.delete_everything):
    try:
        call()
    except Exception as error:
        print("refused", error)
print("left", len(hf.ops.sync.deliveries()) + len(hf.ops.sync.messages()))
"""
    assert manage("migrate", dsn=dsn).returncode == 0
    ended = manage("shell", "-c", script, dsn=dsn)
    assert ended.stdout.count("runs only on a test database") == 3, ended.stderr
    assert "left 2" in ended.stdout  # the message and its delivery, which did not run
    assert "shop.db is the database of the project" in ended.stdout
    # Not a test database, so its flush leaves what Holdfast stores.
    assert manage("flush", "--noinput", dsn=dsn).returncode == 0
    assert "order.placed" in manage("holdfast", "messages", "list", dsn=dsn).stdout


def test_printed_commands_are_those_of_the_project(manage: Any, address: str) -> None:
    before = manage("holdfast", "stats", dsn=address)
    assert before.returncode == 5
    assert "`python manage.py migrate`" in before.stderr
    assert manage("migrate", dsn=address).returncode == 0
    script = "from holdfast.django import hf; hf.sync.publish('order.placed', {'item': 'tea'})"
    assert manage("shell", "-c", script, dsn=address).returncode == 0
    ended = manage("holdfast", "doctor", dsn=address)
    assert "`python manage.py holdfast worker`" in ended.stdout, ended.stdout


def test_help_shows_the_commands_of_holdfast(manage: Any, tmp_path: Path) -> None:
    ended = manage("help", "holdfast", dsn=f"sqlite:///{tmp_path / 'shop.db'}")
    assert ended.returncode == 0, ended.stderr
    assert "Usage: manage.py holdfast" in ended.stdout
    assert "\n  dlq " in ended.stdout


def test_an_app_that_is_not_installed_is_refused_in_one_line(manage: Any, tmp_path: Path) -> None:
    settings = tmp_path / "settings.py"
    settings.write_text(settings.read_text().replace('"holdfast.django", ', ""))
    ended = manage("check", dsn=f"sqlite:///{tmp_path / 'shop.db'}")
    assert ended.returncode == 1
    assert ended.stderr.startswith("SettingsError: 'holdfast.django' is not in settings.INSTALLED_APPS; add it"), (
        ended.stderr
    )
    assert len(ended.stderr.splitlines()) == 1


def test_dumpdata_works(manage: Any, address: str) -> None:
    assert manage("migrate", "--run-syncdb", dsn=address).returncode == 0
    for option in ((), ("--all",)):
        ended = manage("dumpdata", *option, dsn=address)
        assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"DATABSE": "default"}, "has no key 'DATABSE'; did you mean 'DATABASE'?"),
        ({"OPTIONS": {"kep": "7d"}}, "has no option kep="),
        ({"OPTIONS": {"transaction_mode": "IMMEDIATE"}}, "write it into DATABASES['default']['OPTIONS']"),
    ],
)
def test_wrong_settings_are_one_line_although_the_views_import_the_app(
    manage: Any, tmp_path: Path, wrong: object, expected: str
) -> None:
    for command in (("check",), ("holdfast", "worker", "--until-idle")):
        ended = manage(*command, dsn=f"sqlite:///{tmp_path / 'shop.db'}", holdfast=wrong)
        assert ended.returncode
        assert expected in ended.stderr
        assert "Traceback" not in ended.stderr
