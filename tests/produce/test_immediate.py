"""Transactions that take SQLite's write lock at once: they wait for their turn and then never fail for it."""

import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import ConfigurationError, Holdfast, begin_immediate, immediate
from tests.produce.conftest import OrderPlaced, Stored, stored
from tests.produce.place import Place, SqlitePlace

AppMaker = Callable[[Place], Holdfast]

CONNECTIONS: list[dict[str, Any]] = [{}, {"isolation_level": None}, {"isolation_level": "EXCLUSIVE"}]
if sys.version_info >= (3, 12):
    CONNECTIONS.append({"autocommit": True})


def is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        return False


class TestOnSqlite3:
    @pytest.fixture(params=CONNECTIONS, ids=str)
    def conn(self, request: pytest.FixtureRequest, sqlite_place: SqlitePlace) -> Any:
        with closing(sqlite3.connect(sqlite_place.path, **request.param)) as conn:
            yield conn

    def test_the_lock_is_held_from_the_start_and_the_end_commits(
        self, sqlite_place: SqlitePlace, make_app: AppMaker, conn: sqlite3.Connection
    ) -> None:
        hf = make_app(sqlite_place)
        with immediate(conn) as same:
            assert same is conn
            assert is_locked(sqlite_place.path)
            conn.execute("insert into orders (id) values (1)")
            published = hf.sync.publish(OrderPlaced(1), conn=conn)
        assert not conn.in_transaction
        assert stored(sqlite_place) == Stored([1], {published.id: ["billing"]})

    def test_an_exception_rolls_back_and_the_connection_stays_usable(
        self, sqlite_place: SqlitePlace, conn: sqlite3.Connection
    ) -> None:
        def fail() -> None:
            with immediate(conn):
                conn.execute("insert into orders (id) values (1)")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        assert not conn.in_transaction
        assert stored(sqlite_place) == Stored([], {})

    def test_a_transaction_that_sqlite_ended_itself_hides_no_error(
        self, sqlite_place: SqlitePlace, conn: sqlite3.Connection
    ) -> None:
        def fail() -> None:
            with immediate(conn):
                conn.execute("rollback")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()

    def test_a_commit_that_fails_rolls_back(self, sqlite_place: SqlitePlace, conn: sqlite3.Connection) -> None:
        sqlite_place.rows("create table line (order_id references orders (id) deferrable initially deferred)")
        conn.execute("pragma foreign_keys = on")

        def fail() -> None:
            with immediate(conn):
                conn.execute("insert into line (order_id) values (7)")

        with pytest.raises(sqlite3.IntegrityError):
            fail()
        assert not conn.in_transaction

    def test_inside_a_transaction_it_is_refused(self, conn: sqlite3.Connection) -> None:
        conn.execute("begin")
        with pytest.raises(ConfigurationError, match="in one already"), immediate(conn):
            pass
        assert conn.in_transaction, "the caller's transaction is not touched"
        conn.execute("rollback")

    def test_reading_then_writing_works_while_another_waits_to_write(
        self, sqlite_place: SqlitePlace, make_app: AppMaker, conn: sqlite3.Connection
    ) -> None:
        hf = make_app(sqlite_place)
        sqlite_place.rows("pragma journal_mode = wal")
        other = threading.Thread(target=sqlite_place.rows, args=["insert into orders (id) values (7)"])
        with immediate(conn):
            conn.execute("select id from orders").fetchall()
            other.start()
            hf.sync.publish(OrderPlaced(1), conn=conn)
        other.join()
        assert stored(sqlite_place).orders == [7]


class TestOnSqlalchemy:
    def test_transactions_hold_the_lock_from_their_first_statement(
        self, sqlite_place: SqlitePlace, make_app: AppMaker
    ) -> None:
        hf = make_app(sqlite_place)
        engine = sa.create_engine(sqlite_place.url(), poolclass=NullPool)
        begin_immediate(engine)
        with Session(engine) as session, session.begin():
            assert session.scalars(sa.text("select count(*) from orders")).one() == 0
            assert is_locked(sqlite_place.path)
            session.execute(sa.text("insert into orders (id) values (1)"))
            hf.sync.publish(OrderPlaced(1), conn=session)
        assert not is_locked(sqlite_place.path)
        with engine.connect() as conn:
            conn.execute(sa.text("insert into orders (id) values (2)"))
            conn.rollback()
        assert stored(sqlite_place).orders == [1]

    async def test_async_engines_too(self, sqlite_place: SqlitePlace) -> None:
        engine = create_async_engine(sqlite_place.url("+aiosqlite"), poolclass=NullPool)
        begin_immediate(engine)
        async with engine.begin() as conn:
            await conn.execute(sa.text("select count(*) from orders"))
            assert is_locked(sqlite_place.path)
            await conn.execute(sa.text("insert into orders (id) values (1)"))
        await engine.dispose()
        assert stored(sqlite_place).orders == [1]

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit from Python 3.12")
    def test_connections_that_are_always_in_a_transaction_hold_the_lock_too(self, sqlite_place: SqlitePlace) -> None:
        engine = sa.create_engine(sqlite_place.url(), connect_args={"autocommit": False}, poolclass=NullPool)
        begin_immediate(engine)
        for id in (1, 2):
            with engine.begin() as conn:
                conn.execute(sa.text("select count(*) from orders"))
                assert is_locked(sqlite_place.path)
                conn.execute(sa.text(f"insert into orders (id) values ({id})"))
        with engine.connect() as conn:
            conn.execute(sa.text("insert into orders (id) values (3)"))
            conn.rollback()
        assert stored(sqlite_place).orders == [1, 2]

    def test_connections_that_were_pooled_before_and_calling_twice_make_no_difference(
        self, sqlite_place: SqlitePlace
    ) -> None:
        engine = sa.create_engine(sqlite_place.url())
        engine.connect().close()
        begin_immediate(engine)
        begin_immediate(engine)
        with engine.connect() as conn:
            conn.execute(sa.text("select 1"))
            assert is_locked(sqlite_place.path)
        engine.dispose()

    @pytest.mark.parametrize("where", ["engine", "connection"])
    def test_autocommit_connections_stay_so(self, sqlite_place: SqlitePlace, where: str) -> None:
        level = {"isolation_level": "AUTOCOMMIT"}
        engine = sa.create_engine(sqlite_place.url(), **(level if where == "engine" else {}))
        begin_immediate(engine)
        with engine.connect() as conn:
            conn = conn if where == "engine" else conn.execution_options(**level)
            conn.execute(sa.text("insert into orders (id) values (1)"))
            assert not is_locked(sqlite_place.path)
            conn.rollback()
        assert stored(sqlite_place).orders == [1]
        if where == "connection":
            with engine.connect() as conn:
                conn.execute(sa.text("select 1"))
                assert is_locked(sqlite_place.path), "the pooled connection is itself again"
        engine.dispose()

    def test_an_engine_for_another_database_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="uses postgresql"):
            begin_immediate(sa.create_engine("postgresql+psycopg://"))
