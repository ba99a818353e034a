"""Stores and apps as the other suites have them, a broker in memory that tests can turn off, and a real one."""

from collections.abc import Iterator

import pytest

from tests.relay.broker import Broker
from tests.servers.redis import RedisServer
from tests.support.apps import dsn, hf, log, make_app, postgres18_dsn, sqlite_dsn  # noqa: F401 - fixtures
from tests.support.stores import place, postgres_place, postgres_store, store  # noqa: F401 - fixtures


@pytest.fixture
def broker() -> Broker:
    """A broker that confirms everything, until a test changes it."""
    return Broker()


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A real broker."""
    with RedisServer() as server:
        yield server
