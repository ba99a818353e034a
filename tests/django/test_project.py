"""The settings, the system checks, the commands and the handlers' connections of a Django project."""

import asyncio
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.models.signals import post_migrate
from django.test import override_settings

import holdfast.django
from holdfast import ConfigurationError, HoldfastError, SchemaMismatch, WorkerOptions
from holdfast.django import checks
from holdfast.django.app import project_app
from holdfast.django.configuration import read_configuration
from holdfast.django.database import database_of, dsn_of
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.django_project import set_database


@pytest.fixture
def fresh_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`holdfast.django.hf` is made again in the test, and forgotten after it."""
    project_app.cache_clear()
    monkeypatch.delitem(vars(holdfast.django), "hf", raising=False)
    yield
    project_app.cache_clear()
    vars(holdfast.django).pop("hf", None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "settings.HOLDFAST is of type list; give a dict"),
        ({"DATABSE": "x"}, "has no key 'DATABSE'; did you mean 'DATABASE'?"),
        ({"MIGRATE": 1}, r"settings.HOLDFAST\['MIGRATE'\] is 1; give True or False"),
        ({"MODULES": "jobs"}, r"\['MODULES'\] is 'jobs'; give a list of module names"),
        ({"OPTIONS": {"dsn": "x"}}, "give 'DSN' as a key of HOLDFAST itself"),
        ({"CONSOLE_URL": "javascript:alert(1)"}, r"\['CONSOLE_URL'\] is .*; give the address of the console"),
        ({"DSN": 1}, r"\['DSN'\] is 'int'; give text"),
        ({"DATABASE": None}, r"\['DATABASE'\] is None; give text"),
        ({"SCHEMA": "A b"}, r"settings.HOLDFAST\['SCHEMA'\] is invalid: schema name 'A b' is invalid"),
        ({"SOURCE": ""}, r"settings.HOLDFAST\['SOURCE'\] is invalid: .*it is empty"),
        ({"DSN": "shop.db"}, r"settings.HOLDFAST\['DSN'\] is invalid: .*for a file write sqlite:///shop.db"),
        ({"KEEP": "7d"}, r"has no key 'KEEP'; write 'OPTIONS': \{'keep': ...\}. It takes CONSOLE_URL"),
        ({7: "7d"}, "has no key 7; it takes CONSOLE_URL"),
        ({"OPTIONS": {7: "7d"}}, r"\['OPTIONS'\] is \{7: '7d'\}; give the names of options as text"),
    ],
)
def test_wrong_settings_are_refused_with_the_remedy(given: Any, expected: str) -> None:
    with pytest.raises(HoldfastError, match=expected):
        read_configuration(given)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kep": "7d"}, r"Holdfast\(\) has no option kep=; did you mean keep=\?"),
        ({"keep": "7 parsecs"}, "keep '7 parsecs' cannot be read"),
        ({"queues": ["mail"]}, r"give Queue\('mail', ...\)"),
    ],
)
def test_an_error_of_an_option_names_the_setting(options: Any, expected: str, fresh_app: Any) -> None:
    with (
        override_settings(HOLDFAST={"OPTIONS": options}),
        pytest.raises(ConfigurationError, match=r"settings.HOLDFAST\['OPTIONS'\] cannot be used: .*" + expected),
    ):
        project_app()


def test_the_checks_report_wrong_settings_and_databases(tmp_path: Any, fresh_app: Any) -> None:
    def found(**given: Any) -> list[str]:
        project_app.cache_clear()
        with override_settings(HOLDFAST=given):
            return [str(one.id) for one in (*checks.check_configuration(), *checks.check_tables(["default"]))]

    set_database("default", f"sqlite:///{tmp_path / 'shop.db'}")
    assert found() == ["holdfast.W002", "holdfast.W003"]
    set_database("default", f"sqlite:///{tmp_path / 'shop.db'}", OPTIONS={"transaction_mode": "IMMEDIATE"})
    SqliteStore(tmp_path / "shop.db").migrate()
    assert found() == []
    assert found(KEEP="7d") == ["holdfast.E001"]
    assert found(DATABASE="other") == ["holdfast.E001"]
    assert found(OPTIONS={"kep": "7d"}) == ["holdfast.E002"]
    assert found(DSN=f"sqlite:///{tmp_path / 'shop.db'}") == []
    assert found(DSN=f"sqlite:///{tmp_path / 'other.db'}")[0] == "holdfast.E003"
    assert found(DSN="postgresql:///shop")[0] == "holdfast.E003"
    set_database("default", "sqlite:///x", NAME=":memory:")
    assert found() == ["holdfast.W001"]
    assert found(DSN=f"sqlite:///{tmp_path / 'shop.db'}")[0] == "holdfast.E003"
    del connections.settings["default"]


def test_a_database_without_tables_can_be_migrated(tmp_path: Any, fresh_app: Any) -> None:
    set_database("default", f"sqlite:///{tmp_path / 'shop.db'}", OPTIONS={"transaction_mode": "IMMEDIATE"})
    # `manage.py migrate` begins with these checks and stops at an error; `call_command("migrate")` would omit them.
    found = run_checks(databases=["default"], tags=[Tags.database])
    assert [(one.id, one.is_serious()) for one in found] == [("holdfast.W003", False)]
    with override_settings(HOLDFAST={"MIGRATE": False}):
        project_app.cache_clear()
        (warned,) = checks.check_tables(["default"])
    assert "manage.py holdfast schema migrate" in str(warned.hint)
    assert warned.msg == "schema 'holdfast' has no Holdfast tables"  # the hint has the only remedy
    del connections["default"], connections.settings["default"]


def test_tables_of_a_newer_release_are_refused_with_the_remedy(tmp_path: Any, fresh_app: Any) -> None:
    set_database("default", f"sqlite:///{tmp_path / 'shop.db'}", OPTIONS={"transaction_mode": "IMMEDIATE"})
    store = SqliteStore(tmp_path / "shop.db")
    store.migrate()
    with store.transaction(timedelta(seconds=10)) as connection:
        connection.execute("insert into holdfast_schema_version (version, name) values (99, 'later')")
    store.close_sync()
    (warned,) = checks.check_tables(["default"])
    assert (warned.id, warned.hint) == ("holdfast.W003", None)
    assert "upgrade holdfast" in warned.msg
    config = apps.get_app_config("holdfast")
    (migrated,) = [one for one in post_migrate._live_receivers(config)[0] if one.__module__ == "holdfast.django.apps"]
    with pytest.raises(CommandError, match="upgrade holdfast"):
        migrated(using="default")
    with pytest.raises(SchemaMismatch, match="upgrade holdfast"):
        holdfast.django.hf.sync.publish("order.placed", {"id": 1})
    del connections["default"], connections.settings["default"]


@pytest.mark.parametrize(
    ("settings", "dsn"),
    [
        ({"NAME": "/srv/a b.db", "ENGINE": "django.db.backends.sqlite3"}, "sqlite:////srv/a%20b.db"),
        ({"NAME": "shop"}, "postgresql:///shop"),
        (
            {"NAME": "shop", "USER": "ada", "PASSWORD": "p@:/", "HOST": "db", "PORT": 5433},
            "postgresql://ada:p%40%3A%2F@db:5433/shop",
        ),
        ({"NAME": "shop", "HOST": "/run/pg"}, "postgresql://%2Frun%2Fpg/shop"),
        (
            {"NAME": "shop", "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2}},
            "postgresql:///shop?sslmode=require",
        ),
    ],
)
def test_the_store_is_the_database_of_the_alias(settings: dict[str, Any], dsn: str) -> None:
    set_database("default", "postgresql:///x", **settings)
    assert dsn_of(database_of("default")) == dsn
    del connections["default"], connections.settings["default"]


def test_migrate_creates_the_tables_of_its_alias_and_the_commands_use_them(
    tmp_path: Any, fresh_app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    set_database("default", f"sqlite:///{tmp_path / 'shop.db'}")
    config = apps.get_app_config("holdfast")
    # Those of Django's own apps need their tables.
    (migrated,) = [one for one in post_migrate._live_receivers(config)[0] if one.__module__ == "holdfast.django.apps"]
    migrated(using="other", verbosity=1)
    assert not (tmp_path / "shop.db").exists()
    migrated(using="default", verbosity=1, stdout=(output := StringIO()))
    assert "Holdfast: applied" in output.getvalue()
    holdfast.django.hf.store.check_schema()
    holdfast.django.hf.sync.publish("order.placed", {"id": 1})
    call_command("holdfast", "messages", "list", "--format", "json")
    assert "order.placed" in capsys.readouterr().out
    with pytest.raises(CommandError, match="exit code 2"):
        call_command("holdfast", "mesages", stderr=StringIO())
    assert "no such command" in capsys.readouterr().err
    del connections["default"], connections.settings["default"]


def test_a_worker_runs_handlers_with_connections_that_it_closes(hf: Any) -> None:
    used: list[Any] = []

    @hf.consumer("order.placed")
    def plain(order: dict[str, Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        used.append(connections["default"])

    hf.sync.publish("order.placed", {"id": 1})
    asyncio.run(hf.work(WorkerOptions(until_idle=True, cron=False)))
    assert [one.connection for one in used] == [None], "CONN_MAX_AGE is 0"


def test_a_dsn_of_another_database_is_refused_by_the_checks(database: Any, postgres18: Any, fresh_app: Any) -> None:
    def found(dsn: str) -> list[str]:
        project_app.cache_clear()
        with override_settings(HOLDFAST={"DSN": dsn}):
            return [str(one.id) for one in (*checks.check_configuration(), *checks.check_tables(["default"]))]

    own, other = database(postgres18), postgres18.create_database("django_other")
    set_database("default", own)
    assert found(own) == []
    # Without a connection only the names are known, which a pooler may change.
    assert found(other) == ["holdfast.W004", "holdfast.E003"]
    assert found(f"{own.partition('://')[0]}://127.0.0.1:1/{own.rpartition('/')[2]}") == ["holdfast.W003"]
    del connections["default"], connections.settings["default"]


def test_a_check_leaves_no_connection_open(database: Any, postgres18: Any, fresh_app: Any) -> None:
    import psycopg

    dsn = database(postgres18)
    set_database("default", dsn)
    assert checks.check_tables(["default"]) == []
    with psycopg.connect(dsn) as other:
        left = (
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'holdfast'"
        )
        assert other.execute(left).fetchone() == (0,)
    del connections["default"], connections.settings["default"]
