"""`holdfast consumers`: lists, pauses, resumes and retires consumers, and backfills missed messages."""

from datetime import datetime

import click

from holdfast.interfaces.cli.actions import REASON, add_actions
from holdfast.interfaces.cli.filters import TIME
from holdfast.interfaces.cli.output import ProgressLine, note, show_json
from holdfast.interfaces.cli.resources import add_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column
from holdfast.interfaces.presentation.actions import CONSUMERS
from holdfast.interfaces.presentation.formatting import ago, many_deliveries, rough
from holdfast.ops.resources.consumers import ConsumerState


@group("consumers")
def cli() -> None:
    """List, pause, resume, retire and catch up consumers."""


@add_list(cli, lambda ops: ops.consumers(), "no consumers; they register when a worker starts or the app publishes")
def _columns(now: datetime) -> list[Column[ConsumerState]]:
    """List consumers and jobs."""

    def state(one: ConsumerState) -> str:
        if one.paused_at is not None:
            return f"paused {ago(one.paused_at, now)}"
        if one.blocked_until is not None:
            return f"blocked: {one.blocked_resource} ({ago(one.blocked_until, now)})"
        return "" if one.workers else "unserved"

    return [
        Column("CONSUMER", lambda one: one.name),
        Column("RECEIVES", _gets, loose=True),
        Column("QUEUE", lambda one: one.queue),
        Column("STATE", state, style=lambda one: "yellow"),
        count_column("PENDING", lambda one: one.pending),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        count_column("IN FLIGHT", lambda one: one.in_flight),
        count_column("FAILED", lambda one: one.failed, "red"),
        Column("WORKERS", lambda one: one.workers, right=True),
        Column("GENERATION", lambda one: "" if one.live_generation is None else one.live_generation, right=True),
    ]


def _gets(one: ConsumerState) -> str:
    patterns = ", ".join(one.patterns) or "job"
    return patterns if one.relays_to is None else f"{patterns} → {one.relays_to}"


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Resume a paused or blocked consumer."""
    ops = settings().operations()
    resumed = ops.resume_consumer(name, actor=settings().who(), reason=reason)
    unblocked = ops.unblock_consumer(name, actor=settings().who(), reason=reason)
    note(f"consumer {name} resumed" if resumed or unblocked else f"consumer {name} was neither paused nor blocked")


@command(cli, name="catch-up", acts=True)
@click.argument("name", required=False)
@click.option(
    "--from", "since", type=TIME, metavar="TIME", help="Only events published since: 2h, 3d, 2026-11-15T09:00Z."
)
def catch_up(name: str | None, since: datetime | None) -> None:
    """Create the deliveries that subscriptions missed. Workers also do this automatically.

    With NAME, that consumer gets a delivery for every stored event that it has none for, including events published before
    it subscribed. Events whose delivery was completed and pruned are left out.
    """
    if since is not None and name is None:
        raise click.UsageError("--from requires the NAME of a consumer")
    with ProgressLine("added") as progress:
        added = settings().operations().catch_up(name, since=since, actor=settings().who(), progress=progress)
    if settings().tabular:
        note(f"added {many_deliveries(added)}" + (f" of {name}" if name else ""))
    else:
        show_json(settings(), {"added": added})


add_actions(cli, CONSUMERS)
