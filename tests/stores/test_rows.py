"""The columns of statements are the fields of their row types, in the same order, on both stores."""

from dataclasses import fields

import psycopg
import pytest

from holdfast.stores.admin.actions import AuditEntry
from holdfast.stores.dialect import Style
from holdfast.stores.event_log.position import Position
from holdfast.stores.messages.fanout import SubscriptionRow
from holdfast.stores.messages.intake import IntakeReport
from holdfast.stores.messages.registry import MissedMessageRow
from holdfast.stores.messages.schedule import StoredSchedule
from holdfast.stores.operation import Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore

ROWS = [
    (Query("subscriptions"), SubscriptionRow._fields),
    (
        Query("catch_up_scan", {"mark_tx": "0", "mark_position": 0, "epoch": 1, "horizon": "1"}, limit=1),
        MissedMessageRow._fields,
    ),
    (Query("intakes"), [field.name for field in fields(IntakeReport)]),
    (Query("positions", {"kind": "relay"}), [field.name for field in fields(Position)]),
    (Query("schedules"), [field.name for field in fields(StoredSchedule)]),
    (Query("audit", {"before": 1}, slots=(("where", ()),), limit=1), [field.name for field in fields(AuditEntry)][:10]),
]


@pytest.mark.parametrize(("query", "names"), ROWS, ids=[query.name for query, _ in ROWS])
def test_on_sqlite(sqlite_store: SqliteStore, query: Query, names: list[str]) -> None:
    text, values = next(sqlite_store.dialect.expand(query, Style.NAMED))
    with sqlite_store._transaction(immediate=False) as connection:
        description = connection.execute(text, values).description  # type: ignore[arg-type]
    assert [column[0] for column in description] == list(names)


@pytest.mark.parametrize(("query", "names"), ROWS, ids=[query.name for query, _ in ROWS])
def test_on_postgres(postgres_store: PostgresStore, query: Query, names: list[str]) -> None:
    text, values = next(postgres_store.dialect.expand(query, Style.PYFORMAT))
    with psycopg.connect(postgres_store.conninfo) as connection:
        description = connection.execute(text, values).description  # type: ignore[arg-type]
    assert [column.name for column in description or ()] == list(names)
