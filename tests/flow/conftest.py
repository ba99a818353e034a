"""A database with Holdfast's tables for worker processes, on SQLite and on PostgreSQL 18."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated
from tests.support.stores import copy_migrated

_numbers = count(1)


@pytest.fixture(params=["sqlite", "postgres18"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A separate database: workers that are killed leave sessions behind for a moment."""
    if request.param == "sqlite":
        copy_migrated(tmp_path / "holdfast.db")
        yield f"sqlite:///{tmp_path / 'holdfast.db'}"
        return
    server: PostgresServer = request.getfixturevalue(request.param)
    name = f"flow_{next(_numbers)}"
    yield migrated(server, name)
    server.drop_database(name)
