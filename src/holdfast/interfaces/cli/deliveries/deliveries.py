"""`holdfast deliveries`: lists, shows and cancels deliveries."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from holdfast.interfaces.cli.actions import REASON
from holdfast.interfaces.cli.deliveries.bulk import (
    DRY_RUN,
    LIMIT,
    PLAN_FILE,
    act,
    read_plan,
    saver,
    write_plan,
)
from holdfast.interfaces.cli.deliveries.columns import delivery_columns
from holdfast.interfaces.cli.deliveries.delivery_report import print_report
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID, STATUS, filter_options, page_options
from holdfast.interfaces.cli.output import show_list, show_value
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.stores.admin.plan import Action


@group("deliveries")
def cli() -> None:
    """List, show and cancel deliveries. A delivery is one message for one consumer."""


@command(cli, name="list")
@STATUS
@filter_options
@click.option("--event-id", type=ID, metavar="ID", help="Only this message.")
@page_options
def list_(limit: int, before: UUID | None, event_id: UUID | None, **chosen: Any) -> None:
    """List deliveries, newest first."""
    ops = settings().operations()
    wanted = delivery_filter(**chosen, message_id=event_id)
    found = ops.deliveries(wanted, limit=limit, before=before)
    if not found:
        ops.check_filter(wanted)
        if event_id is not None:
            ops.message(event_id)  # raises NotFound if the message does not exist
    show_list(settings(), found, delivery_columns(ops.now()), "no matching deliveries")


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one delivery with its runs, errors and audit entries."""
    show_value(settings(), settings().operations().delivery(id), print_report)


def add_bulk_action(parent: click.Group, action: Action, help: str) -> None:
    """Adds the command that cancels or discards deliveries by ids, by filter, or by a saved plan, after confirmation."""

    @command(parent, name=action.value, acts=True, help=help)
    @click.argument("ids", type=ID, nargs=-1)
    @filter_options
    @LIMIT
    @REASON
    @DRY_RUN
    @PLAN_FILE
    def run(
        ids: tuple[UUID, ...], limit: int, reason: str | None, dry_run: bool, file: Path | None, **chosen: Any
    ) -> ExitCode:
        filters = any(value not in (None, ()) for value in chosen.values())
        if ids and filters:
            raise click.UsageError("ids cannot be combined with filters; pass one of the two")
        if not ids and not filters and file is None:
            raise click.UsageError(f"nothing to {action} is selected; pass ids, or a filter such as --consumer NAME")
        ops = settings().operations()
        if not ids and not filters and file is not None:
            plan = read_plan(settings(), file, action)
        else:
            selected = delivery_filter(**chosen, ids=ids or None)
            plan = ops.create_plan(
                action, selected, limit=max(limit, len(ids)), actor=saver(settings(), dry_run), reason=reason
            )
            if file is not None:
                write_plan(settings(), plan, file)
        return act(settings(), plan, reason=reason, dry_run=dry_run, file=file)


add_bulk_action(
    cli,
    Action.CANCEL,
    "Cancel pending or in-flight deliveries. A running handler can no longer complete its delivery.",
)
