"""The caller's connection stays as it is: no commit, no rollback, no setting changed, not even for a moment."""

import re
import sqlite3
from typing import Any

import pytest

from holdfast import Holdfast
from tests.produce.callers import EACH, POSTGRES, SQLITE, Caller
from tests.produce.conftest import OrderPlaced

PRAGMAS = [
    "application_id",
    "busy_timeout",
    "cache_size",
    "foreign_keys",
    "journal_mode",
    "locking_mode",
    "query_only",
    "recursive_triggers",
    "synchronous",
    "temp_store",
    "user_version",
    "wal_autocheckpoint",
]
SETTINGS = "select name, setting from pg_settings where name not like 'transaction\\_%' order by name"
# What may be said about a transaction that is not ours.
ALLOWED = re.compile(
    r"begin immediate|pragma (synchronous|journal_mode|database_list)|select|insert|update|delete|with|create|alter table|drop (index|view)",
    re.I,
)


def driver_connection(caller: Caller) -> sqlite3.Connection:
    """The sqlite3 connection under the connection of the caller."""
    if "django" in type(caller).__name__.lower():
        return caller.django.connection  # type: ignore[attr-defined]
    if isinstance(caller.conn, sqlite3.Connection):
        return caller.conn
    if caller.awaits:
        connection = caller.runner.run(_connection(caller.conn)).sync_connection.connection.driver_connection
        return connection._conn
    conn = caller.conn.connection() if callable(caller.conn.connection) else caller.conn
    found: sqlite3.Connection = getattr(conn, "connection", conn).driver_connection
    return found


async def _connection(conn: Any) -> Any:
    return await conn.connection() if hasattr(conn, "get_bind") else conn


@pytest.mark.parametrize("way", SQLITE)
def test_on_sqlite_no_statement_ends_the_transaction_or_sets_a_pragma(hf: Holdfast, caller: Caller) -> None:
    caller.insert(1)
    conn = driver_connection(caller)
    before = settings(caller, conn)
    said: list[str] = []
    conn.set_trace_callback(said.append)
    caller.publish(hf, OrderPlaced(1))
    caller.publish(hf, OrderPlaced(1), key="k")
    conn.set_trace_callback(None)
    assert said
    for text in said:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        assert ALLOWED.match(text.strip()), text
        assert not re.match(r"\s*pragma.*=", text, re.I), text
    assert conn.in_transaction
    assert settings(caller, conn) == before


def settings(caller: Caller, conn: sqlite3.Connection) -> list[object]:
    pragmas = [[tuple(row) for row in caller.execute(f"pragma {name}")] for name in PRAGMAS]
    return [*pragmas, conn.isolation_level, conn.row_factory, conn.text_factory, getattr(conn, "autocommit", None)]


@pytest.mark.parametrize("way", POSTGRES)
def test_on_postgresql_the_transaction_and_every_setting_stay_the_same(hf: Holdfast, caller: Caller) -> None:
    def state() -> list[Any]:
        return [
            caller.execute("select pg_current_xact_id()::text as id"),
            caller.execute(SETTINGS),
            *(getattr(caller.conn, name, None) for name in ("autocommit", "row_factory", "isolation_level")),
        ]

    before = state()
    caller.publish(hf, OrderPlaced(1))
    caller.publish(hf, OrderPlaced(1), key="k")
    assert state() == before


@pytest.mark.parametrize("way", EACH)
def test_a_refused_publish_leaves_the_transaction_open_and_whole(hf: Holdfast, caller: Caller) -> None:
    caller.insert(1)
    with pytest.raises(ValueError, match=r"order\.\.placed"):
        caller.publish(hf, "order..placed", {})
    with pytest.raises(ValueError, match="NUL"):
        caller.publish(hf, "note.taken", {"text": "\x00"})
    assert len(caller.execute("select id from orders")) == 1
