"""A connection to another database than the store's is refused before anything is written through it."""

import gc
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa

from holdfast import Context, Holdfast, WrongDatabase
from holdfast.idempotency.engine import IdempotencyEngine, IdempotencyOptions
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import StoreRecords
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.integrations.idempotency import Reservation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.produce.callers import EACH, POSTGRES, SQLITE, Caller
from tests.produce.conftest import OrderPlaced, Stored, stored
from tests.produce.place import Place, PostgresPlace, SqlitePlace
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

AppMaker = Callable[[Place], Holdfast]
ALL = [*SQLITE, *POSTGRES]


@pytest.fixture(scope="session")
def other_dsn(postgres18: PostgresServer) -> str:
    """Another database of the same server, with Holdfast's tables too."""
    dsn = postgres18.create_database("holdfast_elsewhere")
    store = PostgresStore(dsn)
    store.migrate()
    store.close_sync()
    return dsn


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, way: str, tmp_path: Path, make_app: AppMaker) -> Iterator[Holdfast]:
    """An app whose store is another database than the caller's; both have Holdfast's tables."""
    if way in SQLITE:
        SqliteStore(request.getfixturevalue("place").path).migrate()
        place: Place = SqlitePlace(tmp_path / "jobs.db")
    else:
        place = PostgresPlace(request.getfixturevalue("other_dsn"))
    hf = make_app(place)
    hf.sync.publish(OrderPlaced(0), conn=None)
    yield hf
    assert len(place.rows("select id from {hf}message")) == 1
    if way not in SQLITE:
        place.rows("delete from {hf}delivery; delete from {hf}message")


@pytest.mark.parametrize("way", ALL)
def test_publishing_through_another_database_is_refused_and_nothing_is_written(
    elsewhere: Holdfast, caller: Caller, place: Place
) -> None:
    caller.insert(1)
    for _ in range(2):
        with pytest.raises(WrongDatabase, match=r"nothing was written.*Holdfast\(") as refusal:
            caller.publish(elsewhere, OrderPlaced(1))
        assert elsewhere.store.name in str(refusal.value)
    with pytest.raises(WrongDatabase):
        caller.publish_many(elsewhere, [OrderPlaced(1), OrderPlaced(2)])
    assert len(caller.execute("select id from orders")) == 1, "the caller's transaction is whole"
    caller.commit()
    assert stored(place) == Stored([1], {})


@pytest.mark.parametrize("way", EACH)
def test_every_other_call_that_takes_a_connection_refuses_it_too(
    elsewhere: Holdfast, caller: Caller, place: Place
) -> None:
    @elsewhere.job()
    def send(to: str) -> None: ...

    records = StoreRecords(elsewhere)
    idem = IdempotencyKey(
        IdempotencyEngine(records, IdempotencyOptions()),
        Reservation("t", str(uuid4()), "hash", "me", "POST", "/orders"),
    )
    context = Context(_claimed(), "worker", elsewhere.store, elsewhere, 1)
    if caller.awaits:
        calls: list[Callable[[], Any]] = [
            lambda: caller.runner.run(send.using(conn=caller.conn).enqueue("ada")),
            lambda: caller.runner.run(
                elsewhere.webhooks.add("https://acme.test/in", events=["order.*"], conn=caller.conn)
            ),
            lambda: caller.runner.run(idem.complete({"id": 1}, conn=caller.conn)),
            lambda: caller.runner.run(context.complete(conn=caller.conn)),
        ]
    else:
        calls = [
            lambda: send.using(conn=caller.conn).sync.enqueue("ada"),
            lambda: elsewhere.webhooks.sync.add("https://acme.test/in", events=["order.*"], conn=caller.conn),
            lambda: idem.sync.complete({"id": 1}, conn=caller.conn),
            lambda: context.sync.complete(conn=caller.conn),
        ]
    for call in calls:
        with pytest.raises(WrongDatabase, match="nothing was written"):
            call()
    assert not context.completing, "the handler's return still decides"
    caller.insert(1)
    caller.commit()
    assert stored(place) == Stored([1], {})
    assert place.rows("select 1 from {hf}endpoint") == []


@pytest.mark.parametrize("way", [way for way in POSTGRES if way in EACH])
def test_a_connection_is_asked_once_and_later_publishes_cost_no_further_statement(
    hf: Holdfast, caller: Caller, place: Place
) -> None:
    caller.publish(hf, OrderPlaced(1))
    caller.commit()
    asked = _count_identity_queries(hf)
    caller_two = type(caller)(place)
    try:
        for _ in range(3):
            caller_two.publish(hf, OrderPlaced(2))
    finally:
        caller_two.end()
    assert asked == ["postgres"], "once for the new connection"


def _count_identity_queries(hf: Holdfast) -> list[str]:
    asked: list[str] = []
    expand = hf.store.dialect.expand

    def counted(query: Any, style: Any) -> Any:
        if query.name == "database_identity":
            asked.append(hf.store.dialect.name)
        return expand(query, style)

    hf.store.dialect.expand = counted  # type: ignore[method-assign]
    return asked


class TestFiles:
    @pytest.fixture
    def hf(self, sqlite_place: SqlitePlace, make_app: AppMaker) -> Holdfast:
        return make_app(sqlite_place)

    def test_a_symbolic_link_and_a_uri_lead_to_the_same_file(self, hf: Holdfast, sqlite_place: SqlitePlace) -> None:
        link = sqlite_place.path.with_name("link.db")
        link.symlink_to(sqlite_place.path)
        for name, uri in ((str(link), False), (f"file:{sqlite_place.path}?mode=rw", True)):
            with closing(sqlite3.connect(name, uri=uri)) as conn, conn:
                assert hf.sync.publish(OrderPlaced(1), conn=conn).created
        assert len(stored(sqlite_place).messages) == 2

    def test_the_store_may_be_named_by_the_link(self, sqlite_place: SqlitePlace) -> None:
        link = sqlite_place.path.with_name("link.db")
        link.symlink_to(sqlite_place.path)
        with closing(sqlite3.connect(sqlite_place.path)) as conn, conn:
            assert Holdfast(f"sqlite:///{link}").sync.publish("order.placed", {}, conn=conn).created
        assert len(stored(sqlite_place).messages) == 1

    def test_a_hard_link_is_refused_because_its_journal_has_another_name(
        self, hf: Holdfast, sqlite_place: SqlitePlace
    ) -> None:
        other = sqlite_place.path.with_name("hard.db")
        os.link(sqlite_place.path, other)
        with closing(sqlite3.connect(other)) as conn, pytest.raises(WrongDatabase, match="hard link"):
            hf.sync.publish(OrderPlaced(1), conn=conn)
        with closing(sqlite3.connect(sqlite_place.path)) as conn, conn:
            assert hf.sync.publish(OrderPlaced(1), conn=conn).created

    @pytest.mark.parametrize("name", [":memory:", "", "file::memory:?cache=shared"])
    def test_a_database_in_memory_is_refused(self, hf: Holdfast, name: str) -> None:
        with (
            closing(sqlite3.connect(name, uri=name.startswith("file:"))) as conn,
            pytest.raises(WrongDatabase, match="in memory"),
        ):
            hf.sync.publish(OrderPlaced(1), conn=conn)

    def test_the_stores_file_must_be_the_main_one_and_not_attached(
        self, hf: Holdfast, sqlite_place: SqlitePlace, tmp_path: Path
    ) -> None:
        with closing(sqlite3.connect(tmp_path / "orders.db")) as conn:
            conn.execute("attach ? as jobs", (str(sqlite_place.path),))
            with pytest.raises(WrongDatabase, match=r"orders\.db"):
                hf.sync.publish(OrderPlaced(1), conn=conn)
        with closing(sqlite3.connect(sqlite_place.path)) as conn, conn:
            conn.execute("attach ? as orders", (str(tmp_path / "orders.db"),))
            assert hf.sync.publish(OrderPlaced(1), conn=conn).created

    def test_a_file_that_was_deleted_under_the_connection_is_refused(
        self, hf: Holdfast, sqlite_place: SqlitePlace
    ) -> None:
        with closing(sqlite3.connect(sqlite_place.path)) as conn:
            sqlite_place.path.unlink()
            with pytest.raises(WrongDatabase, match="deleted"):
                hf.sync.publish(OrderPlaced(1), conn=conn)

    def test_no_lock_is_taken_on_the_wrong_file(self, hf: Holdfast, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "orders.db")) as conn:
            with pytest.raises(WrongDatabase):
                hf.sync.publish(OrderPlaced(1), conn=conn)
            assert not conn.in_transaction

    def test_the_store_stays_where_it_was_when_the_process_changes_its_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        hf = Holdfast("sqlite:///jobs.db")
        hf.sync.publish("order.placed", {}, conn=None)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as conn, conn:
            assert hf.sync.publish("order.placed", {}, conn=conn).created
        with closing(sqlite3.connect("jobs.db")) as conn, pytest.raises(WrongDatabase):
            hf.sync.publish("order.placed", {}, conn=conn)


class TestServers:
    def test_a_copy_on_another_server_is_refused(
        self, postgres16: PostgresServer, postgres_place: PostgresPlace
    ) -> None:
        copy = postgres16.create_database("holdfast_produce")
        store = PostgresStore(copy)
        store.migrate()
        store.close_sync()
        hf = Holdfast(postgres_place.dsn)
        with psycopg.connect(copy) as conn, pytest.raises(WrongDatabase, match="another server"):
            hf.sync.publish("order.placed", {}, conn=conn)
        hf.store.close_sync()

    def test_the_same_database_by_another_name_of_its_server_is_accepted(self, postgres_place: PostgresPlace) -> None:
        hf = Holdfast(postgres_place.dsn)
        by_name = postgres_place.dsn.replace("127.0.0.1", "localhost")
        with psycopg.connect(by_name) as conn:
            assert hf.sync.publish("order.placed", {}, conn=conn).created
        hf.store.close_sync()

    def test_through_a_pooler_the_database_behind_it_counts(
        self, postgres18: PostgresServer, postgres_place: PostgresPlace, other_dsn: str
    ) -> None:
        hf = Holdfast(postgres_place.dsn)
        with PgBouncer(postgres18) as pooler:
            with psycopg.connect(pooler.dsn("holdfast_produce"), prepare_threshold=None) as conn:
                assert hf.sync.publish("order.placed", {}, conn=conn).created
            with (
                psycopg.connect(pooler.dsn("holdfast_elsewhere"), prepare_threshold=None) as conn,
                pytest.raises(WrongDatabase),
            ):
                hf.sync.publish("order.placed", {}, conn=conn)
        hf.store.close_sync()

    def test_after_a_restart_of_the_server_new_connections_are_accepted(self) -> None:
        with PostgresServer(18) as server:
            dsn = server.create_database("shop")
            store = PostgresStore(dsn)
            store.migrate()
            hf = Holdfast(dsn)
            with psycopg.connect(dsn) as conn:
                assert hf.sync.publish("order.placed", {}, conn=conn).created
            server.restart()
            with psycopg.connect(dsn) as conn:
                assert hf.sync.publish("order.placed", {}, conn=conn).created
            hf.store.close_sync()
            store.close_sync()

    def test_a_closed_connection_is_forgotten(self, postgres_place: PostgresPlace) -> None:
        hf = Holdfast(postgres_place.dsn)
        engine = sa.create_engine(postgres_place.url("+psycopg"), poolclass=sa.pool.NullPool)
        for _ in range(3):
            with engine.begin() as conn:
                hf.sync.publish("order.placed", {}, conn=conn)
        gc.collect()
        assert isinstance(hf.store, PostgresStore)
        assert len(hf.store.verification.verified) == 0
        hf.store.close_sync()


def _claimed() -> Claimed:
    id, now = uuid4(), datetime.now(UTC)
    return Claimed(
        id, id, "billing", "default", 1, 0, 1, None, 1, 0, 0, False, now, None, "t", "app", None, "{}", "{}", now, 0
    )
