"""The ledger on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.projections import ledger
from tests.support.apps import dsn, log, postgres18_dsn, sqlite_dsn

__all__ = ["dsn", "log", "postgres18_dsn", "sqlite_dsn"]


@pytest.fixture
async def hf(dsn: str) -> AsyncIterator[Holdfast]:
    """The ledger with its tables, closed after the test."""
    made = ledger.build(dsn)
    ledger.tables(made)
    yield made
    await made.close()
