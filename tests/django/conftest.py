"""A Django project on each store. The tests are skipped where Django is not installed."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django", reason="the tests of holdfast.django need Django; install holdfast[django]")

from tests.support.django_project import configure_django, set_database

configure_django()


@pytest.fixture(params=["sqlite", "postgres18"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Any], str]) -> Iterator[str]:
    """The DSN of an empty database with the tables of Holdfast."""
    if request.param == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        store = SqliteStore(tmp_path / "shop.db")
        store.migrate()
        store.close_sync()
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    from tests.servers.tables import empty

    found = database(request.getfixturevalue(request.param))
    yield found
    empty(found)


@pytest.fixture
def hf(dsn: str) -> Iterator[Any]:
    """The app of a project whose default database is `dsn`; its handlers are removed after the test."""
    yield from project(dsn)


@pytest.fixture
def test_environment() -> Iterator[None]:
    """What Django's test runner sets up: without it, the helpers of tests refuse to run."""
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment()
    yield
    teardown_test_environment()


def project(dsn: str, options: dict[str, Any] | None = None, **settings: Any) -> Iterator[Any]:
    """Yields the app of such a project, with these options of `Holdfast`."""
    from django.db import connections

    from holdfast.django.app import DjangoHoldfast
    from holdfast.django.configuration import read_configuration

    set_database("default", dsn, **settings)
    app = DjangoHoldfast(read_configuration({"OPTIONS": options or {}}))
    yield app
    asyncio.run(app.close())
    connections["default"].close()
    del connections["default"]
    del connections.settings["default"]
