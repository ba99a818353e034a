"""`holdfast cron`: lists, pauses, resumes and runs schedules."""

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.output import show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.actions import SCHEDULES
from holdfast.interfaces.presentation.formatting import ago, moment
from holdfast.ops.resources.schedules import ScheduleState


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


add_actions(cli, SCHEDULES)
