"""What `conn=` refuses, before anything is written, in words that name the way out."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, NoTransaction, UnsupportedConnection
from tests.produce.callers import EACH, SQLITE, Caller
from tests.produce.conftest import OrderPlaced, Stored, stored
from tests.produce.place import Place, PostgresPlace, SqlitePlace, use_django

AppMaker = Callable[[Place], Holdfast]


def refused_sync(hf: Holdfast, place: Place, conn: Any, remedy: str) -> None:
    with pytest.raises(NoTransaction, match=remedy):
        hf.sync.publish(OrderPlaced(1), conn=conn)
    assert stored(place) == Stored([], {})


async def refused(hf: Holdfast, place: Place, conn: Any, remedy: str) -> None:
    with pytest.raises(NoTransaction, match=remedy):
        await hf.publish(OrderPlaced(1), conn=conn)
    assert stored(place) == Stored([], {})


class TestUnusable:
    """A connection that cannot be used any more, or not in this thread."""

    def test_a_closed_sqlite3_connection_is_refused(self, sqlite_place: SqlitePlace, make_app: AppMaker) -> None:
        conn = sqlite3.connect(sqlite_place.path)
        conn.close()
        with pytest.raises(UnsupportedConnection, match="it is closed; make the call before you close it"):
            make_app(sqlite_place).sync.publish(OrderPlaced(1), conn=conn)
        assert stored(sqlite_place) == Stored([], {})

    def test_a_closed_psycopg_connection_is_refused(self, postgres_place: PostgresPlace, make_app: AppMaker) -> None:
        conn = psycopg.connect(postgres_place.url())
        conn.close()
        with pytest.raises(UnsupportedConnection, match="it is closed; make the call before you close it"):
            make_app(postgres_place).sync.publish(OrderPlaced(1), conn=conn)
        assert stored(postgres_place) == Stored([], {})

    def test_a_broken_psycopg_connection_raises_an_error_that_is_retried(
        self, postgres_place: PostgresPlace, make_app: AppMaker
    ) -> None:
        with psycopg.connect(postgres_place.url()) as conn, psycopg.connect(postgres_place.url()) as other:
            other.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
            with pytest.raises(psycopg.OperationalError):
                conn.execute("select 1")
            with pytest.raises(psycopg.OperationalError):
                make_app(postgres_place).sync.publish(OrderPlaced(1), conn=conn)

    def test_a_sqlite3_connection_of_another_thread_is_refused(
        self, sqlite_place: SqlitePlace, make_app: AppMaker
    ) -> None:
        hf = make_app(sqlite_place)
        with closing(sqlite3.connect(sqlite_place.path)) as conn, ThreadPoolExecutor(1) as threads:
            refused = threads.submit(hf.sync.publish, OrderPlaced(1), conn=conn).exception(timeout=10)
        assert isinstance(refused, UnsupportedConnection)
        assert "it was opened in another thread; open one in this thread" in str(refused)
        assert stored(sqlite_place) == Stored([], {})


class TestNoTransaction:
    """A connection that commits each statement would store the message even if the caller's work is rolled back."""

    def test_sqlite3_with_isolation_level_none_is_refused(self, sqlite_place: SqlitePlace, make_app: AppMaker) -> None:
        with closing(sqlite3.connect(sqlite_place.path, isolation_level=None)) as conn:
            refused_sync(make_app(sqlite_place), sqlite_place, conn, "BEGIN IMMEDIATE")

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit from Python 3.12")
    def test_sqlite3_with_autocommit_is_refused(self, sqlite_place: SqlitePlace, make_app: AppMaker) -> None:
        options: dict[str, Any] = {"autocommit": True}
        with closing(sqlite3.connect(sqlite_place.path, **options)) as conn:
            refused_sync(make_app(sqlite_place), sqlite_place, conn, "BEGIN IMMEDIATE")

    def test_psycopg_in_autocommit_is_refused(self, postgres_place: PostgresPlace, make_app: AppMaker) -> None:
        with psycopg.connect(postgres_place.url(), autocommit=True) as conn:
            refused_sync(make_app(postgres_place), postgres_place, conn, r"conn\.transaction\(\)")

    async def test_async_psycopg_in_autocommit_is_refused(
        self, postgres_place: PostgresPlace, make_app: AppMaker
    ) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_place.url(), autocommit=True) as conn:
            await refused(make_app(postgres_place), postgres_place, conn, r"conn\.transaction\(\)")

    async def test_asyncpg_without_a_transaction_is_refused(
        self, postgres_place: PostgresPlace, make_app: AppMaker
    ) -> None:
        conn = await asyncpg.connect(postgres_place.url())
        await refused(make_app(postgres_place), postgres_place, conn, r"async with conn\.transaction\(\)")
        await conn.close()

    @pytest.mark.parametrize("driver", ["", "+psycopg", "+psycopg2"])
    @pytest.mark.parametrize("where", ["engine", "connection", "session"])
    def test_sqlalchemy_in_autocommit_is_refused(
        self, request: pytest.FixtureRequest, driver: str, where: str, make_app: AppMaker
    ) -> None:
        place = request.getfixturevalue("postgres_place" if driver else "sqlite_place")
        level = {"isolation_level": "AUTOCOMMIT"}
        engine = sa.create_engine(place.url(driver), poolclass=NullPool, **(level if where == "engine" else {}))
        if where == "session":
            with Session(engine.execution_options(**level)) as session:
                refused_sync(make_app(place), place, session, "AUTOCOMMIT|BEGIN IMMEDIATE")
        else:
            with engine.connect() as conn:
                conn = conn if where == "engine" else conn.execution_options(**level)
                refused_sync(make_app(place), place, conn, "AUTOCOMMIT|BEGIN IMMEDIATE")

    @pytest.mark.parametrize("driver", ["+aiosqlite", "+psycopg", "+asyncpg"])
    async def test_async_sqlalchemy_in_autocommit_is_refused(
        self, request: pytest.FixtureRequest, driver: str, make_app: AppMaker
    ) -> None:
        place = request.getfixturevalue("sqlite_place" if driver == "+aiosqlite" else "postgres_place")
        engine = create_async_engine(place.url(driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session:
            await refused(make_app(place), place, session, "AUTOCOMMIT|BEGIN IMMEDIATE")
        await engine.dispose()

    @pytest.mark.parametrize("database", ["sqlite", "postgres"])
    def test_django_outside_atomic_is_refused(
        self, request: pytest.FixtureRequest, database: str, make_app: AppMaker
    ) -> None:
        place = request.getfixturevalue(f"{database}_place")
        use_django(place)
        refused_sync(make_app(place), place, place.alias, r"transaction\.atomic\(\)")
        from django.db import connections

        connections[place.alias].close()


@pytest.mark.parametrize("way", EACH)
def test_the_wrong_colour_is_a_type_error_that_names_the_right_call(hf: Holdfast, caller: Caller, place: Place) -> None:
    @hf.job()
    def send(to: str) -> None: ...

    if caller.awaits:
        with pytest.raises(TypeError, match=r"await hf\.publish\("):
            hf.sync.publish(OrderPlaced(1), conn=caller.conn)
        with pytest.raises(TypeError, match=r"await hf\.publish_many\("):
            hf.sync.publish_many([OrderPlaced(1)], conn=caller.conn)
        with pytest.raises(TypeError, match=r"await send\.enqueue\("):
            send.using(conn=caller.conn).sync.enqueue("ada")
    else:
        with pytest.raises(TypeError, match=r"hf\.sync\.publish\("):
            caller.runner.run(hf.publish(OrderPlaced(1), conn=caller.conn))
        with pytest.raises(TypeError, match=r"hf\.sync\.publish_many\("):
            caller.runner.run(hf.publish_many([OrderPlaced(1)], conn=caller.conn))
        with pytest.raises(TypeError, match=r"send\.sync\.enqueue\("):
            caller.runner.run(send.using(conn=caller.conn).enqueue("ada"))
    caller.insert(1)
    caller.commit()
    assert stored(place) == Stored([1], {}), "the transaction was not touched"


@pytest.mark.parametrize("way", EACH)
def test_a_connection_to_the_other_kind_of_database_is_refused_without_touching_either(
    caller: Caller, way: str, tmp_path: Any
) -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/none" if way in SQLITE else f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(UnsupportedConnection, match="pass a connection to the store's database"):
        caller.publish(Holdfast(dsn), OrderPlaced(1))
    assert not (tmp_path / "other.db").exists()


class TestNoConnection:
    """Things that are near a connection, or nowhere near one."""

    @pytest.fixture
    def hf(self, sqlite_place: SqlitePlace, make_app: AppMaker) -> Holdfast:
        return make_app(sqlite_place)

    @pytest.fixture
    def stack(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    def refuse(self, hf: Holdfast, conn: Any, *words: str) -> None:
        for call in (
            lambda: hf.sync.publish(OrderPlaced(1), conn=conn),
            lambda: asyncio.run(hf.publish(OrderPlaced(1), conn=conn)),
        ):
            with pytest.raises(UnsupportedConnection) as refusal:
                call()
            for word in words:
                assert word in str(refusal.value)

    @pytest.mark.parametrize(
        "conn", [object(), 42, {"dsn": "x"}, OrderPlaced(1)], ids=["object", "int", "dict", "event"]
    )
    def test_a_foreign_object_is_refused_with_the_alternatives(self, hf: Holdfast, conn: Any) -> None:
        kind = type(conn).__name__
        self.refuse(hf, conn, kind, "sqlite3", "psycopg", "asyncpg", "AsyncSession", "Django alias", "conn=None")

    def test_text_that_is_no_django_alias_is_refused_with_the_known_ones(
        self, hf: Holdfast, sqlite_place: SqlitePlace
    ) -> None:
        use_django(sqlite_place)
        self.refuse(hf, "db/shop", "Django database", sqlite_place.alias)
        self.refuse(hf, "postgresql://db/shop", "instead of its address", "conn=None")

    def test_an_engine_and_a_sessionmaker_are_refused_with_begin(self, hf: Holdfast) -> None:
        engine = sa.create_engine("sqlite://")
        self.refuse(hf, engine, "engine.begin()")
        self.refuse(hf, create_async_engine("sqlite+aiosqlite://"), "engine.begin()")
        self.refuse(hf, sessionmaker(engine), "Session.begin()")
        self.refuse(hf, async_sessionmaker(), "Session.begin()")

    def test_a_cursor_is_refused_in_favour_of_its_connection(self, hf: Holdfast) -> None:
        with closing(sqlite3.connect(":memory:")) as conn:
            self.refuse(hf, conn.cursor(), "cursor's connection")

    def test_a_pool_is_refused_in_favour_of_a_connection(self, hf: Holdfast) -> None:
        self.refuse(hf, psycopg_pool.ConnectionPool("", open=False), "take a connection out of it")

    def test_raw_psycopg2_is_refused_with_an_alternative(self, hf: Holdfast, postgres_dsn: str) -> None:
        with closing(psycopg2.connect(postgres_dsn)) as conn:
            self.refuse(hf, conn, "psycopg 3", "SQLAlchemy or Django")

    async def test_raw_aiosqlite_is_refused_with_an_alternative(self, hf: Holdfast, sqlite_place: SqlitePlace) -> None:
        async with aiosqlite.connect(sqlite_place.path) as conn:
            with pytest.raises(UnsupportedConnection, match="sqlite\\+aiosqlite"):
                await hf.publish(OrderPlaced(1), conn=conn)

    def test_sqlalchemy_on_another_database_is_refused_with_the_supported_drivers(self, hf: Holdfast) -> None:
        engine = sa.create_engine("mysql+pymysql://", module=sqlite3)
        self.refuse(hf, Session(engine), "mysql+pymysql", "psycopg2", "aiosqlite")

    def test_a_session_with_a_bind_for_each_mapper_is_refused(self, hf: Holdfast) -> None:
        class Base(sa.orm.DeclarativeBase): ...

        class Order(Base):
            __tablename__ = "orders"
            id: sa.orm.Mapped[int] = sa.orm.mapped_column(primary_key=True)

        session = Session(binds={Order: sa.create_engine("sqlite://")})
        self.refuse(hf, session, "session.connection(bind_arguments={'mapper': ...})")

    async def test_an_async_connection_that_is_not_started_is_refused_with_begin(self, hf: Holdfast) -> None:
        with pytest.raises(UnsupportedConnection, match=r"async with engine\.begin\(\)"):
            await hf.publish(OrderPlaced(1), conn=create_async_engine("sqlite+aiosqlite://").connect())
