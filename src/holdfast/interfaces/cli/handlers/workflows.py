"""`holdfast workflows`: workflows, their runs, and commands to runs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from holdfast.core.errors import InvalidPayload
from holdfast.core.events import payload
from holdfast.core.values.text import truncated
from holdfast.interfaces.cli.actions import REASON, add_actions
from holdfast.interfaces.cli.deliveries.publish import print_published, read_json
from holdfast.interfaces.cli.filters import DURATION, ID, SINCE, TIME, page_options
from holdfast.interfaces.cli.handlers.resources import add_list
from holdfast.interfaces.cli.next_command import next_command
from holdfast.interfaces.cli.output import console, note, print_table, show_json, show_value, status_style
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column, time_column
from holdfast.interfaces.presentation.actions import RUNS
from holdfast.interfaces.presentation.filters import run_filter
from holdfast.interfaces.presentation.formatting import moment, one_line, printable, stored_text
from holdfast.interfaces.presentation.workflows import (
    duration,
    forked_from,
    item_notes,
    next_commands,
    shown_steps,
    step_label,
    step_note,
    timeline,
    word,
)
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.stores.workflows.query import RunRecord, StepRecord
from holdfast.stores.workflows.run_page import RUN_STATES, ListedRun, WorkflowCounts

_VALUE = 2000
_EVENTS = 40


@group("workflows")
def cli() -> None:
    """List workflow runs, show one, start one, and send commands to it.

    Commands are stored first and applied once by a worker.
    """


@command(cli, name="list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--state", type=click.Choice(RUN_STATES), help="Only this state.")
@click.option("--key", metavar="KEY", help="Only the run with this key.")
@click.option("--since", type=SINCE, metavar="TIME", help="Started since: 2h, 3d, 2026-11-15T09:00Z.")
@click.option("--until", type=TIME, metavar="TIME", help="Started before.")
@page_options
def list_(limit: int, before: UUID | None, **chosen: Any) -> None:
    """List runs, newest first."""
    ops = settings().operations()
    found = ops.workflow_runs(run_filter(**chosen), limit=limit, before=before)
    if not settings().tabular:
        show_json(settings(), found.items)
        return
    if found.items:
        print_table(found.items, _run_columns(ops.now()))
    elif found.next is None:
        note("no matching runs")
    if found.next is not None:
        what = "older runs" if found.items else "no match among the newest runs; search older ones"
        note(f"{what}: add --before {found.next}")


def _run_columns(now: datetime) -> list[Column[ListedRun]]:
    return [
        Column("ID", lambda one: one.run.id),
        Column("STATE", lambda one: one.state, style=lambda one: status_style(one.state)),
        Column("WORKFLOW", lambda one: one.run.workflow),
        time_column("STARTED", lambda one: one.run.started_at, now),
        Column("TOOK", lambda one: duration(one.run.started_at, one.run.ended_at), right=True),
        Column("KEY", lambda one: one.run.key or "", titled=True),
        Column("REASON", lambda one: one_line(one.run.reason), loose=True),
    ]


@add_list(cli, lambda ops: ops.workflows(), "no workflows; they register when an app with one starts", "names")
def _workflow_columns(now: datetime) -> list[Column[WorkflowCounts]]:
    """List workflows with the states of their newest runs."""
    return [
        Column("WORKFLOW", lambda one: one.workflow),
        Column("VERSIONS", lambda one: ", ".join(map(str, one.versions))),
        count_column("RUNNING", lambda one: one.running),
        count_column("UNDOING", lambda one: one.compensating),
        count_column("DONE", lambda one: one.done),
        count_column("FAILED", lambda one: one.failed, "red"),
        count_column("CANCELLED", lambda one: one.cancelled),
    ]


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one run with its steps, waits, signals, results and timeline."""
    show_value(settings(), settings().operations().workflow_run(id), _print_run)


@command(cli, name="run", acts=True)
@click.argument("workflow")
@click.argument("arguments", metavar="[JSON|-]", default="{}")
@click.option("--key", metavar="KEY", help="Idempotency key: the run is started once per key.")
@click.option("--deadline", type=DURATION, metavar="DURATION", help="Time after which the run fails: 30m, 2d.")
@REASON
def run(workflow: str, arguments: str, **options: Any) -> None:
    """Start a run of the newest version, with the arguments of start as a JSON object.

    With --app, the types of the arguments are checked first. Without it, a worker checks them.

    \b
      holdfast workflows run order '{"sku": "lamp", "count": 2}' --key order:7
    """
    values = read_json(arguments)
    if not isinstance(values, dict):
        raise InvalidPayload(
            "$", "the arguments of a run must be a JSON object with the parameters of its steps by name"
        )
    ops, who = settings().operations(), settings().who()
    if settings().uses_app and (declared := settings().load_app().workflows.get(workflow)) is not None:
        declared.parameters.read(payload.encode(values))
    print_published(ops.start_run(workflow, values, actor=who, **options), "started")


add_actions(cli, RUNS)


def _print_run(detail: WorkflowRunDetail) -> None:
    run, now, out = detail.listed.run, detail.now, console()
    out.print(f"{detail.listed.state.upper()}  {run.id}", style=f"bold {status_style(detail.listed.state)}")
    out.print()
    facts = {
        "workflow": f"{run.workflow}, version {run.version}",
        "key": run.key,
        "started": moment(run.started_at, now),
        "ended": moment(run.ended_at, now)
        + (f", took {duration(run.started_at, run.ended_at)}" if run.ended_at else ""),
        "deadline": moment(run.deadline, now),
        "reason": one_line(run.reason),
        "parent": run.parent_run,
        "forked": forked_from(run),
        "values": _value(detail.payload),
    }
    for name, value in facts.items():
        if value:
            out.print(f"  {name:<11}{printable(str(value))}", soft_wrap=True)
    _heading("Steps")
    print_table(shown_steps(detail), _step_columns(detail))
    for title, lines in (
        ("Items", item_notes(detail)),
        ("Results", _results(detail)),
        ("Signals", _signals(detail)),
        ("Children", _runs(detail.children)),
        ("Forks", _runs(detail.forks)),
    ):
        if shown := list(lines):
            _heading(title)
            for line in shown:
                out.print(f"  {line}", soft_wrap=True)
    _print_timeline(detail)
    commands = list(next_commands(detail))
    if commands:
        _heading("Next steps")
        width = max(len(label) for label, _ in commands)
        for label, line in commands:
            out.print(f"  {label.ljust(width)}  {next_command(line)}", soft_wrap=True)


def _step_columns(detail: WorkflowRunDetail) -> list[Column[StepRecord]]:
    return [
        Column("STEP", step_label),
        Column("STATE", lambda one: word(one.state.value), style=lambda one: status_style(one.state.value)),
        Column("ATTEMPTS", lambda one: one.attempts or "", right=True),
        Column("TOOK", lambda one: duration(one.started_at, one.ended_at), right=True),
        Column("NOTE", lambda one: step_note(detail, one) or _error(one), loose=True),
    ]


def _error(step: StepRecord) -> str:
    return one_line(step.last_error)


def _results(detail: WorkflowRunDetail) -> Iterator[str]:
    for step in shown_steps(detail):
        if step.result is not None and step.result != "null":
            form = "" if step.result_version is None else f" (version {step.result_version})"
            yield f"{step_label(step)}{form}: {_value(step.result)}"
    for one in detail.remembered:
        if ":" not in one.name and one.result is not None:
            yield f"{one.name} (remembered): {_value(one.result)}"


def _signals(detail: WorkflowRunDetail) -> Iterator[str]:
    for one in detail.signals:
        used = f"received by {one.consumed_by.partition('/')[0]}" if one.consumed_by else "not received yet"
        yield f"{one.name} {moment(one.sent_at, detail.now)}, {used}: {_value(one.payload or 'null')}"


def _runs(found: Sequence[RunRecord]) -> Iterator[str]:
    for one in found:
        step = f"  from step {one.forked_step}" if one.forked_step else ""
        yield f"{one.id}  {one.workflow}  {one.status.value}{step}"


def _print_timeline(detail: WorkflowRunDetail) -> None:
    events = timeline(detail)
    _heading("Timeline")
    if len(events) > _EVENTS:
        console().print(f"  {len(events) - _EVENTS} older events: --format json shows all", style="dim")
    for event in events[-_EVENTS:]:
        text = f", {truncated(one_line(event.text), 160)}" if event.text else ""
        console().print(f"  {_millisecond(event.at)}  {printable(event.title)}{text}", soft_wrap=True)


def _millisecond(at: datetime) -> str:
    """A time with milliseconds: steps often follow each other within a second."""
    return at.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def _heading(text: str) -> None:
    out = console()
    out.print()
    out.print(text, style="bold")


def _value(text: str) -> str:
    text = stored_text(text)
    cut = f" … ({len(text):,} characters; --format json shows all)" if len(text) > _VALUE else ""
    return one_line(text[:_VALUE]) + cut
