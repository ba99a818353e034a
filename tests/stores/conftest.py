"""Fixtures of the stores' tests."""

from tests.support.stores import (  # noqa: F401 - fixtures
    empty_database,
    place,
    postgres_place,
    postgres_store,
    server,
    sqlite_store,
    store,
)
