"""A server to call, the stores and Redis for circuits, and log lines that can be looked at."""

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture

from tests.outbound.loopback import Server, serving
from tests.servers.redis import RedisServer
from tests.support.stores import place, store  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """A server on loopback, scripted by each test."""
    return _server.plays()


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def lines() -> Iterator[LogCapture]:
    """Every log line of the test."""
    captured = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[captured])
    yield captured
    structlog.configure(**before)
