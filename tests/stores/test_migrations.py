"""Migrations: forward only, repeatable, by several at once, and never half done."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import takewhile
from pathlib import Path

import psycopg
import pytest

from holdfast.core.errors import InvalidName, LockTimeout, SchemaMismatch
from holdfast.stores.migration import migrations
from holdfast.stores.postgres import store as postgres
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.sqlite import store as sqlite
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.support.builders import all_deliveries, job, put, sql
from tests.support.stores import STORES

Opened = PostgresStore | SqliteStore
SOON = timedelta(milliseconds=200)
UPGRADE_NOTES = Path(__file__).parents[2] / "docs" / "operate" / "upgrade.md"


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a database without tables is."""
    if request.param == "sqlite":
        yield str(tmp_path / "empty.db")
        return
    server: PostgresServer = request.getfixturevalue(request.param)
    yield server.create_database("migrated")
    server.drop_database("migrated")


def opened(address: str, schema: str = "holdfast") -> Opened:
    return PostgresStore(address, schema) if address.startswith("postgresql") else SqliteStore(address, schema)


def schema_text(store: Opened) -> str:
    if isinstance(store, PostgresStore):
        return postgres.schema_text(store.dialect)
    return sqlite.schema_text(store.dialect)


def steps(store: Opened) -> list[str]:
    """What a migration from nothing applies."""
    package = f"holdfast.stores.{store.dialect.name}.migrations"
    return [f"{one.version:04} {one.name}" for one in migrations(package)]


def test_migrations_are_numbered_without_a_gap_and_alike_in_both_dialects() -> None:
    names = {
        name: [(one.version, one.name) for one in migrations(f"holdfast.stores.{name}.migrations")]
        for name in ("sqlite", "postgres")
    }
    assert names["sqlite"] == names["postgres"]
    assert [version for version, _ in names["sqlite"]] == list(range(1, len(names["sqlite"]) + 1))


async def test_migrating_twice_applies_nothing_twice(address: str) -> None:
    store = opened(address)
    assert store.migrate() == steps(store)
    await put(store, job())
    assert store.migrate() == []
    assert len(await all_deliveries(store)) == 1
    store.check_schema()
    await store.close()


def test_four_threads_at_once_apply_it_once(address: str) -> None:
    def migrate(_: int) -> list[str]:
        store = opened(address)
        try:
            return store.migrate()
        finally:
            store.close_sync()

    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(migrate, range(4)))
    assert sorted(applied) == [[], [], [], steps(opened(address))]


def test_processes_at_once_apply_it_once(address: str) -> None:
    kind = "postgres.store import PostgresStore" if "://" in address else "sqlite.store import SqliteStore"
    program = f"""
import sys
from holdfast.stores.{kind} as Store
sys.stdin.read(1)
store = Store({address!r})
print(len(store.migrate()))
store.close_sync()
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("g")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert sorted(answers) == ["0", "0", str(len(steps(opened(address))))]


def test_a_lock_that_cannot_be_had_is_a_timeout_and_nothing_changes(address: str) -> None:
    store = opened(address)
    with _holding_the_lock(store), pytest.raises(LockTimeout, match="nothing was changed"):
        store.migrate(SOON)
    assert store.schema_status().found is None
    assert store.migrate() == steps(store)
    store.close_sync()


def _holding_the_lock(store: Opened) -> closing:
    if isinstance(store, PostgresStore):
        postgres_connection = psycopg.connect(store.conninfo)
        postgres_connection.execute("select pg_advisory_xact_lock(hashtextextended('holdfast.migrate.holdfast', 0))")
        return closing(postgres_connection)
    store.schema_status()
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("begin immediate")
    return closing(connection)


def test_a_table_lock_that_cannot_be_had_is_a_timeout_too(empty_database: str) -> None:
    store = PostgresStore(empty_database)
    store.migrate()
    sql(store, "delete from {hf}schema_version where version > 1")
    with psycopg.connect(empty_database) as other:
        other.execute("lock table holdfast.schema_version in access exclusive mode")
        with pytest.raises(LockTimeout):
            store.migrate(SOON)
    assert store.schema_status().found == 1


async def test_without_tables_everything_says_so(address: str) -> None:
    store = opened(address)
    status = store.schema_status()
    assert (status.found, status.current, status.expected) == (None, False, len(steps(store)))
    with pytest.raises(SchemaMismatch, match="no Holdfast tables; run `holdfast schema migrate`"):
        store.check_schema()
    with pytest.raises(SchemaMismatch, match="no Holdfast tables"):
        await store.run(counts())
    with pytest.raises(SchemaMismatch, match="no Holdfast tables"):
        await put(store, job())
    assert store.schema_status().found is None
    await store.close()


@pytest.mark.parametrize(("version", "advice"), [(0, "run `holdfast schema migrate`"), (99, "upgrade holdfast")])
def test_behind_and_ahead_are_distinguished(address: str, version: int, advice: str) -> None:
    store = opened(address)
    store.migrate()
    sql(store, "delete from {hf}schema_version")
    sql(store, f"insert into {{hf}}schema_version (version, name) values ({version}, 'other')")
    with pytest.raises(SchemaMismatch, match=advice) as mismatch:
        store.check_schema()
    assert (mismatch.value.found, mismatch.value.expected) == (version, len(steps(store)))
    store.close_sync()


def test_failed_deliveries_from_before_get_their_type(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(address)
    module = postgres if isinstance(store, PostgresStore) else sqlite
    every = migrations(f"holdfast.stores.{store.dialect.name}.migrations")
    earlier = list(takewhile(lambda one: one.name != "failed_type", every))
    with monkeypatch.context() as patch:
        patch.setattr(module, "migrations", lambda _: earlier)
        store.migrate()
    sql(
        store,
        "insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch) values "
        "('018b0000-0000-7000-8000-000000000001', 'order.placed', 'shop', '{}', '{}', 0, 1)",
    )
    for n, status in enumerate(("failed", "delivered")):
        sql(
            store,
            "insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, status) values "
            f"('018b0000-0000-7000-900{n}-000000000001', '018b0000-0000-7000-8000-000000000001', 'mail{n}', 'default', 1, 0, "
            f"'{status}')",
        )
    store.migrate()
    assert sql(store, "select consumer, failed_type from {hf}delivery order by consumer") == [
        ("mail0", "order.placed"),
        ("mail1", None),
    ]
    store.close_sync()


@pytest.mark.long
def test_indexes_that_were_built_beforehand_are_used(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements of the upgrade notes, executed as printed before the migration."""
    store = PostgresStore(empty_database)
    every = migrations("holdfast.stores.postgres.migrations")
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "migrations", lambda _: list(takewhile(lambda one: one.name != "flow", every)))
        store.migrate()
    (printed,) = re.findall(r"```sql\n(.*?)```", UPGRADE_NOTES.read_text(), re.DOTALL)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        for statement in printed.split(";"):
            connection.execute(statement)
        store.migrate()
        made = catalog(store)
        connection.execute("drop schema holdfast cascade")
    store.migrate()
    assert made == catalog(store)
    store.close_sync()


def test_tables_of_a_newer_release_are_neither_migrated_nor_used(address: str) -> None:
    store = opened(address)
    store.migrate()
    sql(store, "insert into {hf}schema_version (version, name) values (99, 'future')")
    before = catalog(store)
    with pytest.raises(SchemaMismatch, match=r"is at version 99, this release needs .*; upgrade holdfast") as mismatch:
        store.migrate()
    assert (mismatch.value.found, mismatch.value.expected) == (99, len(steps(store)))
    assert (store.schema_status().found, catalog(store)) == (99, before)
    store.close_sync()


async def test_two_schemas_live_side_by_side(address: str) -> None:
    one, two = opened(address, "shop_a"), opened(address, "shop_b")
    one.migrate()
    assert two.schema_status().found is None
    two.migrate()
    await put(one, job("mail"))
    await put(two, job("audit"), job("audit"))
    assert [d.consumer for d in await all_deliveries(one)] == ["mail"]
    assert [d.consumer for d in await all_deliveries(two)] == ["audit", "audit"]
    await one.close()
    await two.close()


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "a$$b", "a.b", "a\nb", "", "A", "1a", "a-b", "a;drop table x", "x" * 64, "a b", "ä"]
)
def test_schema_names_that_could_mislead_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        PostgresStore("postgresql://localhost/none", name)
    with pytest.raises(InvalidName):
        SqliteStore("none.db", name)


def catalog(store: Opened) -> list[tuple[object, ...]]:
    """Everything a migration makes, in words."""
    if isinstance(store, SqliteStore):
        return sql(store, "select type, name, tbl_name, sql from sqlite_master order by type, name")
    return [
        *sql(
            store,
            "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns "
            f"where table_schema = '{store.dialect.schema}' order by 1, 2",
        ),
        *sql(
            store,
            f"select tablename, indexname, indexdef from pg_indexes where schemaname = '{store.dialect.schema}' order by 2",
        ),
        *sql(
            store,
            "select p.proname, pg_get_functiondef(p.oid) from pg_proc p "
            f"where p.pronamespace = '{store.dialect.schema}'::regnamespace order by 1",
        ),
        *sql(
            store,
            "select c.relname, c.reloptions::text, pg_get_viewdef(c.oid) from pg_class c "
            f"where c.relnamespace = '{store.dialect.schema}'::regnamespace and c.relkind in ('r', 'v') order by 1",
        ),
        *sql(
            store,
            "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint "
            f"where connamespace = '{store.dialect.schema}'::regnamespace order by 1, 2",
        ),
    ]


async def test_the_script_makes_what_migrating_makes(address: str, tmp_path: Path) -> None:
    """An operator may apply it by hand, and must then be at the version this release needs."""
    by_hand, migrated = opened(address), opened(address)
    if isinstance(by_hand, PostgresStore):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(schema_text(by_hand))
            made = catalog(by_hand)
            by_hand.check_schema()
            assert by_hand.migrate() == []
            connection.execute("drop schema holdfast cascade")
    else:
        with closing(sqlite3.connect(by_hand.path)) as plain:
            plain.executescript(schema_text(by_hand))
        made = catalog(by_hand)
        by_hand.check_schema()
        assert by_hand.migrate() == []
        migrated = SqliteStore(tmp_path / "other.db")
    migrated.migrate()
    assert made == catalog(migrated)
    await by_hand.close()
    await migrated.close()
