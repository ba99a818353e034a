"""Databases for programs that are fed by a broker, and an app in the test's own loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.programs import place as places
from tests.engine.programs.place import Place
from tests.servers.apache_kafka import ApacheKafka, exclusive_kafka, shared_kafka
from tests.servers.postgres import PostgresServer
from tests.support.apps import (
    dsn,
    hf,
    log,
    make_app,
    postgres16_dsn,
    postgres18_dsn,
    sqlite_dsn,
)

__all__ = ["dsn", "hf", "log", "make_app", "postgres16_dsn", "postgres18_dsn", "sqlite_dsn"]


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    """SQLite, for one worker at a time."""
    with places.sqlite_place(tmp_path) as place:
        yield place


@pytest.fixture
def postgres_place(tmp_path: Path, postgres18: PostgresServer) -> Iterator[Place]:
    """PostgreSQL, for as many workers as one likes."""
    with places.postgres_place(postgres18, tmp_path) as place:
        yield place


@pytest.fixture(scope="session")
def apache_kafka() -> ApacheKafka:
    """One node of a real Apache Kafka, shared by all processes of the test run and never killed."""
    return shared_kafka(1)


@pytest.fixture
def apache_cluster() -> Iterator[ApacheKafka]:
    """Three nodes of a real Apache Kafka. The test has them for itself and may kill them."""
    with exclusive_kafka(3) as cluster:
        yield cluster
