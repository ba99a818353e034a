"""`holdfast plans`: stored bulk actions, executed by workers, the console or this command."""

import time
from contextlib import suppress
from uuid import UUID

import click

from holdfast.core.errors import StoreError
from holdfast.interfaces.cli.actions import REASON
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import ID
from holdfast.interfaces.cli.output import ProgressLine, note, print_table, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column, time_column
from holdfast.interfaces.presentation.formatting import many_deliveries
from holdfast.ops.service import SyncOperations
from holdfast.stores.admin.plan import Action, PlanItem, PlanState, ReplayResult, StoredPlan

_ID = click.argument("id", type=ID)
_NO_WAIT = click.option("--no-wait", is_flag=True, help="Return immediately. Workers and the console execute the plan.")
_POLL_SECONDS = 0.5
_MAX_SHOWN = 10


@group("plans")
def cli() -> None:
    """List and manage stored bulk actions."""


@command(cli, name="list")
@click.option("--state", type=click.Choice([one.value for one in PlanState]), help="Only this state.")
@click.option("--limit", type=int, default=50, show_default=True, help="Maximum number of plans.")
def list_(state: str | None, limit: int) -> None:
    """List stored plans, newest first."""
    ops = settings().operations()
    _follow(ops)
    found, now = ops.plans(state=None if state is None else PlanState(state), limit=limit), ops.now()
    columns: list[Column[StoredPlan]] = [
        Column("ID", lambda one: one.id),
        Column("ACTION", lambda one: one.action.value),
        Column("STATE", lambda one: one.state.value),
        count_column("DONE", lambda one: one.done),
        count_column("SKIPPED", lambda one: sum(one.skipped.values())),
        count_column("TOTAL", lambda one: one.total),
        Column("DELIVERED", lambda one: _result(one, ReplayResult.DELIVERED), right=True),
        Column("DEAD AGAIN", lambda one: _result(one, ReplayResult.DEAD), right=True),
        Column("BY", lambda one: one.started_by or one.saved_by),
        time_column("SAVED", lambda one: one.saved_at, now),
    ]
    show_list(settings(), found, columns, "no stored plans; `holdfast replay --group GROUP --dry-run` stores one")


@command(cli, name="show")
@_ID
@click.option("--wait", is_flag=True, help="Wait until every replayed delivery has ended.")
def show(id: UUID, wait: bool) -> ExitCode:
    """Show a plan: progress, skipped deliveries with reasons, and results of the replayed deliveries.

    With --wait it returns when every delivery has ended. It exits with 1 if one became a dead letter again.
    """
    ops = settings().operations()
    _follow(ops)
    plan = ops.plan(id)
    if wait:
        with ProgressLine("ended") as progress:
            while (plan := ops.plan(id)).unsettled or plan.state is PlanState.RUNNING:
                progress(sum(plan.results.values()), plan.done)
                ops.follow_plans()
                time.sleep(_POLL_SECONDS)
    _show(plan)
    if settings().tabular and plan.results.get(ReplayResult.DEAD):
        _show_dead(ops, plan)
    return ExitCode.PARTIAL if wait and plan.results.get(ReplayResult.DEAD) else ExitCode.DONE


@command(cli, name="start", acts=True)
@_ID
@click.option("--generation", type=int, help="Generation to assign to every replayed delivery.")
@_NO_WAIT
@REASON
def start(id: UUID, generation: int | None, no_wait: bool, reason: str | None) -> ExitCode:
    """Start a plan and execute it. If this command is interrupted, a worker continues the plan."""
    ops = settings().operations()
    ops.start_plan(id, actor=settings().who(), reason=reason, generation=generation)
    return ExitCode.DONE if no_wait else _execute(ops, id)


@command(cli, name="pause", acts=True)
@_ID
@REASON
def pause(id: UUID, reason: str | None) -> None:
    """Pause a running plan after the current batch."""
    _show(settings().operations().pause_plan(id, actor=settings().who(), reason=reason))


@command(cli, name="resume", acts=True)
@_ID
@_NO_WAIT
@REASON
def resume(id: UUID, no_wait: bool, reason: str | None) -> ExitCode:
    """Resume a paused plan."""
    ops = settings().operations()
    ops.resume_plan(id, actor=settings().who(), reason=reason)
    return ExitCode.DONE if no_wait else _execute(ops, id)


@command(cli, name="abandon", acts=True)
@_ID
@REASON
def abandon(id: UUID, reason: str | None) -> None:
    """Abandon a plan. Actions that it already made are kept."""
    _show(settings().operations().abandon_plan(id, actor=settings().who(), reason=reason))


def _execute(ops: SyncOperations, id: UUID) -> ExitCode:
    """Executes the plan until it ends or is paused, or waits while another process executes it."""
    with ProgressLine("acted on") as progress:
        plan = ops.run_plan(id, progress=lambda now: progress(now.total - now.left, now.total))
    _show(plan)
    return ExitCode.PARTIAL if plan.skipped else ExitCode.DONE


def _show(plan: StoredPlan) -> None:
    if not settings().tabular:
        show_json(settings(), plan)
        return
    click.echo(f"{plan.id}  {plan.action} of {many_deliveries(plan.total)}, {plan.state}")
    click.echo(f"done {plan.done:,}, left {plan.left:,}")
    if plan.action is Action.REPLAY and plan.started_at is not None:
        click.echo(_results(plan))
    for why, count in sorted(plan.skipped.items()):
        click.echo(f"skipped {count:,}: {why.text}")
    for consumer, count in plan.preview.consumers.items():
        click.echo(f"  {consumer}  {count:,}")
    if plan.preview.unserved:
        note(f"no live worker served {', '.join(plan.preview.unserved)} when the plan was created")
    if plan.state is PlanState.READY:
        note(f"next: holdfast plans start {plan.id}")


def _follow(ops: SyncOperations) -> None:
    """Counts how replayed deliveries ended: without a running worker or console, nothing else does."""
    # An operator who may only read gets the counts that are stored.
    with suppress(StoreError):
        ops.follow_plans()


def _result(plan: StoredPlan, result: ReplayResult) -> str:
    """The count of a result; empty while no delivery has ended, because a 0 would look like a failed replay."""
    return f"{plan.results.get(result, 0):,}" if plan.action is Action.REPLAY and plan.results else ""


def _results(plan: StoredPlan) -> str:
    """One line with the results of the replayed deliveries."""
    parts = [
        f"{plan.results.get(ReplayResult.DELIVERED, 0):,} delivered",
        f"{plan.results.get(ReplayResult.DEAD, 0):,} dead again",
    ]
    if discarded := plan.results.get(ReplayResult.DISCARDED):
        parts.append(f"{discarded:,} discarded")
    if pruned := plan.results.get(ReplayResult.PRUNED):
        parts.append(f"{pruned:,} ended and pruned")
    if plan.unsettled:
        parts.append(f"{plan.unsettled:,} not ended yet")
    return ", ".join(parts)


def _show_dead(ops: SyncOperations, plan: StoredPlan) -> None:
    """Prints the first deliveries that became dead letters again, and the command that shows the error."""
    found = ops.plan_items(plan.id, limit=_MAX_SHOWN, dead=True)
    columns: list[Column[PlanItem]] = [
        Column("DEAD AGAIN", lambda item: item.id),
        Column("CONSUMER", lambda item: item.consumer or ""),
        Column("TYPE", lambda item: item.type or "", loose=True),
    ]
    print_table(found, columns)
    note(f"next: holdfast dlq show {found[0].id}")
