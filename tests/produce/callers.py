"""Callers: every kind of connection that `conn=` takes, in the hands of a user who writes a row and publishes.

All of them look alike and block; the awaiting kinds run in a separate event loop.
"""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

import asyncpg
import psycopg
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, Published, begin_immediate
from tests.produce.place import Place, use_django

T = TypeVar("T")

INSERT = "insert into orders (id) values ({})"


class Caller:
    """A user's connection in an open transaction. `conn` is what is handed to `publish`."""

    awaits = False

    def __init__(self, place: Place) -> None:
        self.place = place
        self.conn: Any = None
        self.runner = asyncio.Runner()
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def execute(self, text: str) -> Any:
        """Runs a statement of the caller's own; the rows if there are any."""
        raise NotImplementedError

    def commit(self) -> None:
        self.conn.commit()

    def rollback(self) -> None:
        self.conn.rollback()

    def close(self) -> None:
        self.conn.close()

    def savepoint(self) -> None:
        self.execute("savepoint inner_one")

    def rollback_savepoint(self) -> None:
        self.execute("rollback to savepoint inner_one")

    def insert(self, id: int) -> None:
        self.execute(INSERT.format(id))

    def publish(self, hf: Holdfast, *args: Any, **options: Any) -> Published:
        if self.awaits:
            return self.runner.run(hf.publish(*args, conn=self.conn, **options))
        return hf.sync.publish(*args, conn=self.conn, **options)

    def publish_many(self, hf: Holdfast, events: list[object]) -> list[Published]:
        if self.awaits:
            return self.runner.run(hf.publish_many(events, conn=self.conn))
        return hf.sync.publish_many(events, conn=self.conn)

    def end(self) -> None:
        self.close()
        self.runner.close()


class BySqlite3(Caller):
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.conn = sqlite3.connect(self.place.path, **self.options)

    def execute(self, text: str) -> Any:
        return self.conn.execute(text).fetchall()


class BySqlite3Exclusive(BySqlite3):
    """In WAL mode: with a rollback journal it would keep readers out, this test's own too."""

    options: ClassVar[dict[str, Any]] = {"isolation_level": "EXCLUSIVE"}

    def open(self) -> None:
        self.place.rows("pragma journal_mode = wal")
        super().open()


class BySqlite3Begin(BySqlite3):
    options: ClassVar[dict[str, Any]] = {"isolation_level": None}

    def open(self) -> None:
        super().open()
        self.conn.execute("begin")


class BySqlite3Rows(BySqlite3):
    """With a row factory and a text factory of the caller's."""

    def open(self) -> None:
        super().open()
        self.conn.row_factory = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))
        self.conn.text_factory = bytes


class ByPsycopg(Caller):
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.conn = psycopg.connect(self.place.url(), **self.options)

    def execute(self, text: str) -> Any:
        cursor = self.conn.execute(text)
        return cursor.fetchall() if cursor.description else []


class ByPsycopgTransaction(ByPsycopg):
    """Autocommit, with `conn.transaction()` around the work."""

    options: ClassVar[dict[str, Any]] = {"autocommit": True}

    def open(self) -> None:
        super().open()
        self.transaction = self.conn.transaction()
        self.transaction.__enter__()

    def commit(self) -> None:
        self.transaction.__exit__(None, None, None)

    def rollback(self) -> None:
        self.transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


class ByPsycopgPipeline(ByPsycopg):
    def open(self) -> None:
        super().open()
        self.blocks = ExitStack()
        self.pipeline = self.blocks.enter_context(self.conn.pipeline())

    def execute(self, text: str) -> Any:
        cursor = self.conn.execute(text)
        self.pipeline.sync()
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.blocks.close()
        super().close()


class Awaiting(Caller):
    awaits = True

    def open(self) -> None:
        self.run(self.open_async())

    async def open_async(self) -> None:
        raise NotImplementedError

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def commit(self) -> None:
        self.run(self.conn.commit())

    def rollback(self) -> None:
        self.run(self.conn.rollback())

    def close(self) -> None:
        self.run(self.conn.close())


class ByAsyncPsycopg(Awaiting):
    options: ClassVar[dict[str, Any]] = {}

    async def open_async(self) -> None:
        self.conn = await psycopg.AsyncConnection.connect(self.place.url(), **self.options)

    def execute(self, text: str) -> Any:
        return self.run(self._execute(text))

    async def _execute(self, text: str) -> Any:
        cursor = await self.conn.execute(text)
        return await cursor.fetchall() if cursor.description else []


class ByAsyncPsycopgTransaction(ByAsyncPsycopg):
    options: ClassVar[dict[str, Any]] = {"autocommit": True}

    async def open_async(self) -> None:
        await super().open_async()
        self.transaction = self.conn.transaction()
        await self.transaction.__aenter__()

    def commit(self) -> None:
        self.run(self.transaction.__aexit__(None, None, None))

    def rollback(self) -> None:
        self.run(self.transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None))


class ByAsyncpg(Awaiting):
    async def open_async(self) -> None:
        self.conn = await asyncpg.connect(self.place.url())
        await self.begin()

    async def begin(self) -> None:
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    def execute(self, text: str) -> Any:
        return [tuple(row) for row in self.run(self.conn.fetch(text))]

    def commit(self) -> None:
        self.run(self.transaction.commit())

    def rollback(self) -> None:
        self.run(self.transaction.rollback())


class ByAsyncpgPool(ByAsyncpg):
    """From a pool, whose connections decode JSON as the caller likes it."""

    async def open_async(self) -> None:
        async def init(conn: asyncpg.Connection) -> None:
            await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

        self.pool = await asyncpg.create_pool(self.place.url(), min_size=1, max_size=1, init=init)
        self.conn = await self.pool.acquire()
        await self.begin()

    def close(self) -> None:
        async def closing() -> None:
            await self.pool.release(self.conn)
            await self.pool.close()

        self.run(closing())


class BySqlalchemy(Caller):
    """A session; `shape` makes of it what is handed in."""

    driver = ""
    immediate = False

    def open(self) -> None:
        self.engine = sa.create_engine(self.place.url(self.driver), poolclass=NullPool)
        if self.immediate:
            begin_immediate(self.engine)
        self.conn = self.shape()

    def shape(self) -> Any:
        return Session(self.engine)

    def execute(self, text: str) -> Any:
        result = self.conn.execute(sa.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    def savepoint(self) -> None:
        self.nested = self.conn.begin_nested()

    def rollback_savepoint(self) -> None:
        self.nested.rollback()

    def close(self) -> None:
        super().close()
        self.engine.dispose()


class ByScopedSession(BySqlalchemy):
    def shape(self) -> Any:
        return scoped_session(sessionmaker(self.engine))


class BySqlalchemyConnection(BySqlalchemy):
    def shape(self) -> Any:
        return self.engine.connect()


class ByAsyncSession(Awaiting):
    driver = ""
    immediate = False

    async def open_async(self) -> None:
        self.engine = create_async_engine(self.place.url(self.driver), poolclass=NullPool)
        if self.immediate:
            begin_immediate(self.engine)
        self.conn = await self.shape()

    async def shape(self) -> Any:
        return AsyncSession(self.engine)

    def execute(self, text: str) -> Any:
        result = self.run(self.conn.execute(sa.text(text)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def savepoint(self) -> None:
        async def begin() -> Any:
            return await self.conn.begin_nested()

        self.nested = self.run(begin())

    def rollback_savepoint(self) -> None:
        self.run(self.nested.rollback())

    def close(self) -> None:
        async def closing() -> None:
            await self.conn.close()
            await self.engine.dispose()

        self.run(closing())


class ByAsyncConnection(ByAsyncSession):
    async def shape(self) -> Any:
        return await self.engine.connect()


class ByDjango(Caller):
    """A Django alias, inside `transaction.atomic()`."""

    def open(self) -> None:
        use_django(self.place)
        self.blocks = [ExitStack()]
        self._atomic(self.blocks[0])
        self.conn = self.given()

    def given(self) -> Any:
        return self.place.alias

    def _atomic(self, stack: ExitStack) -> None:
        from django.db import transaction

        stack.enter_context(transaction.atomic(using=self.place.alias))

    @property
    def django(self) -> Any:
        from django.db import connections

        return connections[self.place.alias]

    def execute(self, text: str) -> Any:
        with self.django.cursor() as cursor:
            cursor.execute(text)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def _leave(self, roll_back: bool) -> None:
        from django.db import transaction

        if roll_back:
            transaction.set_rollback(True, using=self.place.alias)
        self.blocks.pop().close()

    def commit(self) -> None:
        self._leave(roll_back=False)

    def rollback(self) -> None:
        self._leave(roll_back=True)

    def savepoint(self) -> None:
        self.blocks.append(ExitStack())
        self._atomic(self.blocks[-1])

    def rollback_savepoint(self) -> None:
        self._leave(roll_back=True)

    def close(self) -> None:
        while self.blocks:
            self._leave(roll_back=True)
        self.django.close()


class ByDjangoConnection(ByDjango):
    """The connection object itself, with the cursor that logs statements."""

    def given(self) -> Any:
        self.django.force_debug_cursor = True
        return self.django

    def close(self) -> None:
        self.django.force_debug_cursor = False
        super().close()


# One of each adapter and driver, where the details of a connection make no difference.
EACH = [
    "sqlite3-rows",
    "sqlalchemy-sqlite",
    "sqlalchemy-aiosqlite",
    "django-sqlite",
    "psycopg",
    "psycopg-async",
    "asyncpg-pool",
    "sqlalchemy-psycopg",
    "sqlalchemy-psycopg2",
    "sqlalchemy-psycopg-async",
    "sqlalchemy-asyncpg",
    "django-postgres-connection",
]


def _with(kind: type[Any], **attributes: Any) -> type[Caller]:
    return type(f"{kind.__name__}With", (kind,), attributes)


SQLITE: dict[str, Callable[[Place], Caller]] = {
    "sqlite3": BySqlite3,
    "sqlite3-immediate": _with(BySqlite3, options={"isolation_level": "IMMEDIATE"}),
    "sqlite3-exclusive": BySqlite3Exclusive,
    "sqlite3-begin": BySqlite3Begin,
    "sqlite3-rows": BySqlite3Rows,
    "sqlalchemy-sqlite": _with(BySqlalchemy, driver=""),
    "sqlalchemy-sqlite-immediate": _with(BySqlalchemy, driver="", immediate=True),
    "sqlalchemy-sqlite-scoped": _with(ByScopedSession, driver=""),
    "sqlalchemy-sqlite-connection": _with(BySqlalchemyConnection, driver=""),
    "sqlalchemy-sqlite-connection-immediate": _with(BySqlalchemyConnection, driver="", immediate=True),
    "sqlalchemy-aiosqlite": _with(ByAsyncSession, driver="+aiosqlite"),
    "sqlalchemy-aiosqlite-immediate": _with(ByAsyncSession, driver="+aiosqlite", immediate=True),
    "sqlalchemy-aiosqlite-connection": _with(ByAsyncConnection, driver="+aiosqlite"),
    "sqlalchemy-aiosqlite-connection-immediate": _with(ByAsyncConnection, driver="+aiosqlite", immediate=True),
    "django-sqlite": ByDjango,
    "django-sqlite-connection": ByDjangoConnection,
}
if sys.version_info >= (3, 12):
    SQLITE["sqlite3-no-autocommit"] = _with(BySqlite3, options={"autocommit": False})
POSTGRES: dict[str, Callable[[Place], Caller]] = {
    "psycopg": ByPsycopg,
    "psycopg-dicts": _with(ByPsycopg, options={"row_factory": dict_row}),
    "psycopg-transaction": ByPsycopgTransaction,
    "psycopg-pipeline": ByPsycopgPipeline,
    "psycopg-async": ByAsyncPsycopg,
    "psycopg-async-dicts": _with(ByAsyncPsycopg, options={"row_factory": dict_row}),
    "psycopg-async-transaction": ByAsyncPsycopgTransaction,
    "asyncpg": ByAsyncpg,
    "asyncpg-pool": ByAsyncpgPool,
    "sqlalchemy-psycopg": _with(BySqlalchemy, driver="+psycopg"),
    "sqlalchemy-psycopg-scoped": _with(ByScopedSession, driver="+psycopg"),
    "sqlalchemy-psycopg-connection": _with(BySqlalchemyConnection, driver="+psycopg"),
    "sqlalchemy-psycopg2": _with(BySqlalchemy, driver="+psycopg2"),
    "sqlalchemy-psycopg2-connection": _with(BySqlalchemyConnection, driver="+psycopg2"),
    "sqlalchemy-psycopg-async": _with(ByAsyncSession, driver="+psycopg"),
    "sqlalchemy-psycopg-async-connection": _with(ByAsyncConnection, driver="+psycopg"),
    "sqlalchemy-asyncpg": _with(ByAsyncSession, driver="+asyncpg"),
    "sqlalchemy-asyncpg-connection": _with(ByAsyncConnection, driver="+asyncpg"),
    "django-postgres": ByDjango,
    "django-postgres-connection": ByDjangoConnection,
}
