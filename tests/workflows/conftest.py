"""Fixtures of the workflow's tests."""

from tests.support.apps import (  # noqa: F401 - fixtures
    dsn,
    hf,
    log,
    make_app,
    postgres16_dsn,
    postgres18_dsn,
    sqlite_dsn,
)
