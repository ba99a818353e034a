"""Events that SQLAlchemy aggregates raise: published by the commit that saves the change, once, or not at all."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import ConfigurationError, Holdfast, KeyConflict, RaisesEvents, collect_events, correlate, event
from tests.produce.place import Place, SqlitePlace

AppMaker = Callable[[Place], Holdfast]


@event("order.opened")
@dataclass
class OrderOpened:
    order_id: int


@event("order.shipped")
@dataclass
class OrderShipped:
    order_id: int


class Base(DeclarativeBase): ...


class Order(RaisesEvents, Base):
    __tablename__ = "placed"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="open")
    lines: Mapped[list["Line"]] = relationship(back_populates="order", cascade="all, delete-orphan")

    @classmethod
    def opened(cls, **values: Any) -> "Order":
        order = cls(**values)
        order.raise_event(lambda: OrderOpened(order.id))
        return order

    def ship(self) -> None:
        self.status = "shipped"
        self.raise_event(OrderShipped(self.id))


class Line(RaisesEvents, Base):
    __tablename__ = "line"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("placed.id"))
    order: Mapped[Order] = relationship(back_populates="lines")


@pytest.fixture
def engine(sqlite_place: SqlitePlace) -> Iterator[sa.Engine]:
    engine = sa.create_engine(sqlite_place.url())
    sa.event.listen(engine, "connect", lambda dbapi, _: setattr(dbapi, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("begin immediate"))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def hf(sqlite_place: SqlitePlace, make_app: AppMaker) -> Holdfast:
    return make_app(sqlite_place)


@pytest.fixture
def sessions(hf: Holdfast, engine: sa.Engine) -> "sessionmaker[Session]":
    sessions = sessionmaker(engine)
    collect_events(hf, sessions)
    return sessions


@pytest.fixture
def session(sessions: "sessionmaker[Session]") -> Iterator[Session]:
    with sessions() as session:
        yield session


@pytest.fixture
def published(sqlite_place: SqlitePlace) -> Callable[[], list[tuple[str, int]]]:
    """What is committed, in order: type and order id."""

    def look() -> list[tuple[str, int]]:
        return sqlite_place.rows("select type, payload ->> 'order_id' from {hf}message order by position")

    return look


Look = Callable[[], list[tuple[str, int]]]


@pytest.fixture
def order(session: Session) -> Order:
    """An order that was saved before, unknown to the session by now."""
    order = Order(id=1)
    session.add(order)
    session.commit()
    session.expunge_all()
    found = session.get(Order, 1)
    assert found is not None
    return found


class TestCommit:
    def test_a_new_object_can_tell_the_id_the_database_gave_it(self, session: Session, published: Look) -> None:
        order = Order.opened()
        session.add(order)
        session.commit()
        assert published() == [("order.opened", order.id)]

    def test_a_changed_object_publishes(self, session: Session, order: Order, published: Look) -> None:
        order.ship()
        session.commit()
        assert published() == [("order.shipped", 1)]

    def test_a_deleted_object_publishes(self, session: Session, order: Order, published: Look) -> None:
        session.delete(order)
        order.raise_event("order.removed", {"order_id": 1})
        session.commit()
        assert published() == [("order.removed", 1)]

    def test_an_object_without_a_changed_column_publishes_although_it_is_not_referenced(
        self, session: Session, order: Order, published: Look
    ) -> None:
        session.expunge_all()
        session.get_one(Order, 1).raise_event(OrderShipped(1))
        gc.collect()
        session.commit()
        assert published() == [("order.shipped", 1)]

    def test_objects_reached_by_cascades_publish(self, session: Session, order: Order, published: Look) -> None:
        line = Line()
        order.lines.append(line)
        line.raise_event(lambda: ("line.added", {"order_id": line.order_id}))
        session.commit()
        order.lines.clear()
        line.raise_event("line.orphaned", {"order_id": 1})
        session.commit()
        assert published() == [("line.added", 1), ("line.orphaned", 1)]

    def test_each_event_is_published_once_by_any_flush(self, session: Session, order: Order, published: Look) -> None:
        order.ship()
        session.flush()
        order.status = "lost"
        session.flush()
        session.commit()
        order.status = "found"
        session.commit()
        assert published() == [("order.shipped", 1)]

    def test_what_is_raised_between_two_flushes_is_published_too(self, session: Session, published: Look) -> None:
        order = Order.opened(id=5)
        session.add(order)
        session.flush()
        order.ship()
        session.commit()
        assert published() == [("order.opened", 5), ("order.shipped", 5)]

    def test_events_of_several_objects_keep_the_order_in_which_they_were_raised(
        self, session: Session, published: Look
    ) -> None:
        orders = [Order(id=n) for n in range(1, 8)]
        session.add_all(reversed(orders))
        for order in orders:
            order.ship()
        orders[0].raise_event(OrderOpened(1), key="k")
        orders[1].raise_event(OrderOpened(2))
        session.commit()
        opened = [("order.opened", 1), ("order.opened", 2)]
        assert published() == [*(("order.shipped", n) for n in range(1, 8)), *opened]

    def test_the_message_is_stored_with_its_deliveries(
        self, hf: Holdfast, sqlite_place: SqlitePlace, session: Session
    ) -> None:
        hf.consumer(OrderOpened, name="welcome")(print)
        session.add(Order.opened())
        session.commit()
        assert sqlite_place.rows("select consumer from {hf}delivery") == [("welcome",)]

    def test_lazy_attributes_can_be_read_by_an_event_that_is_made_late(
        self, session: Session, order: Order, published: Look
    ) -> None:
        session.add(Line(order=order))
        session.commit()
        session.expire_all()
        order.raise_event(lambda: ("order.counted", {"order_id": len(order.lines)}))
        session.commit()
        assert published() == [("order.counted", 1)]

    def test_a_key_is_used_and_may_be_made_late(
        self, sqlite_place: SqlitePlace, session: Session, published: Look
    ) -> None:
        order = Order()
        order.raise_event(lambda: OrderOpened(order.id), key=lambda: f"order:{order.id}:opened:v1")
        session.add(order)
        session.commit()
        assert sqlite_place.rows("select key from {hf}message") == [(f"order:{order.id}:opened:v1",)]
        order.raise_event(OrderOpened(order.id), key=f"order:{order.id}:opened:v1")
        session.commit()
        assert len(published()) == 1, "the first message stands"

    def test_headers_and_the_current_ids_when_it_was_raised_travel_along(
        self, sqlite_place: SqlitePlace, session: Session, order: Order
    ) -> None:
        with correlate(request_id="r-1", user_id="u-1"):
            order.raise_event(OrderShipped(1), headers={"user_id": "u-2"})
        session.commit()
        ((headers,),) = sqlite_place.rows("select headers from {hf}message")
        assert headers == '{"request_id":"r-1","user_id":"u-2"}'

    def test_sessions_of_other_makers_collect_nothing(self, engine: sa.Engine, hf: Holdfast, published: Look) -> None:
        collect_events(hf, sessionmaker(engine))
        order = Order.opened()
        with Session(engine) as session, session.begin():
            session.add(order)
        assert published() == []


class TestRollback:
    def test_what_was_raised_is_not_stored_and_not_published_by_the_next_commit(
        self, session: Session, order: Order, published: Look
    ) -> None:
        order.ship()
        session.flush()
        order.ship()
        session.rollback()
        assert order.raised_events == []
        order.status = "open again"
        session.commit()
        assert published() == []

    def test_a_new_object_that_is_not_added_again_publishes_nothing(self, session: Session, published: Look) -> None:
        session.add(Order.opened())
        session.rollback()
        session.add(Order())
        session.commit()
        assert published() == []

    @pytest.mark.parametrize("flushed", [True, False], ids=["flushed", "not flushed"])
    def test_a_new_object_that_is_added_again_publishes_what_it_raised(
        self, session: Session, published: Look, flushed: bool
    ) -> None:
        """Its attributes are all still there; without its events the second try would save a silent order."""
        order = Order.opened(id=3)
        session.add(order)
        if flushed:
            session.flush()
            order.ship()
            session.flush()
        order.raise_event("order.packed", {"order_id": 3})
        session.rollback()
        assert published() == []
        session.add(order)
        session.commit()
        shipped = [("order.shipped", 3)] if flushed else []
        assert published() == [("order.opened", 3), *shipped, ("order.packed", 3)]

    def test_a_flush_that_fails_keeps_the_events_of_new_objects_with_them(
        self, session: Session, order: Order, published: Look
    ) -> None:
        twin = Order.opened(id=1)
        session.expunge(order)
        session.add(twin)
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        twin.id = 2
        session.add(twin)
        session.commit()
        assert published() == [("order.opened", 2)]

    def test_a_publish_that_is_refused_fails_the_commit_and_loses_nothing(
        self, session: Session, published: Look
    ) -> None:
        order = Order(id=1)
        order.raise_event(OrderOpened(1), key="one key")
        order.raise_event(OrderOpened(2), key="one key")
        session.add(order)
        with pytest.raises(KeyConflict):
            session.commit()
        session.rollback()
        assert published() == []
        assert session.get(Order, 1) is None
        assert len(order.raised_events) == 2

    def test_a_savepoint_takes_only_what_was_raised_inside_it(
        self, session: Session, order: Order, published: Look
    ) -> None:
        order.ship()
        savepoint = session.begin_nested()
        order.raise_event("order.lost", {"order_id": 1})
        session.flush()
        order.raise_event("order.found", {"order_id": 1})
        new = Order.opened(id=2)
        session.add(new)
        savepoint.rollback()
        assert order.raised_events == []
        assert len(new.raised_events) == 1
        session.commit()
        assert published() == [("order.shipped", 1)]

    def test_what_a_savepoint_took_is_not_given_back_by_a_later_rollback(
        self, session: Session, published: Look
    ) -> None:
        order = Order.opened(id=1)
        session.add(order)
        session.flush()
        savepoint = session.begin_nested()
        order.raise_event("order.lost", {"order_id": 1})
        session.flush()
        savepoint.rollback()
        session.refresh(order)
        session.rollback()
        session.add(order)
        session.commit()
        assert published() == [("order.opened", 1)]

    def test_a_session_that_is_closed_has_published_nothing(
        self, sessions: "sessionmaker[Session]", published: Look
    ) -> None:
        with sessions() as session:
            session.add(Order.opened(id=1))
            session.flush()
        with sessions.begin() as session:
            session.add(Order(id=2))
        assert published() == []

    def test_what_was_taken_by_a_flush_that_failed_later_is_not_published_by_the_next(
        self, sessions: "sessionmaker[Session]", session: Session, order: Order, published: Look
    ) -> None:
        failures = [KeyError("a listener of the user's")]

        @sa.event.listens_for(sessions, "after_flush")
        def fail_once(*_: object) -> None:
            if failures:
                raise failures.pop()

        savepoint = session.begin_nested()
        order.ship()
        with pytest.raises(KeyError):
            session.flush()
        savepoint.rollback()
        order.status = "open again"
        session.commit()
        assert published() == []

    def test_a_commit_lets_go_of_the_objects(self, session: Session) -> None:
        order = Order.opened(id=1)
        session.add(order)
        session.commit()
        held = weakref.ref(order)
        del order
        gc.collect()
        assert held() is None

    def test_a_commit_ends_what_could_be_given_back(self, session: Session, published: Look) -> None:
        order = Order.opened(id=1)
        session.add(order)
        session.commit()
        order.ship()
        session.flush()
        session.rollback()
        assert order.raised_events == []
        session.commit()
        assert published() == [("order.opened", 1)]


class TestAlone:
    """An aggregate needs no session and no app to be tested."""

    def test_it_shows_what_it_raised(self) -> None:
        order = Order(id=1)
        order.ship()
        order.raise_event("order.lost", {"why": "rain"})
        assert order.raised_events == [OrderShipped(1), ("order.lost", {"why": "rain"})]

    def test_it_need_not_even_be_mapped(self) -> None:
        class Plain(RaisesEvents): ...

        plain = Plain()
        plain.raise_event(OrderShipped(1))
        assert plain.raised_events == [OrderShipped(1)]

    def test_a_class_that_is_no_event_is_refused_where_it_is_raised(self) -> None:
        with pytest.raises(ConfigurationError, match="object is not an event class"):
            Order().raise_event(object())

    def test_an_event_raised_after_the_deletion_was_flushed_is_refused(self, session: Session, order: Order) -> None:
        session.delete(order)
        session.flush()
        with pytest.raises(ConfigurationError, match="raise it before"):
            order.ship()


class TestSessions:
    def test_a_scoped_session_is_taken(self, engine: sa.Engine, hf: Holdfast, published: Look) -> None:
        session = scoped_session(sessionmaker(engine))
        collect_events(hf, session)
        session.add(Order.opened(id=1))
        session.commit()
        session.remove()
        assert published() == [("order.opened", 1)]

    def test_collecting_twice_listens_once(
        self, hf: Holdfast, sessions: "sessionmaker[Session]", published: Look
    ) -> None:
        collect_events(hf, sessions)
        assert len(list(sessions().dispatch.after_flush)) == 1
        with sessions.begin() as session:
            session.add(Order.opened(id=1))
        assert published() == [("order.opened", 1)]

    def test_two_apps_on_one_maker_are_refused(
        self, sqlite_place: SqlitePlace, sessions: "sessionmaker[Session]"
    ) -> None:
        with pytest.raises(ConfigurationError, match="another app already"):
            collect_events(Holdfast(sqlite_place.dsn), sessions)

    def test_anything_else_is_refused(self, hf: Holdfast, engine: sa.Engine) -> None:
        for wrong in (engine, Session(engine), 7):
            with pytest.raises(ConfigurationError, match="takes a sessionmaker"):
                collect_events(hf, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", ["+aiosqlite", "+asyncpg", "+psycopg"])
def test_async_sessions_publish_and_roll_back_alike(
    request: pytest.FixtureRequest, make_app: AppMaker, driver: str
) -> None:
    place: Place = request.getfixturevalue("sqlite_place" if driver == "+aiosqlite" else "postgres_place")
    hf = make_app(place)

    async def work() -> None:
        engine = create_async_engine(place.url(driver), poolclass=NullPool)
        async with engine.begin() as conn:
            await conn.run_sync(Base.metadata.create_all)
        sessions, other = async_sessionmaker(engine), async_sessionmaker(engine)
        collect_events(hf, sessions)
        collect_events(hf, sessions)
        async with sessions.begin() as session:
            session.add(Order.opened(id=1))
        undone = sessions()
        undone.add(Order.opened(id=2))
        await undone.flush()
        await undone.rollback()
        await undone.close()
        async with other.begin() as session:
            session.add(Order.opened(id=3))
        async with AsyncSession(engine) as session:
            session.add(Order.opened(id=4))
            await session.commit()
        async with engine.begin() as conn:
            await conn.run_sync(Base.metadata.drop_all)
        await engine.dispose()

    asyncio.run(work())
    rows = place.rows("select payload ->> 'order_id' from {hf}message")
    assert [int(row[0]) for row in rows] == [1]


def test_on_postgresql_they_are_in_the_sessions_transaction(make_app: AppMaker, postgres_place: Place) -> None:
    hf = make_app(postgres_place)
    engine = sa.create_engine(postgres_place.url("+psycopg"), poolclass=NullPool)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    collect_events(hf, sessions)
    with sessions() as session:
        session.add(Order.opened())
        session.flush()
        assert postgres_place.rows("select id from {hf}message") == []
        session.commit()
    assert len(postgres_place.rows("select id from {hf}message")) == 1
    Base.metadata.drop_all(engine)
