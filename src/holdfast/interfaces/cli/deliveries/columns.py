"""Table columns of deliveries, dead letters and messages."""

from collections.abc import Callable
from datetime import datetime

from holdfast.core.delivery import Status
from holdfast.core.message import Message
from holdfast.core.values.text import truncated
from holdfast.interfaces.cli.output import status_style
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.deliveries import attempts, state
from holdfast.interfaces.presentation.formatting import ago, clock, one_line, rough, stored_text
from holdfast.stores.queries.query import DeliverySummary


def when(listed: DeliverySummary, now: datetime, more: Callable[[datetime], str] | None = None) -> str:
    """The time of the current state: completion, claim or due time. `more` formats the absolute time to append."""
    row = listed.delivery
    at, text = row.run_at, f"due {ago(row.run_at, now)}"
    if row.completed_at is not None:
        at, text = row.completed_at, ago(row.completed_at, now)
    elif row.status == "in_flight" and row.claimed_at is not None:
        at, text = row.claimed_at, f"for {rough(now - row.claimed_at)}"
    return text if more is None else f"{text} ({more(at)})"


def delivery_columns(now: datetime) -> list[Column[DeliverySummary]]:
    return [
        Column("ID", lambda one: one.delivery.id),
        Column("STATUS", state, style=lambda one: status_style(state(one))),
        Column("CONSUMER", lambda one: one.delivery.consumer),
        Column("TYPE", lambda one: one.type),
        Column("WHEN", lambda one: when(one, now), longer=lambda one: when(one, now, clock)),
        Column("RUNS", attempts, right=True),
        Column("ERROR", lambda one: "" if one.delivery.status is Status.DELIVERED else _error(one), loose=True),
    ]


def dead_letter_columns(now: datetime) -> list[Column[DeliverySummary]]:
    return [
        Column("ID", lambda one: one.delivery.id),
        Column("CONSUMER", lambda one: one.delivery.consumer),
        Column("TYPE", lambda one: one.type),
        Column("FAILED", lambda one: when(one, now), longer=lambda one: when(one, now, clock)),
        Column("RUNS", attempts, right=True),
        Column("GROUP", lambda one: one.delivery.fingerprint or ""),
        Column("ERROR", _error, loose=True),
    ]


def _error(listed: DeliverySummary) -> str:
    """The class and the message of the last error: a message such as `'2026-11'` says nothing alone."""
    row = listed.delivery
    return one_line(": ".join(part for part in (row.error_type, row.last_error) if part))


def message_columns(now: datetime) -> list[Column[Message]]:
    return [
        Column("ID", lambda one: one.id),
        Column("TYPE", lambda one: one.type),
        Column("SOURCE", lambda one: one.source),
        Column("KEY", lambda one: one.key or ""),
        time_column("PUBLISHED", lambda one: one.occurred_at, now),
        Column("PAYLOAD", lambda one: one_line(truncated(stored_text(one.payload), 200)), loose=True),
    ]
