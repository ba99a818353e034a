"""Fixtures of the tests of the operations service."""

from tests.support.stores import ops, place, store  # noqa: F401 - fixtures
