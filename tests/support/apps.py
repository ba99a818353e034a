"""An app on a fresh database, on SQLite and on PostgreSQL, and everything that is logged."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from holdfast import Holdfast
from tests.servers.postgres import PostgresServer
from tests.servers.tables import empty
from tests.support.stores import copy_migrated
from tests.support.worker import Log

MakeApp = Callable[..., Holdfast]


@pytest.fixture
def sqlite_dsn(tmp_path: Path) -> str:
    """A file that is made at the first use."""
    return f"sqlite:///{tmp_path / 'holdfast.db'}"


@pytest.fixture
def postgres16_dsn(postgres16: PostgresServer, database: Callable[[PostgresServer], str]) -> Iterator[str]:
    """A database with empty tables."""
    yield database(postgres16)
    empty(database(postgres16))


@pytest.fixture
def postgres18_dsn(postgres18: PostgresServer, database: Callable[[PostgresServer], str]) -> Iterator[str]:
    """A database with empty tables."""
    yield database(postgres18)
    empty(database(postgres18))


@pytest.fixture(params=["sqlite", "postgres18"])
def dsn(request: pytest.FixtureRequest) -> str:
    """Each of the databases; parametrize it indirectly to choose others."""
    found: str = request.getfixturevalue(f"{request.param}_dsn")
    if request.param == "sqlite":
        copy_migrated(Path(found.removeprefix("sqlite:///")))
    return found


@pytest.fixture
async def make_app(dsn: str) -> AsyncIterator[MakeApp]:
    """Makes apps on the database; closed after the test."""
    made: list[Holdfast] = []

    def make(**given: Any) -> Holdfast:
        made.append(Holdfast(given.pop("dsn", dsn), **given))
        return made[-1]

    yield make
    for hf in made:
        await hf.close()


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    """An app without handlers; declare them in the test."""
    return make_app()


@pytest.fixture
def log() -> Iterator[Log]:
    """Everything that is logged during the test, with what is bound to the context."""
    capture = LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    yield capture.entries  # type: ignore[misc]
    structlog.reset_defaults()
