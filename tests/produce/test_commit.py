"""Seeing the caller's commit: what waits for it is called once, after it, and never when the work is undone."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import Holdfast
from holdfast.produce.commit import after_commit
from holdfast.stores.connections.connection import adapt_connection
from tests.produce.conftest import OrderPlaced
from tests.produce.place import Place, SqlitePlace, use_django

AppMaker = Callable[[Place], Holdfast]


class Calls(list[str]):
    def named(self, name: str) -> Callable[[], None]:
        return lambda: self.append(name)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def engine(sqlite_place: SqlitePlace) -> Iterator[sa.Engine]:
    engine = sa.create_engine(sqlite_place.url())
    # As SQLAlchemy's documentation advises for savepoints.
    sa.event.listen(engine, "connect", lambda dbapi, _: setattr(dbapi, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("begin"))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine) as session:
        session.execute(sa.text("select 1"))
        yield session


def test_it_is_called_once_after_the_commit(session: Session, calls: Calls) -> None:
    assert after_commit(session, adapt_connection(session), calls.named("done"))
    session.flush()
    assert calls == []
    session.commit()
    assert calls == ["done"]
    session.execute(sa.text("select 1"))
    session.commit()
    assert calls == ["done"], "the next commit is another's"


def test_a_rollback_drops_it_permanently(session: Session, calls: Calls) -> None:
    after_commit(session, adapt_connection(session), calls.named("done"))
    session.rollback()
    session.execute(sa.text("select 1"))
    session.commit()
    assert calls == []


def test_closing_without_a_commit_drops_it_permanently(session: Session, calls: Calls) -> None:
    after_commit(session, adapt_connection(session), calls.named("done"))
    session.close()
    session.execute(sa.text("select 1"))
    session.commit()
    assert calls == []


def test_the_commit_of_a_savepoint_is_none(session: Session, calls: Calls) -> None:
    after_commit(session, adapt_connection(session), calls.named("outer"))
    with session.begin_nested():
        after_commit(session, adapt_connection(session), calls.named("inner"))
    assert calls == []
    session.commit()
    assert calls == ["outer", "inner"]


def test_a_savepoint_that_is_rolled_back_drops_its_own_and_keeps_the_rest(session: Session, calls: Calls) -> None:
    after_commit(session, adapt_connection(session), calls.named("before"))
    outer = session.begin_nested()
    after_commit(session, adapt_connection(session), calls.named("outer"))
    with session.begin_nested():
        after_commit(session, adapt_connection(session), calls.named("inner, committed into outer"))
    outer.rollback()
    after_commit(session, adapt_connection(session), calls.named("after"))
    session.commit()
    assert calls == ["before", "after"]


def test_a_savepoint_that_is_committed_into_a_transaction_that_rolls_back_is_dropped(
    session: Session, calls: Calls
) -> None:
    with session.begin_nested():
        after_commit(session, adapt_connection(session), calls.named("inner"))
    session.rollback()
    session.execute(sa.text("select 1"))
    session.commit()
    assert calls == []


def test_a_failed_flush_inside_a_savepoint_drops_only_what_it_undid(session: Session, calls: Calls) -> None:
    class Base(sa.orm.DeclarativeBase): ...

    class Order(Base):
        __tablename__ = "orders"
        id: sa.orm.Mapped[int] = sa.orm.mapped_column(primary_key=True)

    session.add(Order(id=1))
    session.flush()
    session.expunge_all()
    after_commit(session, adapt_connection(session), calls.named("kept"))
    savepoint = session.begin_nested()
    after_commit(session, adapt_connection(session), calls.named("undone"))
    session.add(Order(id=1))
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    savepoint.rollback()
    session.commit()
    assert calls == ["kept"]


def test_the_same_call_is_registered_once_although_requested_often(session: Session, calls: Calls) -> None:
    done = calls.named("done")
    for _ in range(3):
        after_commit(session, adapt_connection(session), done)
    session.commit()
    assert calls == ["done"]


def test_a_scoped_session_reports_it_too(engine: sa.Engine, calls: Calls) -> None:
    session = scoped_session(sessionmaker(engine))
    session.execute(sa.text("select 1"))
    assert after_commit(session, adapt_connection(session), calls.named("done"))
    session.commit()
    session.remove()
    assert calls == ["done"]


async def test_an_async_session_reports_it_too(sqlite_place: SqlitePlace, calls: Calls) -> None:
    engine = create_async_engine(sqlite_place.url("+aiosqlite"))
    async with AsyncSession(engine) as session:
        await session.execute(sa.text("select 1"))
        assert after_commit(session, adapt_connection(session), calls.named("done"))
        await session.commit()
    await engine.dispose()
    assert calls == ["done"]


class TestDjango:
    @pytest.fixture
    def django(self, sqlite_place: SqlitePlace) -> Iterator[Any]:
        use_django(sqlite_place)
        from django.db import connections

        yield connections[sqlite_place.alias]
        connections[sqlite_place.alias].close()

    def test_it_is_called_after_the_outermost_block_and_not_for_a_block_that_failed(
        self, django: Any, calls: Calls
    ) -> None:
        from django.db import transaction

        def failing() -> None:
            with transaction.atomic(using=django.alias):
                after_commit(django, adapt_connection(django), calls.named("undone"))
                raise KeyError

        with transaction.atomic(using=django.alias):
            assert after_commit(django.alias, adapt_connection(django.alias), calls.named("done"))
            with pytest.raises(KeyError):
                failing()
            assert calls == []
        assert calls == ["done"]

    def test_without_atomic_django_cannot_tell(self, django: Any, calls: Calls) -> None:
        django.set_autocommit(False)
        assert not after_commit(django, adapt_connection(django), calls.named("done"))
        django.rollback()
        django.set_autocommit(True)


def test_a_bare_connection_cannot_tell(engine: sa.Engine, calls: Calls) -> None:
    with engine.connect() as conn:
        assert not after_commit(conn, adapt_connection(conn), calls.named("done"))
        conn.commit()
    assert calls == []


class TestReactions:
    """What hangs on it: a reaction runs after the commit, in the publishing process."""

    @pytest.fixture
    def seen(self) -> list[int]:
        return []

    @pytest.fixture
    def hf(self, sqlite_place: SqlitePlace, make_app: AppMaker, seen: list[int]) -> Holdfast:
        hf = make_app(sqlite_place)

        @hf.reaction(OrderPlaced)
        def see(order: OrderPlaced) -> None:
            seen.append(order.order_id)

        return hf

    def test_it_runs_after_the_commit_and_not_for_what_was_rolled_back(
        self, hf: Holdfast, session: Session, seen: list[int]
    ) -> None:
        hf.sync.publish(OrderPlaced(1), conn=session)
        savepoint = session.begin_nested()
        hf.sync.publish(OrderPlaced(2), conn=session)
        savepoint.rollback()
        assert seen == []
        session.commit()
        assert seen == [1]

    def test_on_a_connection_that_cannot_tell_its_commit_is_looked_for(
        self, hf: Holdfast, engine: sa.Engine, seen: list[int]
    ) -> None:
        with engine.connect() as conn:
            hf.sync.publish(OrderPlaced(1), conn=conn)
            conn.commit()
        until = time.monotonic() + 10
        while not seen and time.monotonic() < until:
            time.sleep(0.005)
        assert seen == [1]
