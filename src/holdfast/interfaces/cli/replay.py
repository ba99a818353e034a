"""`holdfast replay`: replays dead letters by id, by message or by filter."""

from pathlib import Path
from typing import Any
from uuid import UUID

import click

from holdfast.core.errors import Refused
from holdfast.interfaces.cli.bulk import act, read_plan, save_plan
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID, NAMES, STATUS, filter_options
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.ops.plans import MAX_PLAN
from holdfast.stores.admin.bulk_actions import Action


@command(name="replay", acts=True)
@click.option("--id", "ids", type=ID, multiple=True, metavar="ID", help="Replay this delivery. Repeatable.")
@click.option("--event-id", type=ID, metavar="ID", help="Replay the deliveries of this message.")
@click.option("--consumers", type=NAMES, default=(), metavar="A,B", help="Only these consumers.")
@STATUS
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PLAN),
    default=MAX_PLAN,
    metavar="N",
    help="Maximum number of deliveries, oldest first.  [default: all, up to 100,000]",
)
@click.option(
    "--generation",
    type=click.IntRange(0),
    metavar="N",
    help="Generation to assign.  [default: highest live generation]",
)
@click.option("--rerun", is_flag=True, help="Also run deliveries that are already delivered.")
@click.option("--reason", metavar="TEXT", help="Reason, stored in the audit log.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed without changing anything.")
@click.option(
    "--plan",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save the plan to this file. Without a selection, execute the plan in this file.",
)
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

    A bulk replay is a frozen plan. It acts on the previewed deliveries, ignores newer ones, and can be resumed.

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
    if file is not None and not (named or filters or consumers):
        ops = settings().operations()
        plan = ops.load_plan(read_plan(file))
        if plan.action is not Action.REPLAY:
            raise Refused("replay", f"plan {file}", f"a {plan.action} plan")
        return act(settings(), plan, reason=reason, generation=generation, dry_run=dry_run, file=file)
    if not (named or filters or consumers):
        raise click.UsageError("nothing is selected; pass --id, --event-id, or a filter such as --status failed")
    if ids and (event_id or filters or consumers):
        raise click.UsageError("--id cannot be combined with --event-id or filters")
    chosen["consumer"] = (*chosen["consumer"], *consumers)
    wanted = delivery_filter(**chosen, ids=ids or None, message_id=event_id)
    ops = settings().operations()
    plan = ops.plan_replay(wanted, limit=max(limit, len(ids)), rerun=rerun)
    if event_id is not None and not plan.items and not plan.skipped:
        ops.message(event_id)  # raises NotFound if the message does not exist
        raise Refused("replay", f"message {event_id}", "without a delivery that matches the given consumers or filters")
    if file is not None:
        save_plan(plan, file)
    return act(settings(), plan, reason=reason, generation=generation, dry_run=dry_run, ask=not named, file=file)
