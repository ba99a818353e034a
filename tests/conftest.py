"""Fixtures that every test may use."""

from collections.abc import Iterator

import pytest

from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    """PostgreSQL 16, started when the first test of a worker asks for it and shared by that worker's tests."""
    with PostgresServer(16) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """PostgreSQL 18, started when the first test of a worker asks for it and shared by that worker's tests."""
    with PostgresServer(18) as server:
        yield server
