"""Bulk actions on the command line: preview, confirmation, execution with progress, and report."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import orjson

from holdfast.core.errors import ConfigurationError, HoldfastError, NotFound, Refused
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import ProgressLine, console, note, print_table, show_json
from holdfast.interfaces.cli.settings import Settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.deliveries import pauses
from holdfast.interfaces.presentation.formatting import many_deliveries
from holdfast.interfaces.presentation.views import dumps
from holdfast.ops.plans import Plan, Report
from holdfast.stores.admin.plan import Action, PlanItem, SkipReason
from holdfast.stores.admin.plan_creation import MAX_PLAN
from holdfast.stores.file import private
from holdfast.stores.queries.query import MAX_PAGE, Filter

_DONE = {Action.REPLAY: "replayed", Action.DISCARD: "discarded", Action.CANCEL: "cancelled"}
_SHOWN = 20
_NOTHING = "nothing to {}: no matching deliveries"

LIMIT = click.option(
    "--limit",
    type=click.IntRange(1, MAX_PLAN),
    default=MAX_PLAN,
    metavar="N",
    help="Maximum number of deliveries, oldest first.  [default: all, up to 100,000]",
)
DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would happen and store it as a plan, which `holdfast plans start` executes. No delivery changes.",
)
PLAN_FILE = click.option(
    "--plan",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Export the plan to this file. Without a selection, execute the plan in this file.",
)


def act(
    settings: Settings,
    plan: Plan,
    *,
    reason: str | None,
    generation: int | None = None,
    dry_run: bool = False,
    ask: bool = True,
    file: Path | None = None,
) -> ExitCode:
    """Executes or previews a plan and returns the exit code. The plan is deleted if the user does not confirm it, or if it acts
    on no delivery, unless it was saved to a file. Raises `NotFound` if nothing matches because a name is misspelled."""
    kept = file is not None
    try:
        if not plan.total:
            settings.operations().check_filter(_names(plan))
        if dry_run:
            show_plan(settings, plan, generation)
            kept = kept or plan.items > 0
            return ExitCode.DONE
        if not plan.items and plan.total:
            raise nothing_to_do(plan.action, settings.operations().plan_items(plan.id, skipped=True), plan.total)
        if not plan.items:
            note(_NOTHING.format(plan.action))
            return ExitCode.DONE
        if ask and not settings.yes:
            for line in (*preview(plan, generation), *paused_lines(settings, plan)):
                note(line)
            settings.confirm(plan.action.value, many_deliveries(plan.items))
        kept = True
    finally:
        if not kept:
            # Otherwise it stays in the list of plans until it is pruned, which is not worth another error.
            with suppress(HoldfastError):
                settings.operations().delete_plan(plan.id)
    report = _execute(settings, plan, reason, generation)
    show_report(settings, report, plan)
    if settings.tabular and report.done:
        for line in paused_lines(settings, plan):
            note(line)
    return exit_code(report)


def saver(settings: Settings, dry_run: bool) -> str | None:
    """The actor that the audit records for a new plan; None if it is executed at once: then its start is recorded."""
    return settings.who() if dry_run else None


def _execute(settings: Settings, plan: Plan, reason: str | None, generation: int | None) -> Report:
    with ProgressLine(_DONE[plan.action]) as progress:
        try:
            return plan.sync.execute(
                actor=settings.who(),
                reason=reason,
                generation=generation,
                progress=lambda now: progress(now.total - now.left, now.total),
            )
        except BaseException as error:
            for line in getattr(error, "__notes__", ()):
                note(line)
            raise


def nothing_to_do(action: Action, skipped: Sequence[PlanItem], total: int) -> NotFound | Refused:
    """The error for an action that skips all its deliveries."""
    first, others = skipped[0], f" (and {total - 1} more)" if total > 1 else ""
    if all(one.why is SkipReason.NOT_FOUND for one in skipped):
        return NotFound("delivery", f"{first.id}{others}" if others else first.id)
    remedy = "add --rerun to run it again" if _can_rerun(action, first.why) else ""
    return Refused(action.value, f"delivery {first.id}{others}", str(first.reason), remedy)


def _names(plan: Plan) -> Filter:
    """The names in the filter of a plan."""
    given = plan.preview.filter
    texts: dict[str, Any] = {
        name: str(given[name]) for name in ("queue", "type", "error_type", "group") if given.get(name)
    }
    names = given.get("consumers")
    return Filter(consumers=tuple(map(str, names)) if isinstance(names, list | tuple) else (), **texts)


def paused_lines(settings: Settings, plan: Plan) -> list[str]:
    """The pauses that keep the deliveries of a replay from running, with the commands that end them."""
    ops = settings.operations()
    found = pauses(plan, ops.consumers(), ops.queues()) if plan.action is Action.REPLAY else []
    return [f"  {kind} {name} is paused: they wait until `holdfast {kind}s resume {name}`" for kind, name in found]


def show_plan(settings: Settings, plan: Plan, generation: int | None) -> None:
    """Prints a plan: everything as JSON, or a summary and a table of its deliveries."""
    if not settings.tabular:
        show_json(settings, settings.operations().export_plan(plan.id))
        return
    if not plan.total:
        note(_NOTHING.format(plan.action))
        return
    for line in (*preview(plan, generation), *paused_lines(settings, plan)):
        note(line)
    items, after = list[PlanItem](), 0
    while after < plan.items:
        items += settings.operations().plan_items(plan.id, limit=min(MAX_PAGE, plan.items - after), after=after)
        after += MAX_PAGE
    if items:
        columns: list[Column[PlanItem]] = [
            Column("ID", lambda item: item.id),
            Column("CONSUMER", lambda item: item.consumer or ""),
            Column("TYPE", lambda item: item.type or ""),
            Column("STATUS", lambda item: item.status.value if item.status else ""),
        ]
        if plan.action is Action.REPLAY:
            columns.append(Column("GENERATION", lambda item: _change(item.generation, generation, item.to_generation)))
        print_table(items, columns)
        note(f"next: holdfast plans start {plan.id}, or holdfast plans abandon {plan.id}")


def preview(plan: Plan, generation: int | None) -> list[str]:
    """The lines that describe what a plan would do."""
    counts = plan.preview
    lines = [f"would {plan.action} {many_deliveries(plan.items)} (plan {plan.id})"]
    for consumer, count in counts.consumers.items():
        line = f"  {consumer}: {count:,}"
        if plan.action is Action.REPLAY:
            changes = dict.fromkeys(_change(old, generation, new) for old, new in counts.changes.get(consumer, ()))
            line += f", generation {', '.join(changes)}" if changes else ""
            if consumer in counts.unserved:
                line += "; no live worker serves it, so they would wait"
        lines.append(line)
    lines += [f"  skipped {count:,}: {_skipped_text(plan, why)}" for why, count in plan.skipped.items()]
    if counts.handled:
        lines.append(f"  {counts.handled:,} were handled before: the consumer's inbox will skip them")
    if counts.deduplicated and plan.rerun:
        lines.append(
            f"  {counts.deduplicated:,} are inside their deduplication window: --rerun ignores it and runs them"
        )
    elif counts.deduplicated:
        lines.append(
            f"  {counts.deduplicated:,} are inside their deduplication window and will be skipped; --rerun runs them"
        )
    lines += [
        f"  circuit {one.name} is open: {'its deliveries' if one.consumer else 'deliveries that call through it'} would park"
        for one in counts.circuits
    ]
    if counts.remaining:
        lines.append(f"  {_remaining(plan)} more match but exceed --limit {counts.limit:,}")
    return lines


def _skipped_text(plan: Plan, why: SkipReason) -> str:
    return f"{why.text}; --rerun runs them again" if _can_rerun(plan.action, why) else why.text


def _can_rerun(action: Action, why: SkipReason | None) -> bool:
    return action is Action.REPLAY and why is SkipReason.DELIVERED


def show_report(settings: Settings, report: Report, plan: Plan | None = None) -> None:
    """Prints the report of an execution. The summary comes last, so that it stays visible."""
    if not settings.tabular:
        show_json(settings, report)
        return
    if len(report.done) <= _SHOWN:
        for id in report.done:
            console().print(str(id))
    if report.skipped:
        note(f"skipped {many_deliveries(len(report.skipped))}:")
        for one in report.skipped[:_SHOWN]:
            note(f"  {one.id} {one.consumer or ''}: {one.reason}")
        if len(report.skipped) > _SHOWN:
            note(f"  and {len(report.skipped) - _SHOWN:,} more; --format json lists all")
    earlier = f" ({report.earlier:,} more in earlier executions)" if report.earlier else ""
    note(f"{_DONE[report.action]} {many_deliveries(len(report.done))}{earlier}")
    if report.left:
        note(f"stopped: {many_deliveries(report.left)} left; next: holdfast plans show {report.plan}")
    if plan is not None and plan.preview.remaining:
        note(
            f"{_remaining(plan)} more match and are unchanged; run the same command for the next {plan.preview.limit:,}, "
            "or without --limit for all"
        )
    if report.done and report.action is Action.REPLAY:
        note(f"results: holdfast plans show {report.plan}")


def exit_code(report: Report) -> ExitCode:
    """Done if every delivery was acted on, otherwise partial or refused."""
    if not report.skipped and not report.left:
        return ExitCode.DONE
    return ExitCode.PARTIAL if report.done or report.earlier or report.left else ExitCode.REFUSED


def write_plan(settings: Settings, plan: Plan, file: Path) -> None:
    """Exports a plan to a new file. An existing file may belong to another plan, so it is never overwritten."""
    try:
        with open(file, "x", encoding="utf-8", opener=private) as stream:
            stream.write(dumps(settings.operations().export_plan(plan.id), indent=True) + "\n")
    except FileExistsError:
        raise Refused(
            "write", f"plan {file}", "an existing file", "omit the selection to execute it, or use another file"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"plan {file} cannot be written: {error.strerror}; use another file") from None


def read_plan(settings: Settings, file: Path, action: Action) -> Plan:
    """The stored plan that was exported to a file."""
    try:
        exported = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"plan {file} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"plan {file} is not JSON ({error}); make one with --dry-run --plan FILE") from None
    plan = settings.operations().load_plan(exported)
    if plan.action is not action:
        raise Refused(action.value, f"plan {file}", f"a {plan.action} plan")
    return plan


def _remaining(plan: Plan) -> str:
    return f"{plan.preview.remaining:,}" + ("+" if plan.preview.remaining_at_least else "")


def _change(old: int | None, given: int | None, planned: int | None) -> str:
    new = planned if given is None else given
    return str(old) if new in (None, old) else f"{old} -> {new}"
