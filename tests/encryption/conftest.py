"""Fixtures of the tests about encryption: apps on SQLite and PostgreSQL, and the text that the database holds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast import Holdfast
from holdfast.cipher import AesGcm
from tests.support.apps import MakeApp, dsn, log, make_app, postgres18_dsn, sqlite_dsn
from tests.support.builders import sql

__all__ = ["dsn", "log", "make_app", "postgres18_dsn", "sqlite_dsn"]

OLD, NEW = AesGcm.new_key(), AesGcm.new_key()
TABLES = (
    *("message", "delivery", "run", "result", "workflow_run", "workflow_step", "workflow_signal", "idempotency"),
    *("endpoint", "schedule", "audit", "job_group", "job_group_member"),
)

Dump = Callable[[Holdfast], Awaitable[str]]


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    """An app with one key."""
    return make_app(cipher=AesGcm({"old": OLD}))


@pytest.fixture
def dump() -> Dump:
    """All rows of the tables that hold data of the app, as one text."""

    async def read(hf: Holdfast) -> str:
        found = []
        for table in TABLES:
            rows = await asyncio.to_thread(sql, hf.store, f"select * from {{hf}}{table}")
            found += [bytes(v).decode() if isinstance(v, bytes | memoryview) else str(v) for row in rows for v in row]
        return "\n".join(found)

    return read
