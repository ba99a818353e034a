"""Fixtures of the tests of the operations service."""

from tests.support.stores import ops, place, postgres_place, postgres_store, store  # noqa: F401 - fixtures
