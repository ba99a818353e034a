"""A store that cannot be reached or used says so in one typed error that holds no secret."""

import asyncio
import shutil
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from holdfast.core.errors import ConfigurationError, StoreError, StoreUnavailable
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import LazyMessages, publish
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.queries.query import clock
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.process import free_port, server_directory
from tests.support.builders import all_deliveries, job, message, put, sql

SECRET = "s3cret"
SOON = timedelta(milliseconds=300)


def assert_no_secret(error: BaseException, store: object = None) -> None:
    """Neither in the error, nor in what a log would print of it, nor in the store's own words."""
    printed = "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)
    assert SECRET not in printed
    assert SECRET not in repr(store) + str(getattr(store, "name", ""))


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    store = PostgresStore(f"postgresql://ada:{SECRET}@127.0.0.1:{free_port()}/shop?password={SECRET}", timeout=SOON)
    assert store.name.startswith("postgresql://127.0.0.1:")
    with pytest.raises(StoreUnavailable, match="check that it is running") as unavailable:
        await store.run(counts())
    assert_no_secret(unavailable.value, store)
    for attempt in (lambda: store.run_sync(counts()), store.migrate, store.schema_status):
        with pytest.raises(StoreUnavailable) as refused:
            attempt()
        assert_no_secret(refused.value, store)
    store.hint_sync()
    await store.close()


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://ada:{SECRET}@[::1/shop",
        f"postgresql://ada:{SECRET}@host/shop?nonsense=1",
        f"host=db password={SECRET} nonsense",
        f"postgresql://ada:{SECRET}%zz@host/shop",
    ],
)
def test_a_malformed_dsn_is_refused_without_being_shown(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="DSN") as refused:
        PostgresStore(dsn)
    assert_no_secret(refused.value)


async def test_a_server_that_turned_read_only_is_unavailable(postgres_store: PostgresStore) -> None:
    reading = PostgresStore(f"{postgres_store.conninfo} options='-c default_transaction_read_only=on'")
    assert await reading.run(counts()) == []
    with pytest.raises(StoreUnavailable, match="read-only"):
        await put(reading, job())
    await reading.close()
    assert await all_deliveries(postgres_store) == []


async def test_a_role_without_rights_is_refused_with_what_it_lacks(postgres_store: PostgresStore) -> None:
    sql(postgres_store, "create role guest login")
    guest = PostgresStore(f"{postgres_store.conninfo} user=guest")
    with pytest.raises(StoreError, match=r"connect with a role.*docs/operate/roles\.md") as refused:
        await guest.run(counts())
    assert not isinstance(refused.value, StoreUnavailable)
    await guest.close()
    sql(postgres_store, "drop role guest")


async def test_sqlite_on_a_directory_is_unavailable(tmp_path: Path) -> None:
    await assert_unusable(SqliteStore(tmp_path), "is a folder")


async def test_sqlite_in_a_directory_that_does_not_exist_is_unavailable(tmp_path: Path) -> None:
    await assert_unusable(SqliteStore(tmp_path / "no" / "shop.db"), "the folder .*no does not exist")


async def test_sqlite_on_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and they are longer than any header\n" * 50)
    before = path.read_bytes()
    await assert_unusable(SqliteStore(path), "not a database")
    assert path.read_bytes() == before


async def assert_unusable(store: SqliteStore, why: str) -> None:
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=why):
            await store.run(counts())
        with pytest.raises(StoreUnavailable, match=why):
            store.schema_status()
        with pytest.raises(StoreUnavailable, match=why):
            store.migrate()
    await store.close()


def test_sqlite_on_a_read_only_file_is_unavailable() -> None:
    """In a child without rights: root may write any file."""
    directory = server_directory("readonly")
    path = directory / "shop.db"
    made = SqliteStore(path)
    made.migrate()
    made.close_sync()
    path.chmod(0o444)
    directory.chmod(0o555)
    try:
        subprocess.run([sys.executable, "-c", _UNPRIVILEGED, str(path)], check=True, timeout=60)
    finally:
        shutil.rmtree(directory)


_UNPRIVILEGED = """
import os, sys
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import LazyMessages, publish
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.sqlite.store import SqliteStore, schema_text
from tests.servers.process import unprivileged_user

# Everything that is read from the installation is read before the rights are revoked.
store = SqliteStore(sys.argv[1])
schema_text(store.dialect)
if user := unprivileged_user():
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
for attempt in (store.migrate, lambda: store.run_sync(register([Declaration("mail")], [], 0))):
    try:
        attempt()
    except StoreUnavailable:
        continue
    sys.exit("it was written")
"""


async def test_a_driver_error_that_means_nothing_to_us_stays_what_it_is(postgres_store: PostgresStore) -> None:
    @operation
    def divide() -> Steps[None]:
        yield Query("delivery_window", {"cursor": "no uuid"}, limit=1)

    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        await postgres_store.run(divide())


async def test_cancelling_a_waiting_task_leaves_no_transaction_and_a_working_pool(
    postgres_store: PostgresStore,
) -> None:
    store = PostgresStore(f"{postgres_store.conninfo} application_name=cancelled", pool_size=1)
    await store.run(clock())
    with psycopg.connect(postgres_store.conninfo) as other:
        other.execute("lock table holdfast.subscription in access exclusive mode")
        for _ in range(3):
            waiting = asyncio.create_task(store.run(register([Declaration("mail")], [], 0)))
            await _until_it_waits(postgres_store)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            states = "select state from pg_stat_activity where application_name = 'cancelled'"
            assert [row for row in sql(postgres_store, states) if row != ("idle",)] == []
    assert await store.run(register([Declaration("mail")], [], 0))
    await store.close()


@pytest.mark.parametrize("gap", [None, 0, 0.001, 0.01], ids=["once", "twice", "a moment later", "later"])
@pytest.mark.parametrize("count", [1, 3, 5_000], ids=["one", "few", "streamed"])
async def test_a_cancelled_publish_prints_nothing_and_leaves_a_working_pool(
    postgres_store: PostgresStore, caplog: pytest.LogCaptureFixture, count: int, gap: float | None
) -> None:
    """A second cancellation arrives while the driver still cancels the statement: it cannot roll back then."""
    store = PostgresStore(f"{postgres_store.conninfo} application_name=cancelled", pool_size=1)
    messages = [message() for _ in range(count)]
    with psycopg.connect(postgres_store.conninfo) as other:
        other.execute("lock table holdfast.message in exclusive mode")
        lazy = LazyMessages(lambda: iter([messages])) if count > 1000 else messages
        publishing = asyncio.create_task(store.run(publish(lazy, Fanout())))
        await _until_it_waits(postgres_store)
        publishing.cancel()
        if gap is not None:
            await asyncio.sleep(gap)
            publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    assert [record.getMessage() for record in caplog.records] == []
    await put(store, message())
    assert sql(postgres_store, "select count(*) from {hf}message") == [(1,)]
    await store.close()


async def _until_it_waits(store: PostgresStore) -> None:
    waits = "select 1 from pg_stat_activity where application_name = 'cancelled' and wait_event_type = 'Lock'"
    for _ in range(200):
        await asyncio.sleep(0.005)
        if sql(store, waits):
            return
    raise AssertionError("the task does not wait for the lock")


async def test_cancelling_at_any_moment_leaves_a_working_store(store: Store) -> None:
    for n in range(30):
        task = asyncio.create_task(put(store, job(), job(key=f"k{n}")))
        await asyncio.sleep(n * 0.0003)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await put(store, job())
    rows = await all_deliveries(store)
    assert len(rows) % 2 == 1, "each call was written whole or not at all"
    if isinstance(store, PostgresStore):
        stuck = "select 1 from pg_stat_activity where datname = current_database() and state like 'idle in%'"
        assert sql(store, stuck) == []


async def test_a_full_pool_is_unavailable_after_its_timeout(postgres_store: PostgresStore) -> None:
    store = PostgresStore(postgres_store.conninfo, pool_size=1, timeout=SOON)
    with psycopg.connect(postgres_store.conninfo) as other:
        other.execute("lock table holdfast.subscription in access exclusive mode")
        waiting = asyncio.create_task(store.run(register([Declaration("mail")], [], 0)))
        await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailable):
            await store.run(counts())
        other.rollback()
        assert await waiting
    await store.close()


async def test_texts_are_sent_in_utf_8_also_if_the_dsn_sets_another_encoding(postgres_store: PostgresStore) -> None:
    store = PostgresStore(f"{postgres_store.conninfo} client_encoding=LATIN1")
    await put(store, message(payload={"name": "é€"}))
    await store.close()
    assert sql(postgres_store, "select payload ->> 'name' from {hf}message") == [("é€",)]
