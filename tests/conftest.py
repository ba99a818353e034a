"""Fixtures that every test may use."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import structlog

from holdfast._log import background
from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated


def pytest_configure() -> None:
    """A run that was started in the background ignores SIGINT, and so would the programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves PostgreSQL 16 to `make test-long`: `make test` runs the same tests on PostgreSQL 18 and SQLite."""
    for item in items:
        if "postgres16" in item.name or "postgres16" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """Undoes what a test configured: `capture_logs` and commands in this process leave structlog configured, and then
    the log lines of later tests go where they sent them, or to stdout. A command may also leave the logging thread in
    use; without it, lines are written before the call that logs them returns."""
    yield
    background.flush()
    background._users = 0
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    """PostgreSQL 16, or the version in `HOLDFAST_TEST_POSTGRES`; started for the first test, shared by all of a process."""
    with PostgresServer(int(os.environ.get("HOLDFAST_TEST_POSTGRES", "16"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """PostgreSQL 18, started when the first test of a worker asks for it and shared by that worker's tests."""
    with PostgresServer(18) as server:
        yield server


@pytest.fixture(scope="session")
def database() -> Callable[[PostgresServer], str]:
    """The DSN of a server's migrated database, made once per session and emptied after each test."""
    made: dict[int, str] = {}

    def ready(server: PostgresServer) -> str:
        if server.port not in made:
            made[server.port] = migrated(server, "holdfast_test")
        return made[server.port]

    return ready
