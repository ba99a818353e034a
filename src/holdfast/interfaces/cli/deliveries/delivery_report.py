"""Report of one delivery: facts, last error, runs, siblings, audit entries and next steps."""

from collections.abc import Iterator
from datetime import datetime

from holdfast.core.delivery import FailureCycle, Status
from holdfast.core.values.text import truncated
from holdfast.interfaces.cli.next_command import next_command
from holdfast.interfaces.cli.output import console, status_style
from holdfast.interfaces.presentation.deliveries import attempts, next_commands, progress_text, state
from holdfast.interfaces.presentation.flow import held_up
from holdfast.interfaces.presentation.formatting import (
    ago,
    clock,
    many,
    moment,
    one_line,
    printable,
    rough,
    stored_text,
)
from holdfast.interfaces.presentation.views import dumps
from holdfast.ops.queries.deliveries import DeliveryDetail
from holdfast.stores.queries.query import Run

_FRAMES = 3
_PAYLOAD = 2000
_RUNS = 15
_AUDIT = 10
_INDENT = 4
"""Columns by which the continuation of a wrapped line is indented."""

Part = tuple[str, str]
"""Text and its style."""


def print_report(detail: DeliveryDetail) -> None:
    """Prints the report of a delivery."""
    from rich.text import Text

    out = console()
    for parts in lines(detail):
        text = Text.assemble(*((printable(text), style) for text, style in parts))
        # Pipes receive whole lines, and commands can be copied.
        if not out.is_terminal or text.cell_len <= out.width or parts[-1][0].startswith("holdfast "):
            out.print(text, soft_wrap=True)
            continue
        indent = len(parts[0][0]) if parts[0][1] == "dim" and len(parts) > 1 else _INDENT
        for n, line in enumerate(text[indent:].wrap(out, out.width - indent)):
            out.print((Text(" " * indent) if n else text[:indent]) + line, soft_wrap=True)


def lines(detail: DeliveryDetail) -> Iterator[list[Part]]:
    """The lines of the report."""
    yield from _facts(detail)
    yield from _error(detail)
    yield from _history(detail)
    yield from _siblings(detail)
    yield from _audit(detail)
    yield from _next(detail)


def _facts(detail: DeliveryDetail) -> Iterator[list[Part]]:
    listed, row, now = detail.listed, detail.listed.delivery, detail.now
    status = state(listed)
    yield [(status.replace("_", " ").upper(), f"bold {status_style(status)}"), (f"  {row.id}", "bold")]
    yield []
    yield _fact("message", f"{row.message_id}, {listed.type} from {listed.source}")
    if listed.key:
        yield _fact("key", listed.key)
    yield _fact("consumer", f"{row.consumer}, queue {row.queue}, priority {row.priority}, generation {row.generation}")
    yield _fact("created", moment(row.created_at, now))
    match row.status:
        case Status.FAILED:
            verb = "discarded" if row.discarded_at else "failed"
            first = "" if row.first_failed_at is None else f", failing since {ago(row.first_failed_at, now)}"
            yield _fact(verb, moment(row.discarded_at or row.completed_at, now) + first)
        case Status.DELIVERED:
            yield _fact("delivered", moment(row.completed_at, now))
            if detail.result is not None:
                yield _fact(
                    "result", f"{_shortened(detail.result.result)}, kept until {clock(detail.result.expires_at)}"
                )
        case Status.IN_FLIGHT:
            yield _fact("running", f"on {row.locked_by}, since {moment(row.claimed_at, now)}")
        case Status.PENDING:
            yield _fact("due", moment(row.run_at, now))
    if detail.progress is not None:
        yield _fact("progress", progress_text(detail.progress, now))
    yield _fact("runs", f"{attempts(detail.listed).replace('/', ' of ')}" + (", suspect" if row.suspect else ""))
    if detail.flow_key:
        yield _fact("flow key", detail.flow_key)
    if detail.holds_up is not None:
        yield _fact("holds up", f"{held_up(detail.holds_up)}; replay or discard it", "yellow")
    for obstacle in detail.obstacles:
        yield _fact("waiting", obstacle, "yellow")
    if detail.message is None:
        yield _fact("payload", "pruned")
        return
    if detail.message.headers:
        yield _fact("headers", one_line(", ".join(f"{name}={value}" for name, value in detail.message.headers.items())))
    yield _fact("payload", _shortened(detail.message.payload))


def _shortened(text: str) -> str:
    text = stored_text(text)
    cut = f" … ({len(text):,} characters; --format json shows all)" if len(text) > _PAYLOAD else ""
    return one_line(text[:_PAYLOAD]) + cut


def _error(detail: DeliveryDetail) -> Iterator[list[Part]]:
    row = detail.listed.delivery
    if row.last_error is None and row.error_type is None:
        return
    yield from _heading("Failure" if row.status is Status.FAILED else "Last error")
    yield [(f"  {row.error_type or 'error'}: ", "bold red"), (one_line(row.last_error), "")]
    if detail.frame:
        yield [("  at ", "dim"), (one_line(detail.frame), "bold")]
    trace = next((run.trace for run in reversed(detail.runs) if run.trace), None)
    for line in last_frames(trace or ""):
        yield [(f"  {line}", "dim")]
    if detail.alike is not None:
        alike = (
            "no other dead letter is in its failure group"
            if detail.alike == 1
            else f"{detail.alike:,} dead letters in its failure group, including this one"
        )
        group = f" ({row.fingerprint})" if row.fingerprint else ""
        yield [(f"  {alike}{group}", "")]


def last_frames(trace: str) -> list[str]:
    """The innermost frames of a traceback."""
    found: list[str] = []
    frames = 0
    for line in reversed(trace.rstrip().splitlines()):
        if line.startswith("  File "):
            frames += 1
        if frames == 0 and not line.startswith("    "):
            continue
        found.append(line.rstrip())
        if frames == _FRAMES or line.startswith("Traceback"):
            break
    return [line for line in reversed(found) if not line.startswith("Traceback")]


def _history(detail: DeliveryDetail) -> Iterator[list[Part]]:
    row, now = detail.listed.delivery, detail.now
    if not detail.runs and not row.failure_history:
        return
    yield from _heading("Runs")
    entries = [(run.completed_at, _run(run, now)) for run in detail.runs]
    entries += [(cycle.replayed_at or now, _cycle(cycle, now)) for cycle in row.failure_history]
    entries.sort(key=lambda entry: entry[0])
    if len(entries) > _RUNS:
        yield [(f"  {len(entries) - _RUNS} older entries: --format json shows all", "dim")]
    for _, line in entries[-_RUNS:]:
        yield line


def _run(run: Run, now: datetime) -> list[Part]:
    took = "" if run.started_at is None else f", took {_seconds(run)}"
    deploy = "" if run.generation is None else f", generation {run.generation}"
    if run.error is not None:
        error = f": {truncated(one_line(run.error), 160)}"
    else:
        error = f": {truncated(one_line(dumps(run.detail)), 160)}" if run.detail else ""
    style = status_style("delivered") if run.outcome in ("succeeded", "deliver") else status_style("failed")
    return [
        (f"  run {run.attempt} ", ""),
        (run.outcome.replace("_", " "), style),
        (f" {ago(run.completed_at, now)} ({clock(run.completed_at)}) on {run.worker}{deploy}{took}{error}", ""),
    ]


def _seconds(run: Run) -> str:
    assert run.started_at is not None
    seconds = (run.completed_at - run.started_at).total_seconds()
    return f"{max(0.0, seconds) * 1000:.0f} ms" if seconds < 10 else rough(run.completed_at - run.started_at)


def _cycle(cycle: FailureCycle, now: datetime) -> list[Part]:
    when = "" if cycle.replayed_at is None else f" {ago(cycle.replayed_at, now)} ({clock(cycle.replayed_at)})"
    why = f": {one_line(cycle.reason)}" if cycle.reason else ""
    after = f"after {many(cycle.attempts, 'run')} at generation {cycle.generation}"
    return [("  replayed", "bold"), (f" by {cycle.replayed_by}{when}, {after}{why}", "")]


def _siblings(detail: DeliveryDetail) -> Iterator[list[Part]]:
    if not detail.siblings:
        return
    yield from _heading("Deliveries of the same message to other consumers")
    for one in detail.siblings:
        status = state(one)
        yield [
            (f"  {one.delivery.id}  {one.delivery.consumer}  ", ""),
            (status.replace("_", " "), status_style(status)),
        ]


def _audit(detail: DeliveryDetail) -> Iterator[list[Part]]:
    if not detail.audit:
        return
    yield from _heading("Audit")
    for entry in detail.audit[:_AUDIT]:
        why = f": {one_line(entry.reason)}" if entry.reason else ""
        yield [(f"  {ago(entry.at, detail.now)} ({clock(entry.at)}) {entry.actor} {entry.action}{why}", "")]


def _next(detail: DeliveryDetail) -> Iterator[list[Part]]:
    commands = list(next_commands(detail))
    if not commands:
        return
    yield from _heading("Next steps")
    width = max(len(what) for what, _ in commands)
    for what, line in commands:
        yield [(f"  {what.ljust(width)}  ", ""), (next_command(line), "bold")]


def _fact(name: str, text: str, style: str = "") -> list[Part]:
    return [(f"  {name:<11}", "dim"), (text, style)]


def _heading(text: str) -> Iterator[list[Part]]:
    yield []
    yield [(text, "bold")]
