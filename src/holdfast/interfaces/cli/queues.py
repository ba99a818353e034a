"""`holdfast queues`: lists, pauses and resumes queues."""

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.output import show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.actions import QUEUES
from holdfast.interfaces.presentation.formatting import ago, rough
from holdfast.ops.resources.queues import QueueState


@group("queues")
def cli() -> None:
    """List, pause and resume queues."""


@command(cli, name="list")
def list_() -> None:
    """List queues."""
    ops = settings().operations()
    found, now = ops.queues(), ops.now()
    columns: list[Column[QueueState]] = [
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


add_actions(cli, QUEUES)
