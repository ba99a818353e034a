"""`holdfast queues`: what they hold, and pausing them."""

import click

from holdfast.interfaces.cli.formatting import ago, rough
from holdfast.interfaces.cli.output import note, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.ops.queues import Queue

REASON = click.option("--reason", metavar="TEXT", help="Why, for the audit.")


@group("queues")
def cli() -> None:
    """Look at queues, pause and resume them."""


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
    show_list(settings(), found, columns, "no queue yet: one appears with the first consumer or job")


@command(cli, name="pause", acts=True)
@click.argument("name")
@REASON
@click.option("--force", is_flag=True, help="Pause it although nothing has named it yet.")
def pause(name: str, reason: str | None, force: bool) -> None:
    """Let no worker take from a queue until it is resumed; what runs is finished."""
    settings().operations().pause_queue(name, actor=settings().who(), reason=reason, force=force)
    note(f"queue {name} is paused; `holdfast queues resume {name}` lets it go on")


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Let workers take from a queue again."""
    resumed = settings().operations().resume_queue(name, actor=settings().who(), reason=reason)
    note(f"queue {name} goes on" if resumed else f"queue {name} was not paused")
