"""Every kind of connection a handler may finish its delivery on: each opens a transaction and runs the user's SQL."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import begin_immediate
from tests.produce.place import PostgresPlace, SqlitePlace, use_django

Execute = Callable[[str], Any]
Blocking = Callable[[str], AbstractContextManager[tuple[Any, Execute]]]
Awaiting = Callable[[str], AbstractAsyncContextManager[tuple[Any, Callable[[str], Awaitable[Any]]]]]


@contextmanager
def by_sqlite3(dsn: str) -> Iterator[tuple[Any, Execute]]:
    conn = sqlite3.connect(dsn.removeprefix("sqlite:///"), timeout=10)
    try:
        with conn:
            yield conn, conn.execute
    finally:
        conn.close()


@contextmanager
def by_psycopg(dsn: str) -> Iterator[tuple[Any, Execute]]:
    with psycopg.connect(dsn) as conn:
        yield conn, conn.execute


@asynccontextmanager
async def by_psycopg_async(dsn: str) -> AsyncIterator[tuple[Any, Execute]]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield conn, conn.execute


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[tuple[Any, Execute]]:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            yield conn, conn.execute
    finally:
        await conn.close()


def _session(url: str) -> Blocking:
    @contextmanager
    def open(dsn: str) -> Iterator[tuple[Any, Execute]]:
        engine = sa.create_engine(dsn.replace("postgresql:", url), poolclass=NullPool)
        if dsn.startswith("sqlite"):
            begin_immediate(engine)
        with Session(engine) as session, session.begin():
            yield session, lambda text: session.execute(sa.text(text))
        engine.dispose()

    return open


def _async_session(sqlite: str, url: str) -> Awaiting:
    @asynccontextmanager
    async def open(dsn: str) -> AsyncIterator[tuple[Any, Execute]]:
        place = dsn.replace("sqlite:", sqlite).replace("postgresql:", url)
        engine = create_async_engine(place, poolclass=NullPool)
        if dsn.startswith("sqlite"):
            begin_immediate(engine)
        async with AsyncSession(engine) as session, session.begin():
            yield session, lambda text: session.execute(sa.text(text))
        await engine.dispose()

    return open


@contextmanager
def by_django(dsn: str) -> Iterator[tuple[Any, Execute]]:
    from django.db import connections, transaction

    # A connection belongs to its thread: this one opens its own and closes it.
    alias = "holdfast_sqlite" if dsn.startswith("sqlite") else "holdfast_postgres"
    conn = connections[alias]
    try:
        with transaction.atomic(using=alias), conn.cursor() as cursor:
            yield alias, cursor.execute
    finally:
        conn.close()


def configure_django(dsn: str) -> None:
    """Makes the database known to Django; from the test's own thread."""
    if dsn.startswith("postgres"):
        use_django(PostgresPlace(dsn))
    else:
        use_django(_File(Path(dsn.removeprefix("sqlite:///"))))


class _File(SqlitePlace):
    """A file as it is: nothing is made in it."""

    def __init__(self, path: Path) -> None:
        self.path = path


BLOCKING: dict[str, dict[str, Blocking]] = {
    "sqlite": {"sqlite3": by_sqlite3, "sqlalchemy": _session(""), "django": by_django},
    "postgres18": {"psycopg": by_psycopg, "sqlalchemy": _session("postgresql+psycopg:"), "django": by_django},
}
AWAITING: dict[str, dict[str, Awaiting]] = {
    "sqlite": {"aiosqlite": _async_session("sqlite+aiosqlite:", "")},
    "postgres18": {
        "psycopg-async": by_psycopg_async,
        "asyncpg": by_asyncpg,
        "sqlalchemy-psycopg-async": _async_session("", "postgresql+psycopg_async:"),
        "sqlalchemy-asyncpg": _async_session("", "postgresql+asyncpg:"),
    },
}
WAYS = [
    *((database, way) for database, ways in BLOCKING.items() for way in ways),
    *((database, way) for database, ways in AWAITING.items() for way in ways),
]
