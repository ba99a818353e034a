"""Finishing a delivery inside the handler's own transaction, on every kind of connection a caller may hand in."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast.core.delivery import Status
from holdfast.core.errors import AlreadyHandled, LeaseLost
from holdfast.stores.admin.actions import cancel
from holdfast.stores.connections.connection import adapt_connection, run_on, run_on_async
from holdfast.stores.deliveries.settle import complete
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.support.builders import claim_of, claim_one, delivery, sql

IDLE = timedelta(seconds=30)
HANDLED = ("billing", "kafka", "orders:0:17")


class Handler:
    """A caller's transaction: an effect, our operation, and the commit, each in its driver's way."""

    def __init__(self, store: Store, conn: Any, execute: Callable[[str], Any], commit: Callable[[], Any]) -> None:
        self.store, self._conn, self._execute, self._commit = store, adapt_connection(conn), execute, commit

    async def effect(self) -> None:
        await _maybe(self._execute("insert into effect (done) values (1)"))

    async def run(self, operation: Operation[None]) -> None:
        if self._conn.awaits:
            await self._conn.check()
            await run_on_async(operation, self.store.dialect, self._conn)
        else:
            self._conn.check()
            run_on(operation, self.store.dialect, self._conn)

    async def commit(self) -> None:
        await _maybe(self._commit())


async def _maybe(result: Any) -> None:
    if hasattr(result, "__await__"):
        await result


@asynccontextmanager
async def by_sqlite3(store: Any) -> AsyncIterator[Handler]:
    with closing(sqlite3.connect(store.path)) as conn:
        yield Handler(store, conn, conn.execute, conn.commit)


@asynccontextmanager
async def by_psycopg(store: Any) -> AsyncIterator[Handler]:
    with psycopg.connect(store.conninfo) as conn:
        yield Handler(store, conn, conn.execute, conn.commit)


@asynccontextmanager
async def by_psycopg_async(store: Any) -> AsyncIterator[Handler]:
    async with await psycopg.AsyncConnection.connect(store.conninfo) as conn:
        yield Handler(store, conn, conn.execute, conn.commit)


@asynccontextmanager
async def by_asyncpg(store: Any) -> AsyncIterator[Handler]:
    conn = await asyncpg.connect(_url(store))
    transaction = conn.transaction()
    await transaction.start()
    try:
        yield Handler(store, conn, conn.execute, transaction.commit)
    finally:
        await conn.close()


def by_sqlalchemy(driver: str) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def handler(store: Any) -> AsyncIterator[Handler]:
        engine = sa.create_engine(_url(store, driver), poolclass=NullPool)
        with Session(engine) as session:
            yield Handler(store, session, lambda text: session.execute(sa.text(text)), session.commit)
        engine.dispose()

    return handler


def by_async_sqlalchemy(driver: str) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def handler(store: Any) -> AsyncIterator[Handler]:
        engine = create_async_engine(_url(store, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield Handler(store, session, lambda text: session.execute(sa.text(text)), session.commit)
        await engine.dispose()

    return handler


def _url(store: Any, driver: str = "") -> str:
    if not isinstance(store, PostgresStore):
        return f"sqlite{driver}:///{store.path}"
    given = psycopg.conninfo.conninfo_to_dict(store.conninfo)
    return f"postgresql{driver}://{given['user']}@{given['host']}:{given['port']}/{given['dbname']}"


SQLITE = {
    "sqlite3": by_sqlite3,
    "sqlalchemy": by_sqlalchemy(""),
    "sqlalchemy-aiosqlite": by_async_sqlalchemy("+aiosqlite"),
}
POSTGRES = {
    "psycopg": by_psycopg,
    "psycopg-async": by_psycopg_async,
    "asyncpg": by_asyncpg,
    "sqlalchemy-psycopg": by_sqlalchemy("+psycopg"),
    "sqlalchemy-psycopg2": by_sqlalchemy("+psycopg2"),
    "sqlalchemy-psycopg-async": by_async_sqlalchemy("+psycopg"),
    "sqlalchemy-asyncpg": by_async_sqlalchemy("+asyncpg"),
}
WAYS = [("sqlite", way) for way in SQLITE] + [("postgres18", way) for way in POSTGRES] + [("postgres16", "psycopg")]


# A way to connect belongs to one kind of database; the store's own fixture makes that one.
pytestmark = pytest.mark.parametrize(("place", "way"), WAYS, indirect=["place"])


@pytest.fixture
async def handler(store: Store, way: str) -> AsyncIterator[Handler]:
    identity = "bigint generated always as identity" if isinstance(store, PostgresStore) else "integer"
    sql(store, "drop table if exists effect")  # other tests leave one of theirs in the database of this process
    sql(store, f"create table effect (id {identity} primary key, done integer)")
    async with {**SQLITE, **POSTGRES}[way](store) as handler:
        yield handler
    if isinstance(store, PostgresStore):
        sql(store, "drop table effect")


def effects(store: Store) -> int:
    ((count,),) = sql(store, "select count(*) from effect")
    return int(str(count))


async def test_effect_and_delivered_state_commit_together(store: Store, handler: Handler) -> None:
    claimed = await claim_one(store)
    await handler.effect()
    await handler.run(complete(claim_of(claimed), IDLE))
    assert effects(store) == 0
    assert (await delivery(store, claimed.id)).status is Status.IN_FLIGHT
    await handler.commit()
    after = await delivery(store, claimed.id)
    assert effects(store) == 1
    assert (after.status, after.fence, after.locked_by) == (Status.DELIVERED, claimed.fence, None)
    assert after.completed_at is not None


async def test_a_lost_lease_raises_and_swallowing_it_commits_nothing(store: Store, handler: Handler) -> None:
    claimed = await claim_one(store)
    await store.run(cancel([claimed.id], "ada", None))
    before = await delivery(store, claimed.id)
    await handler.effect()
    with pytest.raises(LeaseLost) as lost:
        await handler.run(complete(claim_of(claimed), IDLE))
    assert (lost.value.delivery_id, lost.value.fence) == (claimed.id, claimed.fence)
    await _swallowing(handler.commit)
    assert effects(store) == 0
    assert await delivery(store, claimed.id) == before


async def test_a_key_handled_before_raises_and_swallowing_it_commits_nothing(store: Store, handler: Handler) -> None:
    claimed = await claim_one(store)
    consumer, source, key = HANDLED
    sql(
        store,
        "insert into {hf}handled (consumer, source, key, delivery_id) "
        f"values ('{consumer}', '{source}', '{key}', '{claimed.id}')",
    )
    await handler.effect()
    with pytest.raises(AlreadyHandled) as handled:
        await handler.run(complete(claim_of(claimed), IDLE, HANDLED))
    assert (handled.value.consumer, handled.value.key) == (consumer, key)
    await _swallowing(handler.commit)
    assert effects(store) == 0
    assert (await delivery(store, claimed.id)).status is Status.IN_FLIGHT


async def test_effect_inbox_and_delivered_state_commit_together(store: Store, handler: Handler) -> None:
    claimed = await claim_one(store)
    await handler.effect()
    await handler.run(complete(claim_of(claimed), IDLE, HANDLED))
    await handler.commit()
    assert effects(store) == 1
    assert sql(store, "select consumer, source, key from {hf}handled") == [HANDLED]
    assert (await delivery(store, claimed.id)).status is Status.DELIVERED


async def _swallowing(commit: Callable[[], Any]) -> None:
    """Commits as a handler would that swallowed the error; some drivers refuse even that."""
    with suppress(psycopg.Error, asyncpg.PostgresError, sa.exc.SQLAlchemyError):
        await commit()
