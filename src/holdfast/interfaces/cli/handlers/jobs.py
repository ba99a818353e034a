"""`holdfast jobs`: enqueued jobs."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from holdfast.interfaces.cli.actions import REASON
from holdfast.interfaces.cli.deliveries.bulk import DRY_RUN, act, saver
from holdfast.interfaces.cli.deliveries.columns import delivery_columns
from holdfast.interfaces.cli.deliveries.delivery_report import print_report
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID, STATUS, page_options
from holdfast.interfaces.cli.output import show_list, show_value
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.ops.queries.deliveries import JOBS
from holdfast.stores.queries.query import Filter


@group("jobs")
def cli() -> None:
    """List, show and cancel jobs. ID is the delivery id or the id that enqueue returned."""


@command(cli, name="list")
@STATUS
@click.option("--name", metavar="NAME", help="Only this job.")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@page_options
def list_(limit: int, before: UUID | None, name: str | None, **chosen: Any) -> None:
    """List jobs, newest first."""
    ops = settings().operations()
    filter = delivery_filter(**chosen, type=JOBS, consumer=() if name is None else (name,))
    found = ops.deliveries(filter, limit=limit, before=before)
    if not found:
        ops.check_filter(replace(filter, type=None))
    show_list(settings(), found, delivery_columns(ops.now()), "no matching jobs")


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one job with its runs, errors and audit entries."""
    show_value(settings(), settings().operations().job(id), print_report)


@command(cli, name="cancel", acts=True)
@click.argument("ids", type=ID, nargs=-1, required=True)
@REASON
@DRY_RUN
def cancel(ids: tuple[UUID, ...], reason: str | None, dry_run: bool) -> ExitCode:
    """Cancel pending or in-flight jobs. A running handler can no longer complete its job."""
    ops = settings().operations()
    found = tuple(ops.job(id).listed.delivery.id for id in ids)
    plan = ops.plan_cancel(Filter(ids=found), limit=len(found), actor=saver(settings(), dry_run), reason=reason)
    return act(settings(), plan, reason=reason, dry_run=dry_run)
