"""`holdfast top`: a screen with what waits, runs and fails, the rate of the last minute, and the workers."""

import contextlib
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import console, show_json, status_style
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.cli.system.stats import render_stats
from holdfast.interfaces.cli.table import Column, lines_of
from holdfast.interfaces.presentation.formatting import many, rough
from holdfast.ops.queries.stats import Stats
from holdfast.ops.queries.throughput import TrendSlot
from holdfast.stores.deliveries.worker import WorkerRecord

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from holdfast.ops.service import SyncOperations

_LEAST = 0.1
_WORKERS = 10


@dataclass(frozen=True, slots=True)
class Overview:
    """What `holdfast top` shows. `last_minute` is the last complete minute."""

    stats: Stats
    last_minute: TrendSlot
    workers: tuple[WorkerRecord, ...]


@command(name="top")
@click.option("--every", type=DURATION, default="2s", show_default=True, help="Refresh interval.")
@click.option("--once", is_flag=True, help="Print one snapshot and exit. Without a terminal this is the default.")
@click.option("--json", "as_json", is_flag=True, help="Print one snapshot as JSON and exit.")
def cli(every: timedelta, once: bool, as_json: bool) -> ExitCode:
    """Watch queues, consumers, rates and workers on one screen, until interrupted.

    LAG is how long the oldest due delivery has waited. Rates are those of the last complete minute; ~ marks an estimate.

    \b
      holdfast top
      holdfast top --every 10s
      holdfast top --json | jq .stats.pending
    """
    ops = settings().operations()
    if as_json or not settings().tabular:
        show_json(settings(), _read(ops))
        return ExitCode.DONE
    if once or not sys.stdout.isatty():
        console().print(_render(_read(ops)))
        return ExitCode.DONE
    # Ctrl-C is the usual end.
    with contextlib.suppress(KeyboardInterrupt), console().screen() as screen:
        while True:
            screen.update(_render(_read(ops)))
            time.sleep(max(_LEAST, every.total_seconds()))
    return ExitCode.DONE


def _read(ops: "SyncOperations") -> Overview:
    dead = ops.dead_letter_counts()
    return Overview(ops.stats(dead=dead), ops.trend(dead=dead)[-2], tuple(ops.workers()))


def _render(shown: Overview) -> "Group":
    from rich.console import Group
    from rich.text import Text

    minute, now = shown.last_minute, shown.stats.now
    about = "~" if minute.estimated else ""
    rate = f"last minute: {about}{minute.accepted:,} accepted  {about}{minute.delivered:,} of them delivered  {minute.died:,} dead letters"
    columns: list[Column[WorkerRecord]] = [
        Column("WORKER", lambda one: one.id),
        Column("STATE", _worker_state, style=lambda one: status_style(_worker_state(one))),
        Column("IN FLIGHT", lambda one: f"{one.in_flight:,}", right=True),
        Column("UP", lambda one: rough(now - one.started_at), right=True),
        Column("GENERATION", lambda one: one.generation, right=True),
        Column("QUEUES", lambda one: ", ".join(one.queues) or "all", loose=True),
    ]
    # The newest workers; those that ended long ago are of no interest while others run.
    newest = sorted(shown.workers, key=lambda one: (one.alive, one.started_at), reverse=True)[:_WORKERS]
    lines = lines_of(newest, columns, console().width) if newest else [Text("no workers", style="yellow")]
    for line in lines:
        line.end = "\n"
    left = len(shown.workers) - len(newest)
    parts: list[RenderableType] = [render_stats(shown.stats), Text(rate), Text(""), *lines]
    return Group(*parts, *([Text(f"and {many(left, 'more worker')}")] if left else []))


def _worker_state(one: WorkerRecord) -> str:
    return "alive" if one.alive else "gone"
