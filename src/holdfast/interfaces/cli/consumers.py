"""`holdfast consumers`: who handles what; pausing, resuming, retiring and catching up."""

from datetime import datetime

import click

from holdfast.interfaces.cli.filters import MOMENT
from holdfast.interfaces.cli.formatting import ago, many_deliveries, rough
from holdfast.interfaces.cli.output import ProgressLine, note, show_json, show_list
from holdfast.interfaces.cli.queues import REASON
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.ops.consumers import ConsumerState


@group("consumers")
def cli() -> None:
    """Look at consumers, pause and resume them."""


@command(cli, name="list")
def list_() -> None:
    """List consumers and jobs."""
    ops = settings().operations()
    found, now = ops.consumers(), ops.now()

    def state(one: ConsumerState) -> str:
        if one.paused_at is not None:
            return f"paused {ago(one.paused_at, now)}"
        if one.blocked_until is not None:
            return f"blocked: {one.blocked_resource} ({ago(one.blocked_until, now)})"
        return "" if one.workers else "unserved"

    columns: list[Column[ConsumerState]] = [
        Column("CONSUMER", lambda one: one.name),
        Column("GETS", _gets, loose=True),
        Column("QUEUE", lambda one: one.queue),
        Column("STATE", state, style=lambda one: "yellow"),
        Column("PENDING", lambda one: f"{one.pending:,}", right=True),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        Column("IN FLIGHT", lambda one: f"{one.in_flight:,}", right=True),
        Column("FAILED", lambda one: f"{one.failed:,}", right=True, style=lambda one: "red" if one.failed else ""),
        Column("WORKERS", lambda one: one.workers, right=True),
        Column("GENERATION", lambda one: "" if one.live_generation is None else one.live_generation, right=True),
    ]
    show_list(settings(), found, columns, "no consumer has registered yet: run a worker, or publish from the app")


def _gets(one: ConsumerState) -> str:
    patterns = ", ".join(one.patterns) or "job"
    return patterns if one.relays_to is None else f"{patterns} → {one.relays_to}"


@command(cli, name="pause", acts=True)
@click.argument("name")
@REASON
def pause(name: str, reason: str | None) -> None:
    """Let no worker run a consumer until it is resumed; what runs is finished."""
    settings().operations().pause_consumer(name, actor=settings().who(), reason=reason)
    note(f"consumer {name} is paused; `holdfast consumers resume {name}` lets it go on")


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Let workers run a consumer again, be it paused or blocked."""
    ops = settings().operations()
    resumed = ops.resume_consumer(name, actor=settings().who(), reason=reason)
    unblocked = ops.unblock_consumer(name, actor=settings().who(), reason=reason)
    note(f"consumer {name} goes on" if resumed or unblocked else f"consumer {name} was neither paused nor blocked")


@command(cli, name="retire", acts=True)
@click.argument("name")
@click.option("--pattern", metavar="PATTERN", help="End only this subscription.  [default: all of them]")
@REASON
def retire(name: str, pattern: str | None, reason: str | None) -> None:
    """End a consumer's subscriptions: it gets nothing new, what it has is still run."""
    ops = settings().operations()
    settings().confirm("end", f"the subscription of {name} to {pattern}" if pattern else f"all subscriptions of {name}")
    ended = ops.retire_consumer(name, actor=settings().who(), reason=reason, pattern=pattern)
    if settings().tabular:
        note(f"consumer {name} gets nothing new of {', '.join(ended)}")
    else:
        show_json(settings(), {"consumer": name, "ended": ended})


@command(cli, name="catch-up", acts=True)
@click.argument("name", required=False)
@click.option("--from", "since", type=MOMENT, metavar="TIME", help="Only events since: 2h, 3d, 2026-11-15T09:00Z.")
def catch_up(name: str | None, since: datetime | None) -> None:
    """Give every subscription the messages it missed, now. Workers do so by themselves.

    With NAME that consumer gets every stored event it has no delivery of, also from before it was there; not what was
    done and pruned.
    """
    if since is not None and name is None:
        raise click.UsageError("--from needs the NAME of a consumer")
    with ProgressLine("added") as progress:
        added = settings().operations().catch_up(name, since=since, actor=settings().who(), progress=progress)
    if settings().tabular:
        note(f"added {many_deliveries(added)}" + (f" of {name}" if name else ""))
    else:
        show_json(settings(), {"added": added})
