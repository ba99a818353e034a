"""`holdfast groups`: groups and chains of jobs, and their cancellation."""

from datetime import datetime
from uuid import UUID

import click

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.filters import ID
from holdfast.interfaces.cli.output import console, note, print_table, show_json, show_value, status_style
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column, time_column
from holdfast.interfaces.presentation.actions import JOB_GROUPS
from holdfast.interfaces.presentation.formatting import moment, one_line, percent, printable
from holdfast.ops.resources.job_groups import MOST_GROUPS, GroupDetail
from holdfast.stores.groups.query import FailedMember, GroupProgress, MemberProgress, StageCounts


@group("groups")
def cli() -> None:
    """List groups and chains of jobs, show one, and cancel one."""


@command(cli, name="list")
@click.option(
    "--limit", type=click.IntRange(1, MOST_GROUPS), default=20, show_default=True, help="Maximum number of groups."
)
@click.option("--before", type=ID, metavar="ID", help="Only groups older than this one.")
def list_(limit: int, before: UUID | None) -> None:
    """List groups with their progress, newest first."""
    ops = settings().operations()
    found = ops.job_groups(limit=limit, before=before)
    if not settings().tabular:
        show_json(settings(), found.items)
        return
    if found.items:
        print_table(found.items, _columns(ops.now()))
    else:
        note("no groups; an application enqueues one with hf.group([...]).enqueue()")
    if found.next is not None:
        note(f"older groups: add --before {found.next}")


def _columns(now: datetime) -> list[Column[GroupProgress]]:
    return [
        Column("ID", lambda one: one.id),
        Column("STATE", lambda one: one.state.value, style=lambda one: status_style(one.state.value)),
        count_column("JOBS", lambda one: one.total),
        count_column("DONE", lambda one: one.done),
        count_column("FAILED", lambda one: one.failed, "red"),
        count_column("CANCELLED", lambda one: one.cancelled),
        count_column("LEFT", lambda one: one.left),
        time_column("CREATED", lambda one: one.created_at, now),
        Column("GROUP", lambda one: one.label, loose=True),
    ]


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one group with its stages and dead letters."""
    show_value(settings(), settings().operations().job_group(id), _print)


add_actions(cli, JOB_GROUPS)


def _print(detail: GroupDetail) -> None:
    one, out = detail.progress, console()
    out.print(f"{one.state.value.upper()}  {one.id}", style=f"bold {status_style(one.state.value)}")
    out.print()
    facts = {
        "group": one.label,
        "key": one.key,
        "created": moment(one.created_at, detail.now),
        "cancelled": moment(one.cancelled_at, detail.now),
        "jobs": f"{one.total:,}: {one.done:,} done, {one.failed:,} failed, {one.cancelled:,} cancelled, {one.left:,} left",
    }
    for name, value in facts.items():
        if value:
            out.print(f"  {name:<11}{printable(str(value))}", soft_wrap=True)
    out.print()
    print_table(one.stages, _stage_columns())
    if detail.running_jobs:
        out.print()
        out.print("Running", style="bold")
        print_table(detail.running_jobs, _running_columns())
    if detail.dead_letters:
        out.print()
        out.print("Dead letters", style="bold")
        print_table(detail.dead_letters, _dead_columns())
        note(f"replay one with: holdfast replay --id {detail.dead_letters[0].delivery_id}")


def _stage_columns() -> list[Column[StageCounts]]:
    return [
        Column("STAGE", lambda one: one.stage, right=True),
        Column("JOB", lambda one: one.job),
        count_column("JOBS", lambda one: one.total),
        count_column("DONE", lambda one: one.done),
        count_column("FAILED", lambda one: one.failed, "red"),
        count_column("CANCELLED", lambda one: one.cancelled),
        count_column("RUNNING", lambda one: one.running),
        count_column("PENDING", lambda one: one.pending),
    ]


def _running_columns() -> list[Column[MemberProgress]]:
    return [
        Column("DELIVERY", lambda one: one.delivery_id),
        Column("STAGE", lambda one: one.stage, right=True),
        Column("POSITION", lambda one: one.position, right=True),
        Column("JOB", lambda one: one.job),
        Column("PROGRESS", lambda one: percent(one.fraction), right=True),
        Column("NOTE", lambda one: one_line(one.note or ""), loose=True),
    ]


def _dead_columns() -> list[Column[FailedMember]]:
    return [
        Column("DELIVERY", lambda one: one.delivery_id),
        Column("STAGE", lambda one: one.stage, right=True),
        Column("POSITION", lambda one: one.position, right=True),
        Column("JOB", lambda one: one.job),
        Column("ERROR", lambda one: one_line(f"{one.error_type or ''}: {one.error or ''}"), loose=True),
    ]
