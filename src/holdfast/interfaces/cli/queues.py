"""`holdfast queues`: lists, pauses and resumes queues."""

import click

from holdfast.interfaces.cli.output import note, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.formatting import ago, rough
from holdfast.ops.queues import Queue

REASON = click.option("--reason", metavar="TEXT", help="Reason, stored in the audit log.")


@group("queues")
def cli() -> None:
    """List, pause and resume queues."""


@command(cli, name="list")
def list_() -> None:
    """List queues."""
    ops = settings().operations()
    found, now = ops.queues(), ops.now()
    columns: list[Column[Queue]] = [
        Column("QUEUE", lambda one: one.name),
        Column(
            "STATE",
            lambda one: "" if one.paused_at is None else f"paused {ago(one.paused_at, now)}",
            style=lambda one: "yellow",
        ),
        Column("PENDING", lambda one: f"{one.pending:,}", right=True),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        Column("IN FLIGHT", lambda one: f"{one.in_flight:,}", right=True),
        Column("FAILED", lambda one: f"{one.failed:,}", right=True, style=lambda one: "red" if one.failed else ""),
        Column("WORKERS", lambda one: one.workers, right=True),
        Column("CONSUMERS", lambda one: ", ".join(one.consumers), loose=True),
    ]
    show_list(settings(), found, columns, "no queues; a queue appears with its first consumer or job")


@command(cli, name="pause", acts=True)
@click.argument("name")
@REASON
@click.option("--force", is_flag=True, help="Pause it even if no consumer or job uses it yet.")
def pause(name: str, reason: str | None, force: bool) -> None:
    """Pause a queue: workers claim nothing from it until it is resumed. Running handlers finish."""
    settings().operations().pause_queue(name, actor=settings().who(), reason=reason, force=force)
    note(f"queue {name} paused; resume it with `holdfast queues resume {name}`")


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Resume a queue."""
    resumed = settings().operations().resume_queue(name, actor=settings().who(), reason=reason)
    note(f"queue {name} resumed" if resumed else f"queue {name} was not paused")
