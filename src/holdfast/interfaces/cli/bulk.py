"""Bulk actions on the command line: preview, confirmation, execution with progress, and report."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import orjson

from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import ProgressLine, console, note, print_table, show_json
from holdfast.interfaces.cli.settings import Settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.formatting import many_deliveries
from holdfast.ops.plans import Plan, Planned, Report, Skipped
from holdfast.ops.service import SyncOperations
from holdfast.stores.admin.bulk_actions import Action, SkipReason
from holdfast.stores.admin.plan import PlanState, StoredPlan
from holdfast.stores.file import private
from holdfast.stores.queries.query import MAX_PAGE

_DONE = {Action.REPLAY: "replayed", Action.DISCARD: "discarded", Action.CANCEL: "cancelled"}
_SHOWN = 20
_POLL_SECONDS = 0.2


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
    """Executes or previews a plan and returns the exit code."""
    if dry_run:
        show_plan(settings, plan, generation)
        return ExitCode.DONE
    if not plan.items and plan.skipped:
        raise nothing_to_do(plan)
    if not plan.items:
        note(f"nothing to {plan.action}: no matching deliveries")
        return ExitCode.DONE
    if ask and not settings.yes:
        for line in preview(plan, generation):
            note(line)
        settings.confirm(plan.action.value, many_deliveries(len(plan.items)))
    stored = ask and file is None
    report = (_execute_stored if stored else _execute)(settings, plan, reason, generation, file)
    if settings.tabular:
        _show_report(plan, report, stored=stored)
    else:
        show_json(settings, report)
    return _code(report)


def _execute(settings: Settings, plan: Plan, reason: str | None, generation: int | None, file: Path | None) -> Report:
    """Executes a plan in this process only. The audit log records what it did, so its file can be executed again."""
    with ProgressLine(_DONE[plan.action]) as progress:
        try:
            return plan.sync.execute(
                actor=settings.who(),
                reason=reason,
                generation=generation,
                progress=lambda step: progress(step.done + step.skipped, step.total),
            )
        except BaseException:
            if file is not None:
                note(f"not finished; continue it with `holdfast {plan.action} --plan {file}`")
            raise


def _execute_stored(settings: Settings, plan: Plan, reason: str | None, generation: int | None, _: object) -> Report:
    """Stores a plan and executes it, so that its results can be read later. An interruption pauses it."""
    ops, who = settings.operations(), settings.who()
    ops.save_plan(plan, actor=who, reason=reason)
    ops.start_plan(plan.id, actor=who, reason=reason, generation=generation)
    try:
        drive(ops, plan.id, _DONE[plan.action])
    except BaseException:
        with suppress(Refused):
            ops.pause_plan(plan.id, actor=who, reason="interrupted")
        note(f"plan paused; `holdfast plans resume {plan.id}` continues it, `holdfast plans abandon {plan.id}` ends it")
        raise
    return _report(ops, plan)


def drive(ops: SyncOperations, id: UUID, verb: str) -> StoredPlan:
    """Executes a stored plan until it ends or is paused, or waits while another process executes it."""
    runner = f"cli:{socket.gethostname()}:{os.getpid()}"
    with ProgressLine(verb) as progress:
        while (plan := ops.plan(id)).state is PlanState.RUNNING:
            if ops.advance_plan(id, runner=runner) is None:
                time.sleep(_POLL_SECONDS)
            progress(plan.total - plan.left, plan.total)
    return plan


def _report(ops: SyncOperations, plan: Plan) -> Report:
    done: list[UUID] = []
    skipped: list[Skipped] = []
    after, page = 0, ops.plan_items(plan.id, limit=MAX_PAGE)
    while page:
        for item in page:
            if item.done:
                done.append(item.id)
            elif item.why is not None:
                skipped.append(Skipped(id=item.id, consumer=item.consumer, why=item.why, by=item.by))
        after = page[-1].n
        page = ops.plan_items(plan.id, limit=MAX_PAGE, after=after) if len(page) == MAX_PAGE else []
    return Report(plan=plan.id, action=plan.action, done=tuple(done), earlier=0, skipped=tuple(skipped))


def nothing_to_do(plan: Plan) -> NotFound | Refused:
    """The error for a plan that can act on none of its deliveries."""
    first, more = plan.skipped[0], len(plan.skipped) - 1
    others = f" (and {more} more)" if more else ""
    if all(one.why is SkipReason.NOT_FOUND for one in plan.skipped):
        return NotFound("delivery", f"{first.id}{others}" if more else first.id)
    remedy = "add --rerun to run it again" if first.why is SkipReason.DELIVERED and plan.action is Action.REPLAY else ""
    return Refused(plan.action.value, f"delivery {first.id}{others}", first.reason, remedy)


def show_plan(settings: Settings, plan: Plan, generation: int | None) -> None:
    """Prints a plan: everything as JSON, or a summary and a table of its deliveries."""
    if not settings.tabular:
        show_json(settings, plan)
        return
    for line in preview(plan, generation):
        note(line)
    if plan.items:
        columns: list[Column[Planned]] = [
            Column("ID", lambda item: item.id),
            Column("CONSUMER", lambda item: item.consumer),
            Column("TYPE", lambda item: item.type),
            Column("STATUS", lambda item: item.status.value),
        ]
        if plan.action is Action.REPLAY:
            columns.append(Column("GENERATION", lambda item: _change(item.generation, generation, item.to_generation)))
        print_table(plan.items, columns)


def preview(plan: Plan, generation: int | None) -> list[str]:
    """The lines that describe what a plan would do."""
    lines = [f"would {plan.action} {many_deliveries(len(plan.items))} (plan {plan.id})"]
    for consumer, count in plan.consumers.items():
        line = f"  {consumer}: {count:,}"
        if plan.action is Action.REPLAY:
            own = [item for item in plan.items if item.consumer == consumer]
            changes = {_change(item.generation, generation, item.to_generation) for item in own}
            line += f", generation {', '.join(sorted(changes)[:5])}"
            if consumer in plan.unserved:
                line += "; no live worker serves it, so they would wait"
        lines.append(line)
    lines += _skip_counts(plan.skipped)
    if plan.handled:
        lines.append(f"  {plan.handled:,} were handled before: the consumer's inbox will skip them")
    if plan.deduplicated and plan.rerun:
        lines.append(f"  {plan.deduplicated:,} are inside their deduplication window: --rerun ignores it and runs them")
    elif plan.deduplicated:
        lines.append(
            f"  {plan.deduplicated:,} are inside their deduplication window and will be skipped; --rerun runs them"
        )
    lines += [
        f"  circuit {one.name} is open: {'its deliveries' if one.consumer else 'deliveries that call through it'} would park"
        for one in plan.circuits
    ]
    if plan.remaining:
        lines.append(f"  {plan.remaining:,} more match but exceed --limit {plan.limit:,}")
    return lines


def _skip_counts(skipped: tuple[Skipped, ...]) -> list[str]:
    counts: dict[str, int] = {}
    for one in skipped:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return [f"  skipped {count:,}: {reason}" for reason, count in counts.items()]


def _change(now: int, given: int | None, planned: int | None) -> str:
    then = given if given is not None else planned
    return str(now) if then in (None, now) else f"{now} -> {then}"


def _show_report(plan: Plan, report: Report, *, stored: bool) -> None:
    """Prints the report. The summary comes last, so that it stays visible."""
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
    if plan.remaining:
        note(f"{plan.remaining:,} more match and are unchanged; run the same command for the next {plan.limit:,}")
    if stored and report.done and report.action is Action.REPLAY:
        note(f"results: holdfast plans show {plan.id}")


def _code(report: Report) -> ExitCode:
    if not report.skipped:
        return ExitCode.DONE
    return ExitCode.PARTIAL if report.done or report.earlier else ExitCode.REFUSED


def save_plan(plan: Plan, file: Path) -> None:
    """Writes a plan to a new file. An existing plan may be partly executed, so it is never overwritten."""
    from holdfast.interfaces.presentation.views import dumps

    try:
        with open(file, "x", encoding="utf-8", opener=private) as stream:
            stream.write(dumps(plan, indent=True) + "\n")
    except FileExistsError:
        raise Refused(
            "write", f"plan {file}", "an existing file", "omit the selection to execute it, or use another file"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"plan {file} cannot be written: {error.strerror}") from None


def read_plan(file: Path) -> object:
    """Reads the file of a plan."""
    try:
        return orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"plan {file} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"plan {file} is not JSON: {error}") from None
