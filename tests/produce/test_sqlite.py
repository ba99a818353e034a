"""SQLite's own ways: tables made on first use, one writer at a time, and what a transaction that read first meets."""

import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import DurabilityWarning, Holdfast, StoreBusy
from tests.produce.callers import SQLITE, Caller
from tests.produce.conftest import OrderPlaced, Stored, stored
from tests.produce.place import Place, SqlitePlace

AppMaker = Callable[[Place], Holdfast]

on_all = pytest.mark.parametrize("way", SQLITE)
# Ways whose transaction may have read before it publishes.
READING = [
    "sqlite3-begin",
    "sqlalchemy-sqlite-begin",
    "sqlalchemy-aiosqlite-begin",
    "django-sqlite",
    *(["sqlite3-no-autocommit"] if sys.version_info >= (3, 12) else []),
]


def tables(place: Place) -> list[str]:
    return [row[0] for row in place.rows("select name from sqlite_master where name like 'holdfast%'")]


class TestTables:
    @on_all
    def test_the_first_publish_makes_them_inside_the_callers_transaction(
        self, hf: Holdfast, caller: Caller, place: Place
    ) -> None:
        caller.publish(hf, OrderPlaced(1))
        assert tables(place) == [], "not before the caller commits"
        caller.commit()
        assert "holdfast_message" in tables(place)

    @on_all
    def test_rolled_back_they_are_gone_and_the_next_publish_makes_them_again(
        self, hf: Holdfast, place: Place, way: str
    ) -> None:
        caller = SQLITE[way](place)
        caller.insert(1)
        caller.publish(hf, OrderPlaced(1))
        caller.rollback()
        caller.end()
        assert tables(place) == []
        caller = SQLITE[way](place)
        caller.insert(1)
        published = caller.publish(hf, OrderPlaced(1))
        caller.commit()
        caller.end()
        assert stored(place) == Stored([1], {published.id: ["billing"]})

    def test_what_a_rolled_back_publish_knew_of_subscriptions_is_not_trusted(
        self, sqlite_place: SqlitePlace, make_app: AppMaker
    ) -> None:
        first, other = make_app(sqlite_place), make_app(sqlite_place)
        other.consumer(OrderPlaced, name="audit")(print)
        with closing(sqlite3.connect(sqlite_place.path)) as conn:
            first.sync.publish(OrderPlaced(1), conn=conn)
            conn.rollback()
        other.sync.publish(OrderPlaced(2), conn=None)
        with closing(sqlite3.connect(sqlite_place.path)) as conn:
            published = first.sync.publish(OrderPlaced(3), conn=conn)
            conn.commit()
        assert stored(sqlite_place).messages[published.id] == ["audit", "billing"]

    def test_a_publish_that_commits_alone_creates_them_permanently(
        self, sqlite_place: SqlitePlace, make_app: AppMaker
    ) -> None:
        published = make_app(sqlite_place).sync.publish(OrderPlaced(1), conn=None)
        assert stored(sqlite_place) == Stored([], {published.id: ["billing"]})


SECOND_PROCESS = """
import sqlite3, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1], source="shop")
conn = sqlite3.connect(sys.argv[2])
for n in range(20):
    with conn:
        conn.execute("insert into orders (id) values (?)", (1000 + n,))
        hf.sync.publish("order.placed", {"order_id": 1000 + n}, conn=conn)
"""


def test_a_second_process_publishes_at_the_same_time_to_the_same_consumers(
    sqlite_place: SqlitePlace, make_app: AppMaker
) -> None:
    hf = make_app(sqlite_place)
    hf.sync.publish(OrderPlaced(0), conn=None)
    command = [sys.executable, "-c", SECOND_PROCESS, sqlite_place.dsn, str(sqlite_place.path)]
    with subprocess.Popen(command) as second, closing(sqlite3.connect(sqlite_place.path, timeout=30)) as conn:
        for n in range(20):
            with conn:
                conn.execute("insert into orders (id) values (?)", (n,))
                hf.sync.publish(OrderPlaced(n), conn=conn)
        assert second.wait(30) == 0
    found = stored(sqlite_place)
    assert found.orders == [*range(20), *range(1000, 1020)]
    assert list(found.messages.values()) == [["billing"]] * 41


class Deferred:
    """Makes an SQLAlchemy engine's transactions begin as plain deferred ones, as its documentation advises."""

    def __init__(self, way: str) -> None:
        self.make = SQLITE[way.removesuffix("-begin")]

    def __call__(self, place: Place) -> Caller:
        from sqlalchemy import event

        caller = self.make(place)
        engine: Any = caller.engine  # type: ignore[attr-defined]
        engine = getattr(engine, "sync_engine", engine)

        @event.listens_for(engine, "connect")
        def no_implicit_begin(dbapi: Any, _: object) -> None:
            dbapi.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(conn: Any) -> None:
            conn.exec_driver_sql("begin")

        return caller


@pytest.fixture
def reading(sqlite_place: SqlitePlace, way: str) -> Any:
    sqlite_place.rows("pragma journal_mode = wal")
    caller = (Deferred(way) if way.startswith("sqlalchemy") else SQLITE[way])(sqlite_place)
    yield caller
    caller.end()


@pytest.fixture
def app(sqlite_place: SqlitePlace, make_app: AppMaker) -> Holdfast:
    return make_app(sqlite_place)


@pytest.mark.parametrize("way", READING)
@pytest.mark.parametrize("tables", ["old tables", "new tables"])
def test_reading_first_and_writing_after_another_did_is_a_typed_error_with_the_remedy(
    sqlite_place: SqlitePlace, app: Holdfast, reading: Caller, tables: str
) -> None:
    if tables == "old tables":
        app.sync.publish(OrderPlaced(0), conn=None)
    reading.execute("select id from orders")
    sqlite_place.rows("insert into orders (id) values (7)")
    with pytest.raises(StoreBusy, match=r"SQLITE_BUSY_SNAPSHOT.*BEGIN IMMEDIATE"):
        reading.publish(app, OrderPlaced(1))


@pytest.mark.parametrize("way", READING)
def test_reading_first_while_another_writes_is_the_same_error_at_once(
    sqlite_place: SqlitePlace, app: Holdfast, reading: Caller
) -> None:
    app.sync.publish(OrderPlaced(0), conn=None)
    reading.execute("select id from orders")
    with closing(sqlite3.connect(sqlite_place.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        started = time.monotonic()
        with pytest.raises(StoreBusy, match=r"SQLITE_BUSY;.*BEGIN IMMEDIATE"):
            reading.publish(app, OrderPlaced(1))
        assert time.monotonic() - started < 4, "its timeout is five seconds, and waiting would not help"
        other.execute("rollback")


@pytest.mark.parametrize("way", READING)
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "unprepared"])
def test_publishing_first_waits_for_its_turn_to_write(
    sqlite_place: SqlitePlace, app: Holdfast, make_app: AppMaker, reading: Caller, prepared: bool
) -> None:
    (app if prepared else make_app(sqlite_place)).sync.publish(OrderPlaced(0), conn=None)
    with closing(sqlite3.connect(sqlite_place.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin immediate")
        other.execute("insert into orders (id) values (7)")
        release = threading.Timer(0.2, other.execute, ["commit"])
        release.start()
        published = reading.publish(app, OrderPlaced(1))
        release.join()
    reading.commit()
    assert stored(sqlite_place).messages[published.id] == ["billing"]


class TestDurability:
    """A commit that is not on disk when it returns breaks the first promise: it is said once, and nothing is set."""

    WAYS = ("sqlite3", "sqlalchemy-sqlite-connection", "sqlalchemy-aiosqlite-connection", "django-sqlite")

    @pytest.mark.parametrize("way", WAYS)
    def test_normal_in_wal_mode_is_warned_about_once_and_stays(
        self, hf: Holdfast, caller: Caller, place: Place
    ) -> None:
        place.rows("pragma journal_mode = wal")
        self.set(caller, "synchronous = normal")
        with pytest.warns(DurabilityWarning, match=r"NORMAL in journal mode wal.*PRAGMA synchronous = FULL"):
            caller.publish(hf, OrderPlaced(1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            caller.publish(hf, OrderPlaced(2))
        assert [tuple(row) for row in caller.execute("pragma synchronous")] == [(1,)]

    @pytest.mark.parametrize("setting", ["synchronous = off", "journal_mode = memory", "journal_mode = off"])
    @pytest.mark.parametrize("way", ["sqlite3"])
    def test_these_are_warned_about_in_any_mode(self, hf: Holdfast, caller: Caller, setting: str) -> None:
        self.set(caller, setting)
        with pytest.warns(DurabilityWarning, match=setting.upper().split(" = ")[1]):
            caller.publish(hf, OrderPlaced(1))

    @pytest.mark.parametrize(
        ("journal", "level"), [("delete", "normal"), ("delete", "full"), ("wal", "full"), ("wal", "extra")]
    )
    @pytest.mark.parametrize("way", ["sqlite3"])
    def test_these_are_fine(self, hf: Holdfast, caller: Caller, place: Place, journal: str, level: str) -> None:
        place.rows(f"pragma journal_mode = {journal}")
        self.set(caller, f"synchronous = {level}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            caller.publish(hf, OrderPlaced(1))

    def set(self, caller: Caller, setting: str) -> None:
        """Pragmas are set outside transactions; some of the callers are in one from the start."""
        from tests.produce.test_untouched import driver_connection

        if hasattr(caller, "blocks"):
            caller.rollback()
        conn = driver_connection(caller)
        if caller.awaits:
            caller.execute(f"pragma {setting}")
        else:
            conn.execute(f"pragma {setting}")
        if hasattr(caller, "blocks"):
            caller.savepoint()


def test_the_store_itself_is_durable_and_warns_of_nothing(sqlite_place: SqlitePlace, make_app: AppMaker) -> None:
    hf = make_app(sqlite_place)
    hf.sync.publish(OrderPlaced(1), conn=None)
    assert Path(f"{sqlite_place.path}-wal").exists()
