"""`holdfast schedules`: lists declared and run-time schedules, and changes them."""

import click

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.filters import PAGE
from holdfast.interfaces.cli.handlers.resources import paused_column
from holdfast.interfaces.cli.output import note, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.actions import SCHEDULES
from holdfast.ops.resources.schedules import ScheduleState


@group("schedules")
def cli() -> None:
    """List, add, change, pause, resume, remove and run schedules."""


@command(cli, name="list")
@click.option("--job", metavar="NAME", help="Only schedules of this job.")
@click.option("--prefix", metavar="TEXT", help="Only names that start with this text, such as report:.")
@click.option("--after", metavar="NAME", help="Only names after this one: the next page.")
@click.option("--limit", type=PAGE, default=50, show_default=True, help="Maximum number of rows.")
def list_(job: str | None, prefix: str | None, after: str | None, limit: int) -> None:
    """List schedules by name. A schedule is overdue if it does not fire because no running worker has its job."""
    ops = settings().operations()
    found, now = ops.schedules(job=job, prefix=prefix, after=after, limit=limit), ops.now()
    columns: list[Column[ScheduleState]] = [
        Column("NAME", lambda one: one.name),
        Column("JOB", lambda one: "" if one.is_declared else one.job),
        Column("EXPRESSION", lambda one: one.expression),
        Column("TIME ZONE", lambda one: one.tz),
        time_column("NEXT", lambda one: one.next_at, now),
        time_column("FIRED UNTIL", lambda one: one.last_at, now),
        Column("MISSED", lambda one: one.missed),
        Column("OVERDUE", lambda one: "overdue" if one.is_overdue else "", style=lambda _: "red"),
        paused_column(lambda one: one.paused_at, now),
    ]
    show_list(settings(), found, columns, "no schedules; declare one with @hf.cron, or put one with hf.schedules")
    if len(found) == limit and settings().tabular:
        note(f"there may be more; continue with --after {found[-1].name}")


@command(cli, name="show")
@click.argument("name")
def show(name: str) -> None:
    """Show one schedule with the arguments of its job, as JSON."""
    show_json(settings(), settings().operations().schedule(name))


add_actions(cli, SCHEDULES)
