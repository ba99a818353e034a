"""`holdfast deliveries`: lists, shows and cancels deliveries."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from holdfast.core.errors import Refused
from holdfast.interfaces.cli.bulk import act, read_plan, save_plan
from holdfast.interfaces.cli.columns import delivery_columns
from holdfast.interfaces.cli.delivery_report import print_report
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID, STATUS, filter_options, page_options
from holdfast.interfaces.cli.output import show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.ops.plans import MAX_PLAN
from holdfast.stores.admin.bulk_actions import Action


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
    found = ops.deliveries(delivery_filter(**chosen, message_id=event_id), limit=limit, before=before)
    show_list(settings(), found, delivery_columns(ops.now()), "no matching deliveries")


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one delivery with its runs, errors and audit entries."""
    detail = settings().operations().delivery(id)
    if settings().tabular:
        print_report(detail)
    else:
        show_json(settings(), detail)


@command(cli, name="cancel", acts=True)
@click.argument("ids", type=ID, nargs=-1)
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PLAN),
    default=MAX_PLAN,
    metavar="N",
    help="Maximum number of deliveries, oldest first.  [default: all, up to 100,000]",
)
@click.option("--reason", metavar="TEXT", help="Reason, stored in the audit log.")
@click.option("--dry-run", is_flag=True, help="Show what would be cancelled without changing anything.")
@click.option(
    "--plan",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save the plan to this file. Without a selection, execute the plan in this file.",
)
def cancel(
    ids: tuple[UUID, ...], limit: int, reason: str | None, dry_run: bool, file: Path | None, **chosen: Any
) -> ExitCode:
    """Cancel pending or in-flight deliveries. A running handler can no longer complete its delivery."""
    return act_on(Action.CANCEL, ids, limit, reason, dry_run, file, chosen)


def act_on(
    action: Action,
    ids: tuple[UUID, ...],
    limit: int,
    reason: str | None,
    dry_run: bool,
    file: Path | None,
    chosen: dict[str, Any],
) -> ExitCode:
    """Cancels or discards deliveries by ids, by filter, or by a saved plan. Asks for confirmation."""
    filters = any(value not in (None, ()) for value in chosen.values())
    if ids and filters:
        raise click.UsageError("ids cannot be combined with filters")
    if not ids and not filters and file is None:
        raise click.UsageError(f"nothing to {action} is selected; pass ids, or a filter such as --consumer NAME")
    ops = settings().operations()
    if not ids and not filters and file is not None:
        plan = ops.load_plan(read_plan(file))
        if plan.action is not action:
            raise Refused(action.value, f"plan {file}", f"a {plan.action} plan")
    else:
        make_plan = ops.plan_cancel if action is Action.CANCEL else ops.plan_discard
        plan = make_plan(delivery_filter(**chosen, ids=ids or None), limit=max(limit, len(ids)))
        if file is not None:
            save_plan(plan, file)
    return act(settings(), plan, reason=reason, dry_run=dry_run, file=file)
