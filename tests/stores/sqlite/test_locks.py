"""SQLite: a lock that another connection holds, and a file that is deleted or replaced while it is open."""

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import StoreLocked, StoreReplaced, StoreUnavailable
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.operation import Operation
from holdfast.stores.sqlite.lock import writer
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.builders import message, put

SHORT = timedelta(milliseconds=50)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection to the file, in rollback-journal mode."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as conn:
        conn.execute("create table orders (id integer)")
        conn.execute("insert into orders values (1), (2)")
        yield conn


@pytest.fixture
async def store(tmp_path: Path, other: sqlite3.Connection) -> SqliteStore:
    """A store whose file could not be switched to WAL because another connection was in a transaction."""
    other.execute("begin immediate")
    store = SqliteStore(tmp_path / "shop.db", busy_timeout=SHORT)
    store._open()
    other.execute("rollback")
    store.migrate()
    assert other.execute("pragma journal_mode").fetchone() == ("delete",)
    return store


async def test_a_commit_that_meets_a_reader_is_rolled_back_and_leaves_no_lock(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("begin")
    other.execute("select * from orders").fetchone()
    with pytest.raises(StoreLocked, match=r"rolled back.*was reading"):
        await put(store, message("order.placed"))
    other.execute("rollback")
    other.execute("insert into orders values (3)")  # the file is not left locked
    await put(store, message("order.placed"))
    assert other.execute("select count(*) from holdfast_message").fetchone() == (1,)
    await store.close()


async def test_a_write_lock_that_is_not_given_back_is_named_with_its_holder_and_since_when(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("begin immediate")
    refusals = []
    for _ in range(2):
        with pytest.raises(StoreLocked) as refusal:
            await put(store, message("order.placed"))
        refusals.append(refusal.value)
    assert "DSN" not in str(refusals[0])
    assert "neither committed nor rolled back" in str(refusals[0])
    assert refusals[0].since == refusals[1].since, "since the first refusal"
    if sys.platform == "linux":
        assert "another connection of this process has held the write lock since" in str(refusals[0])
    other.execute("rollback")
    await put(store, message("order.placed"))
    other.execute("begin immediate")
    with pytest.raises(StoreLocked) as refusal:
        await put(store, message("order.placed"))
    assert refusal.value.since is not None
    assert refusals[0].since is not None
    assert refusal.value.since > refusals[0].since, "a lock that was given back in between is another one"
    await store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the holders of locks")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_the_process_that_holds_the_write_lock_is_found(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "shop.db"
    holding = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f"db.execute('pragma journal_mode = {journal}'); db.execute('create table orders (id integer)');"
        "db.execute('begin immediate'); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", holding, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert writer(path) == process.pid
        store = SqliteStore(path, busy_timeout=SHORT)
        with pytest.raises(StoreLocked, match=f"another connection of process {process.pid} has held"):
            store.run_sync(_write())
        store.close_sync()
        process.communicate("\n")
    assert writer(path) is None


def _write() -> Operation[list[Published]]:

    return publish([message("order.placed")], Fanout())


@pytest.mark.parametrize("how", ["deleted", "replaced by another one"])
async def test_a_file_that_was_taken_away_is_not_written_any_more(sqlite_store: SqliteStore, how: str) -> None:
    await put(sqlite_store, message("order.placed"))
    if how == "deleted":
        sqlite_store.path.unlink()
    else:
        copy = sqlite_store.path.with_name("backup.db")
        shutil.copy(sqlite_store.path, copy)
        copy.replace(sqlite_store.path)
    with pytest.raises(StoreReplaced, match=re.escape(f"{sqlite_store.name} was {how}")) as refusal:
        await put(sqlite_store, message("order.placed"))
    assert not isinstance(refusal.value, StoreUnavailable), "waiting would not help"


def test_after_an_interrupt_in_the_middle_of_a_statement_the_store_commits_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "shop.db")
    store.migrate()
    half_read: list[sqlite3.Cursor] = []

    def interrupted() -> None:
        with store._transaction(immediate=True) as connection:
            connection.execute("create table t(n integer)")
            half_read.append(connection.execute("insert into t values (1), (2) returning n"))
            next(half_read[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.run_sync(_write())
    store.close_sync()
