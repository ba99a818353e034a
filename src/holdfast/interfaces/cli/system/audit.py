"""`holdfast audit`: lists the audit log."""

from datetime import timedelta
from typing import Any

import click

from holdfast.core.values.duration import format_duration
from holdfast.interfaces.cli.filters import PAGE, SINCE, TARGET, TIME
from holdfast.interfaces.cli.output import show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.formatting import one_line
from holdfast.stores.admin.actions import AuditEntry

_ENDED = (("delivered", "delivered"), ("dead", "dead again"), ("discarded", "discarded"))


@group("audit")
def cli() -> None:
    """List the audit log: who did what, when and why."""


@command(cli, name="list")
@click.option(
    "--target", type=TARGET, metavar="KIND:NAME", help="Only this item: a delivery id, queue:mail, plan:01a1…"
)
@click.option("--by", "actor", metavar="NAME", help="Only actions of this actor (user or token).")
@click.option("--action", metavar="NAME", help="Only this action: replay, discard, pause, start, …")
@click.option("--since", type=SINCE, metavar="TIME", help="Only from this time on: 2h, 3d, 2026-11-15T09:00Z.")
@click.option("--until", type=TIME, metavar="TIME", help="Only before this time.")
@click.option("--limit", type=PAGE, default=50, show_default=True, help="Maximum number of entries.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only entries older than this number.")
def list_(**chosen: Any) -> None:
    """List audit entries, newest first. A plan is one entry; --target plan:ID lists each of its steps."""
    ops = settings().operations()
    found, now = ops.audit(**chosen), ops.now()
    if not found:
        ops.check_audit_filter(action=chosen["action"], target=chosen["target"])
    columns: list[Column[AuditEntry]] = [
        Column("#", lambda one: one.id, right=True),
        time_column("WHEN", lambda one: one.at, now),
        Column("ACTOR", lambda one: one.actor),
        Column("ACTION", lambda one: one.action),
        Column("ITEM", _item),
        Column("RESULT", _result),
        Column("REASON", lambda one: one_line(one.reason), loose=True),
    ]
    show_list(settings(), found, columns, "no audit entries")


def _item(entry: AuditEntry) -> str:
    """The item of an entry. A plan that acted on a single delivery is shown as that delivery."""
    only = _deliveries(entry)
    return f"delivery {only[0]}" if len(only) == 1 else f"{entry.kind} {entry.target}"


def _result(entry: AuditEntry) -> str:
    """The progress of a plan and the results of its deliveries, or the limits before and after a change."""
    if entry.action == "limit" and isinstance(entry.detail, dict):
        return f"{_limits(entry.detail.get('before'))} -> {_limits(entry.detail.get('after'))}"
    plan = entry.plan
    if plan is None or len(_deliveries(entry)) == 1:
        return ""
    done = f"{plan.done:,}" if plan.total in (None, plan.done) else f"{plan.done:,} of {plan.total:,}"
    parts = [f"{plan.action} {done}" + (f" ({plan.state})" if plan.state not in (None, "done") else "")]
    parts += [f"{plan.results[name]:,} {word}" for name, word in _ENDED if plan.results.get(name)]
    return ", ".join(parts)


def _limits(values: object) -> str:
    """Limits that an operator set: `limit 5, rate 90/10s`."""
    if not isinstance(values, dict) or not values:
        return "declared"
    rate = values.get("rate")
    parts = [f"limit {values['limit']}"] if "limit" in values else []
    parts += [f"rate {rate[0]}/{format_duration(timedelta(seconds=rate[1]))}"] if isinstance(rate, list) else []
    return ", ".join(parts)


def _deliveries(entry: AuditEntry) -> list[str]:
    found = entry.detail.get("deliveries") if entry.kind == "plan" and isinstance(entry.detail, dict) else None
    done = entry.plan.done if entry.plan is not None else 0
    return list(found) if isinstance(found, list) and len(found) == done else []
