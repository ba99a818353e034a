"""The columns of each statement are what its reader expects, in the same order, on both stores.

A reader is a row type, or an operation that unpacks rows by position; the names that it gives the columns are listed
here. A computed column without a name is only counted.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.core.circuit import Circuit
from holdfast.core.delivery import Delivery
from holdfast.core.message import Message
from holdfast.stores.admin.actions import AuditEntry, Replayed
from holdfast.stores.admin.plan import PlanItem, StoredPlan
from holdfast.stores.admin.token import Token
from holdfast.stores.deliveries.claim import Claimed, LaneFlow
from holdfast.stores.deliveries.flow import _slots
from holdfast.stores.deliveries.worker import LiveWorker, WorkerRecord
from holdfast.stores.dialect import Style
from holdfast.stores.event_log.position import Position
from holdfast.stores.event_log.projection import LastRun, Rebuilding
from holdfast.stores.integrations.idempotency import KeyRecord
from holdfast.stores.messages.fanout import SubscriptionRow
from holdfast.stores.messages.intake import IntakeReport
from holdfast.stores.messages.registry import MissedMessageRow
from holdfast.stores.messages.schedule import OverdueJob, StoredSchedule
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.flow_keys import FlowTotals, KeyCounts
from holdfast.stores.queries.health import LaneCount, OldTransaction, SubscriptionLag, TableHealth
from holdfast.stores.queries.query import Run
from holdfast.stores.sqlite.dialect import SqliteDialect
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.statement import Statements
from tests.servers.postgres import PostgresServer

SLOT = re.compile(r"\{(\w+)\}")
PARAMETER = re.compile(r"(?<![:\w']):([a-z_]\w*)")
SLOTS = {
    "found_lanes": ("lane_above",),
    "which": ("done",),
    "owned": ("claimed_rows",),
    "keyed": ("keyed_running",),
    "consumer_choice": ("one_consumer",),
    **dict(_slots(LaneFlow(None, None), walk=False, floors=False, recent=False, suspects=False)),
}
"""Slots that must not be empty."""

COMPUTED = re.compile(
    r"\W|^\d|^$|^(count|coalesce|case|min|max|sum|now|clock_timestamp|greatest|extract|bool|int4|int8|text|bytea"
    r"|pg_column_size|pg_snapshot_xmin|pg_current_snapshot|current_setting|current_database|null)$"
)
"""The name that a database gives a computed column."""


def names(kind: Any, *more: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    own = [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    return (*(name for name in own if name not in without), *more)


SUMMARY = names(Delivery, "type", "source", "key")
AUDIT = names(AuditEntry, without=("plan",))
ENDPOINT = (
    *("id", "consumer", "url", "tenant", "events", "headers", "secret", "previous", "previous_until"),
    *("concurrency", "created_at", "disabled_at", "disabled_reason", "queue", "priority", "retry", "flow"),
    "flow_override",
)
CONSUMER = (
    *("name", "queue", "priority", "max_attempts", "retry", "generation", "registered_at", "paused_at"),
    *("blocked_until", "blocked_resource", "flow", "flow_override", "keep"),
)
CLAIMED = (*Claimed._fields[:-1], "generation")
REQUEST = ("owner", "request_hash", "status", "lapsed", "response_status", "response_headers", "response_body")

ROWS: Mapping[str, tuple[str, ...]] = {
    "accepted_counts": ("n", "made", "failed"),
    "accepted_samples": ("n", "position", "figures", "whole", "position"),
    "active_subscriptions": ("pattern", "consumer"),
    "alert_group": ("alike", "due", "left"),
    "audit": AUDIT,
    "audited_plans": ("id", "action", "state", "total", "done", "results"),
    "batch_lanes": ("queue", "consumer", "generation", "priority", "due", "waited"),
    "block_consumer": ("blocked_until", "now"),
    "breaker": ("now", "name", *names(Circuit)),
    "breakers": ("name", "now", *names(Circuit)),
    "catch_up_marks": ("mark_tx", "mark_position", "epoch", "horizon"),
    "catch_up_scan": names(MissedMessageRow),
    "claim": CLAIMED,
    "claim_batch": CLAIMED,
    "claim_states": ("id", "fence", "status", "locked_by"),
    "consumers": CONSUMER,
    "count_plan_duplicates": ("handled", "deduplicated"),
    "count_plan_items": (
        *("consumer", "queue", "type", "generation", "to_generation", "fingerprint", "outcome", "number"),
    ),
    "current_states": ("id", "status", "fence", "discarded", "by"),
    "disable_endpoint": ("consumer", "events"),
    "discover_and_claim": CLAIMED,
    "enable_endpoint": ("consumer", "events"),
    "endpoints": ENDPOINT,
    "failing_runs": ("n", "generation", "generation", "trace"),
    "failure_examples": ("n", "id", "error_type", "last_error", "completed_at"),
    "failure_kinds": ("fingerprint", "consumer"),
    "following_deliveries": SUMMARY,
    "field_values": ("n", "value", "count"),
    "flow_queues": ("name", "flow", "flow_override"),
    "flow_totals": names(FlowTotals),
    "key_counts": names(KeyCounts),
    "failure_minutes": ("n", "low", "size", "first_failed_at"),
    "failure_sizes": ("n", "size", "first_failed_at"),
    "find_keyed": ("source", "key", "key_scope", "same_scope", "id", "type", "payload"),
    "find_messages": names(Message),
    "find_token": names(Token, "needs_record"),
    "held_claims": ("id", "fence"),
    "history_bound": ("id", "consumer"),
    "hold_plan": ("state", "done", "followed", "results"),
    "intakes": names(IntakeReport),
    "lane_counts": names(LaneCount),
    "lanes": ("queue", "consumer", "generation", "priority", "blocked", *("flow", "flow_override") * 2),
    "lanes_above": (
        "queue",
        "consumer",
        "generation",
        "priority",
        "blocked",
        *("flow", "flow_override") * 2,
        "floor_at",
    ),
    "last_run": names(LastRun),
    "list_deliveries": SUMMARY,
    "list_messages": names(Message),
    "list_plan_items": names(PlanItem),
    "list_requests": names(KeyRecord),
    "listed_endpoints": ENDPOINT,
    "load_heads": ("queue", "consumer", "state", "size", "oldest_at", "now", "generation", "priority", "since"),
    "load_sizes": ("n", "size"),
    "lock_deliveries": ("id", "fence"),
    "log_ahead": ("position", "id", "size", "seen"),
    "log_behind": ("waiting", "oldest", "seen", "now"),
    "log_end": ("snapshot", "position", "newest", "rewound"),
    "lowest_mark": ("mark_tx", "mark_position"),
    "message_deliveries": SUMMARY,
    "named_consumers": CONSUMER,
    "next_due_in": ("next_at", "now"),
    "next_plan_items": ("n", "delivery_id", "status", "fence", "to_generation"),
    "old_transactions": names(OldTransaction),
    "overdue": ("size", "oldest", "now"),
    "position_gaps": ("n", "span"),
    "recent_runs": ("delivery_id", "completed_at"),
    "positions": names(Position),
    "projectors": ("name", "held", *names(Rebuilding)),
    "publish_keyed": ("id", "epoch"),
    "queue_flows": ("name", "flow"),
    "queues": ("name", "paused_at"),
    "read_request": REQUEST,
    "readiness": ("held", "backlog"),
    "rebuild_cursor": ("cursor", "passed"),
    "recent_failure_kinds": ("fingerprint", "consumer"),
    "redactions": ("pattern", "path"),
    "replay": names(Replayed),
    "request_messages": names(Message),
    "rescue": (*CLAIMED, "policy"),
    "reserve_request": REQUEST,
    "retrying": ("error_type", "count", "since", "example", "last_error"),
    "revoke_token": ("id", "name"),
    "runs": names(Run),
    "schedule": names(StoredSchedule),
    "schedules": names(StoredSchedule),
    "due_schedules": names(StoredSchedule),
    "overdue_schedules": names(OverdueJob),
    "subscription_lag": names(SubscriptionLag),
    "subscriptions": names(SubscriptionRow),
    "table_health": names(TableHealth),
    "take_position": ("fence", "cursor"),
    "tokens": names(Token),
    "trail_audit": AUDIT,
    "trail_deliveries": SUMMARY,
    "trail_runs": ("delivery_id", *names(Run)),
    "unknown_to_rebuild": ("id", "generation", "queue", "priority", "generation"),
    "unserved": ("id", "generation", "queue", "priority", "generation"),
    "unsettled_plan_items": ("n", "status", "discarded"),
    "live_workers": names(LiveWorker),
    "workers": names(WorkerRecord),
    **dict.fromkeys(
        ("advance_plan", "find_plan", "list_plans", "lock_plan", "move_plan", "save_plan", "start_plan"),
        names(StoredPlan),
    ),
}
OTHERWISE = {
    "database_identity": "each store has its own answer and its own reader",
    "prune_deliveries": "only the number of rows is read",
    "prune_messages": "only the number of rows is read",
    "server_settings": "pairs of name and value from pragmas",
    "remove_deliveries": "only the id is read; SQLite's steps pass the other columns on",
    "settle": "only the id is read; SQLite's steps pass the other columns on",
    "settle_new": "no row is read; SQLite's steps pass the columns on",
    "advance": "unless a run can end, only the id and the status are read; SQLite's steps pass the other columns on",
    "died": "pairs of time and count from a list of values",
}
Columns = Mapping[str, list[str]]


def filled(statements: Statements, name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The slots of a statement, empty where that is possible."""
    found: dict[str, tuple[str, ...]] = {}
    waiting = [text for step in statements._statements[name].steps for text in step.statements]
    while waiting:
        for slot in SLOT.findall(waiting.pop()):
            if slot in statements._fragments:
                waiting.append(statements._fragments[slot])
            elif slot not in statements._constants and slot != "limit":
                found[slot] = SLOTS.get(slot, ())
                waiting.extend(statements._fragments[fragment] for fragment in found[slot])
    return tuple(sorted(found.items()))


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Columns:
    store = SqliteStore(Path(tmp_path_factory.mktemp("rows")) / "rows.db")
    store.migrate()
    return dict(_sqlite_columns(store))


def _sqlite_columns(store: SqliteStore) -> Iterator[tuple[str, list[str]]]:
    statements = store.dialect.statements
    connection = store._open()
    connection.execute("pragma ignore_check_constraints = on")
    for name in sorted(statements.names):
        answering = [step for step in statements.render(name, filled(statements, name), None) if step.answers]
        if not answering:
            continue
        text = answering[-1].statements[-1]
        # A batch is empty: what a row of it would store is not known here.
        given = {one: "[]" if f"json_each(:{one})" in text else 1 for one in PARAMETER.findall(text)}
        connection.execute("begin")
        try:
            description = connection.execute(text, given).description or ()
        finally:
            connection.execute("rollback")
        yield name, [column[0] for column in description]
    store.close_sync()


@pytest.fixture(scope="module")
def on_postgres(postgres16: PostgresServer, database: Callable[[PostgresServer], str]) -> Columns:
    store = PostgresStore(database(postgres16))
    with psycopg.connect(store.conninfo) as connection:
        return dict(_postgres_columns(store.dialect, connection))


def _postgres_columns(dialect: PostgresDialect, connection: psycopg.Connection) -> Iterator[tuple[str, list[str]]]:
    for name in sorted(dialect.statements.names):
        text, _ = dialect._compile(name, filled(dialect.statements, name), 1, Style.NUMERIC)
        if text.startswith("copy"):
            continue
        prepared = connection.pgconn.prepare(b"", text.encode())
        assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, f"{name}: {prepared.error_message.decode()}"
        answer = connection.pgconn.describe_prepared(b"")
        yield name, [(answer.fname(column) or b"").decode() for column in range(answer.nfields)]


@pytest.mark.parametrize("name", sorted(SqliteDialect().statements.names))
def test_columns_are_the_fields_of_the_reader(name: str, on_sqlite: Columns, on_postgres: Columns) -> None:
    found = {"SQLite": on_sqlite.get(name, []), "PostgreSQL": on_postgres.get(name, [])}
    if name in OTHERWISE or max(map(len, found.values())) <= 1:
        return
    # Rows that are unpacked where they are read: the two stores have to agree.
    expected = ROWS.get(name, tuple(found["PostgreSQL"]))
    for store, columns in found.items():
        assert len(columns) == len(expected), f"{store} returns {columns}"
        wrong = {
            position: (column, field)
            for position, (column, field) in enumerate(zip(columns, expected, strict=True))
            if column != field and not COMPUTED.search(column) and not COMPUTED.search(field)
        }
        assert not wrong, f"{store} returns other columns than the reader expects: {wrong}"


def test_the_lists_name_only_statements_that_exist() -> None:
    known = SqliteDialect().statements.names
    assert {*ROWS, *OTHERWISE} <= known
