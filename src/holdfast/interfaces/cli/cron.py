"""`holdfast cron`: lists, pauses, resumes and runs schedules."""

import click

from holdfast.interfaces.cli.output import note, show_list
from holdfast.interfaces.cli.publish import print_published
from holdfast.interfaces.cli.queues import REASON
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.formatting import ago, moment
from holdfast.ops.schedules import ScheduleState


@group("cron")
def cli() -> None:
    """List, pause, resume and run schedules."""


@command(cli, name="list")
def list_() -> None:
    """List schedules."""
    ops = settings().operations()
    found, now = ops.schedules(), ops.now()
    columns: list[Column[ScheduleState]] = [
        Column("NAME", lambda one: one.name),
        Column("EXPRESSION", lambda one: one.expression),
        Column("TIME ZONE", lambda one: one.tz),
        Column(
            "NEXT",
            lambda one: "" if one.next_at is None else ago(one.next_at, now),
            longer=lambda one: moment(one.next_at, now),
        ),
        Column("FIRED UNTIL", lambda one: ago(one.last_at, now), longer=lambda one: moment(one.last_at, now)),
        Column("MISSED", lambda one: one.missed),
        Column(
            "STATE",
            lambda one: "" if one.paused_at is None else f"paused {ago(one.paused_at, now)}",
            style=lambda one: "yellow",
        ),
    ]
    show_list(settings(), found, columns, "no schedules; they register when a worker with @hf.cron starts")


@command(cli, name="run", acts=True)
@click.argument("name")
@REASON
def run(name: str, reason: str | None) -> None:
    """Enqueue one run now, in addition to the scheduled ones."""
    published = settings().operations().run_schedule(name, actor=settings().who(), reason=reason)
    print_published(published, "enqueued")


@command(cli, name="pause", acts=True)
@click.argument("name")
@REASON
def pause(name: str, reason: str | None) -> None:
    """Pause a schedule: it enqueues no runs until it is resumed."""
    settings().operations().pause_schedule(name, actor=settings().who(), reason=reason)
    note(f"schedule {name} paused; resume it with `holdfast cron resume {name}`")


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Resume a schedule. Its missed= policy decides about runs missed during the pause."""
    resumed = settings().operations().resume_schedule(name, actor=settings().who(), reason=reason)
    note(f"schedule {name} resumed" if resumed else f"schedule {name} was not paused")
