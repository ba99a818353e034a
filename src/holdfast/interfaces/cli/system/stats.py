"""`holdfast stats`: counts of pending, running and failed deliveries."""

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import console, note, show_value
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.cli.table import Column, lines_of
from holdfast.interfaces.presentation.formatting import ago, clock, many, one_line, rough
from holdfast.ops.queries.stats import Condition, Load, Stats, read_conditions
from holdfast.ops.resources.relays import RelayState
from holdfast.stores.messages.intake import IntakeReport

if TYPE_CHECKING:
    from rich.console import Group

    from holdfast.ops.service import SyncOperations


@command(name="stats")
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option("--every", type=DURATION, default="2s", show_default=True, help="Refresh interval of --watch.")
@click.option("--exact", is_flag=True, help="Count exactly. The time grows with the number of deliveries.")
@click.option("--fail-if", metavar="CONDITIONS", help="Exit with 1 if a condition holds, such as failed>10,oldest>5m.")
def cli(watch: bool, every: timedelta, exact: bool, fail_if: str | None) -> ExitCode:
    """Count deliveries per queue and consumer.

    LAG is how long the oldest due delivery, or the oldest event to relay, has been waiting. Counts are exact up to a total
    of 500,000. Above that, a large count is a lower bound, shown as 200,000+. --fail-if accepts failed, pending, in_flight,
    discarded, suspects, workers and oldest with > >= < <= =. It counts exactly where a lower bound cannot decide.
    """
    conditions = [] if fail_if is None else read_conditions(fail_if)
    ops = settings().operations()
    if not watch:
        stats = _read_stats(ops, conditions, exact)
        _show(stats)
        return _check(stats, conditions)
    live = settings().tabular and sys.stdout.isatty()
    with console().screen() if live else _NoScreen() as screen:
        while True:
            stats = _read_stats(ops, conditions, exact)
            if live:
                screen.update(render_stats(stats))
            else:
                _show(stats)
                sys.stdout.flush()
            if any(condition.holds(stats) for condition in conditions):
                break
            time.sleep(max(0.1, every.total_seconds()))
    return _check(stats, conditions)


def _read_stats(ops: "SyncOperations", conditions: list[Condition], exact: bool) -> Stats:
    stats = ops.stats(exact=exact)
    if all(condition.settled(stats) for condition in conditions):
        return stats
    return ops.stats(exact=True)


class _NoScreen:
    """Replaces the full screen when output is not a terminal: updates are printed one after another."""

    def __enter__(self) -> "_NoScreen":
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, _: object) -> None: ...


def _check(stats: Stats, conditions: list[Condition]) -> ExitCode:
    broken = [condition for condition in conditions if condition.holds(stats)]
    for condition in broken:
        note(f"check failed: {condition.describe(stats)}")
    return ExitCode.PARTIAL if broken else ExitCode.DONE


def _show(stats: Stats) -> None:
    show_value(settings(), stats, lambda stats: console().print(render_stats(stats)))


def render_stats(stats: Stats) -> "Group":
    """The tables of consumers, relays and sources, and the totals."""
    from rich.console import Group
    from rich.text import Text

    columns: list[Column[Load]] = [
        Column("QUEUE", lambda one: one.queue),
        Column("CONSUMER", lambda one: one.consumer),
        Column("PENDING", lambda one: f"{one.pending:,}", right=True),
        Column("LAG", lambda one: rough(one.lag) if one.lag >= timedelta(seconds=1) else "", right=True),
        Column("IN FLIGHT", lambda one: f"{one.in_flight:,}", right=True),
        Column("FAILED", lambda one: f"{one.failed:,}", right=True, style=lambda one: "red" if one.failed else ""),
        Column("DISCARDED", lambda one: f"{one.discarded:,}", right=True, style=lambda one: "dim"),
        Column("", lambda one: _remark(stats, one), style=lambda one: "yellow"),
    ]
    counts = (
        f"pending {stats.pending:,}  in flight {stats.in_flight:,}  failed {stats.failed:,}  "
        f"discarded {stats.discarded:,}  oldest {rough(stats.oldest)}  {many(stats.workers, 'worker')}"
    )
    now = clock(stats.now)
    total = f"{counts}  {now}" if len(counts) + 2 + len(now) <= console().width else f"{counts}\n{now}"
    rows = lines_of(stats.loads, columns, console().width) if stats.loads else []
    if stats.relays:
        rows += [*([Text("")] if rows else []), *lines_of(stats.relays, _relay_columns(stats), console().width)]
    if stats.sources:
        rows += [Text(""), *lines_of(stats.sources, _source_columns(stats), console().width)]
    for line in rows:
        line.end = "\n"
    return Group(*rows, Text(("\n" if rows else "") + total, style="bold"))


def _relay_columns(stats: Stats) -> "list[Column[RelayState]]":
    def remark(one: RelayState) -> str:
        if one.rewound:
            return "stopped: see doctor"
        if one.name in stats.paused_consumers:
            return "paused"
        return "" if one.owner else "not running"

    return [
        Column("RELAY", lambda one: one.name),
        Column("TO", lambda one: one.to),
        Column("WAITING", lambda one: f"{one.waiting:,}{'+' if one.or_more else ''}", right=True),
        Column("LAG", lambda one: rough(one.lag) if one.lag >= timedelta(seconds=1) else "", right=True),
        Column("RELAYED", lambda one: f"{one.relayed:,}", right=True),
        Column("", remark, style=lambda one: "yellow"),
    ]


def _source_columns(stats: Stats) -> "list[Column[IntakeReport]]":
    def count(number: int | None) -> str:
        return "?" if number is None else f"{number:,}"

    return [
        Column("SOURCE", lambda one: one.source),
        Column("CONSUMER", lambda one: one.consumer),
        Column("WAITING", lambda one: count(one.waiting), right=True),
        Column("UNACKNOWLEDGED", lambda one: count(one.unacknowledged), right=True),
        Column("REPORTED", lambda one: ago(one.reported_at, stats.now)),
        Column("", lambda one: one_line(one.problem or ""), style=lambda one: "yellow", loose=True),
    ]


def _remark(stats: Stats, load: Load) -> str:
    remarks = []
    if load.queue in stats.paused_queues:
        remarks.append("queue paused")
    if load.consumer in stats.paused_consumers:
        remarks.append("paused")
    if load.consumer in stats.blocked_consumers:
        remarks.append("blocked")
    if load.suspects:
        remarks.append(many(load.suspects, "suspect"))
    return ", ".join(remarks)
