"""`holdfast workers`: lists workers."""

from holdfast.interfaces.cli.output import show_list, status_style
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.formatting import ago, moment
from holdfast.stores.deliveries.worker import WorkerRecord


@group("workers")
def cli() -> None:
    """List workers."""


@command(cli, name="list")
def list_() -> None:
    """List workers. `gone` means that the lease expired without a shutdown."""
    ops = settings().operations()
    found, now = ops.workers(), ops.now()

    def state(one: WorkerRecord) -> str:
        return "alive" if one.alive else "gone"

    columns: list[Column[WorkerRecord]] = [
        Column("WORKER", lambda one: one.id),
        Column("STATE", state, style=lambda one: status_style(state(one))),
        Column("GENERATION", lambda one: one.generation, right=True),
        Column("IN FLIGHT", lambda one: f"{one.in_flight:,}", right=True),
        Column("STARTED", lambda one: ago(one.started_at, now), longer=lambda one: moment(one.started_at, now)),
        Column("LEASE", lambda one: ago(one.alive_until, now)),
        Column("QUEUES", lambda one: ", ".join(one.queues) or "all", loose=True),
        Column("CONSUMERS", lambda one: ", ".join(one.consumers), loose=True),
    ]
    show_list(settings(), found, columns, "no workers; start one with `holdfast worker --app module:attribute`")
