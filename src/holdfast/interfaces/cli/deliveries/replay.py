"""`holdfast replay`: replays dead letters by id, by message or by filter."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from holdfast.core.errors import Refused
from holdfast.interfaces.cli.actions import REASON
from holdfast.interfaces.cli.deliveries.bulk import (
    DRY_RUN,
    LIMIT,
    PLAN_FILE,
    act,
    exit_code,
    nothing_to_do,
    read_plan,
    saver,
    show_report,
    write_plan,
)
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID, NAMES, STATUS, filter_options
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.stores.admin.plan import Action


@command(name="replay", acts=True)
@click.option("--id", "ids", type=ID, multiple=True, metavar="ID", help="Replay this delivery. Repeatable.")
@click.option("--event-id", type=ID, metavar="ID", help="Replay the deliveries of this message.")
@click.option("--consumers", type=NAMES, default=(), metavar="A,B", help="The same as --consumer for each of them.")
@STATUS
@filter_options
@LIMIT
@click.option(
    "--generation",
    type=click.IntRange(0),
    metavar="N",
    help="Generation to assign.  [default: highest live generation]",
)
@click.option("--rerun", is_flag=True, help="Also run deliveries that are already delivered.")
@REASON
@DRY_RUN
@PLAN_FILE
def cli(
    ids: tuple[UUID, ...],
    event_id: UUID | None,
    consumers: tuple[str, ...],
    limit: int,
    generation: int | None,
    rerun: bool,
    reason: str | None,
    dry_run: bool,
    file: Path | None,
    **chosen: Any,
) -> ExitCode:
    """Replay dead letters. The same deliveries become pending again.

    A bulk replay is stored as a plan. It acts on the previewed deliveries, ignores newer ones, and can be resumed.

    \b
      holdfast replay --id 01a1de9e-3feb-7141-acf8-3a160ca18709
      holdfast replay --event-id 01a1de9e-… --consumers billing,shipping
      holdfast replay --group 9768cf8bff58e58b --limit 10 --reason "a sample first"
      holdfast replay --group 9768cf8bff58e58b --reason "fixed in 42" --generation 42
      holdfast replay --status failed --dry-run --plan friday.json
      holdfast replay --plan friday.json
    """
    filters = any(value not in (None, ()) for value in chosen.values())
    named = bool(ids or event_id)
    ops, who = settings().operations(), settings().who()
    if file is not None and not (named or filters or consumers):
        plan = read_plan(settings(), file, Action.REPLAY)
        return act(settings(), plan, reason=reason, generation=generation, dry_run=dry_run, file=file)
    if not (named or filters or consumers):
        raise click.UsageError("nothing is selected; pass --id, --event-id, or a filter such as --status failed")
    if ids and (event_id or filters or consumers):
        raise click.UsageError("--id cannot be combined with --event-id or filters; pass one of them")
    if ids and not dry_run and file is None:
        report = ops.replay(ids, actor=who, reason=reason, generation=generation, rerun=rerun)
        if not report.done:
            if len(ids) == 1:
                ops.delivery(ids[0])  # raises NotFound with the kind of the item if it is no delivery
            raise nothing_to_do(report.action, report.skipped, len(report.skipped))
        show_report(settings(), report)
        return exit_code(report)
    chosen["consumer"] = (*chosen["consumer"], *consumers)
    selected = delivery_filter(**chosen, ids=ids or None, message_id=event_id)
    plan = ops.plan_replay(
        selected, limit=max(limit, len(ids)), rerun=rerun, actor=saver(settings(), dry_run), reason=reason
    )
    if event_id is not None and not plan.total:
        ops.delete_plan(plan.id)
        ops.message(event_id)  # raises NotFound if the message does not exist
        raise Refused(
            "replay", f"message {event_id}", "stored without a delivery that matches the given consumers or filters"
        )
    if file is not None:
        write_plan(settings(), plan, file)
    return act(settings(), plan, reason=reason, generation=generation, dry_run=dry_run, ask=not named, file=file)
