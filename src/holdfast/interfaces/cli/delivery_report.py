"""A delivery told as a story: what, to whom, how often, where it broke, how many alike, what was tried, what next."""

from collections.abc import Iterator
from datetime import datetime

from holdfast.core.delivery import FailureCycle, Status
from holdfast.interfaces.cli.columns import attempts, state
from holdfast.interfaces.cli.formatting import ago, clock, many, moment, one_line, printable, rough
from holdfast.interfaces.cli.output import console, status_style
from holdfast.ops.deliveries import DeliveryDetail
from holdfast.ops.shape import dumps
from holdfast.stores.query import Run

_FRAMES = 3
_PAYLOAD = 2000
_TRIED = 15
_AUDIT = 10
_SAMPLE = 10

Part = tuple[str, str]
"""Text, and the style it is shown in."""


def print_report(detail: DeliveryDetail) -> None:
    """Prints the story of a delivery."""
    from rich.text import Text

    out = console()
    for line in lines(detail):
        # Not wrapped: a person may copy any of it, and a pipe must get it whole.
        out.print(Text.assemble(*((printable(text), style) for text, style in line)), soft_wrap=True)


def lines(detail: DeliveryDetail) -> Iterator[list[Part]]:
    """The story, line by line."""
    yield from _what(detail)
    yield from _broke(detail)
    yield from _tried(detail)
    yield from _siblings(detail)
    yield from _audit(detail)
    yield from _next(detail)


def _what(detail: DeliveryDetail) -> Iterator[list[Part]]:
    listed, row, now = detail.listed, detail.listed.delivery, detail.now
    status = state(listed)
    yield [(status.replace("_", " ").upper(), f"bold {status_style(status)}"), (f"  {row.id}", "bold")]
    yield []
    yield _fact("what", f"{listed.type} from {listed.source}, message {row.message_id}")
    if listed.key:
        yield _fact("key", listed.key)
    yield _fact("to", f"{row.consumer}, queue {row.queue}, priority {row.priority}, generation {row.generation}")
    yield _fact("made", moment(row.created_at, now))
    match row.status:
        case Status.FAILED:
            verb = "discarded" if row.discarded_at else "failed"
            first = "" if row.first_failed_at is None else f", failing since {ago(row.first_failed_at, now)}"
            yield _fact(verb, moment(row.discarded_at or row.completed_at, now) + first)
        case Status.DELIVERED:
            yield _fact("done", moment(row.completed_at, now))
        case Status.IN_FLIGHT:
            yield _fact("running", f"on {row.locked_by}, since {moment(row.claimed_at, now)}")
        case Status.PENDING:
            yield _fact("due", moment(row.run_at, now))
    yield _fact("runs", f"{attempts(detail.listed).replace('/', ' of ')}" + (", suspect" if row.suspect else ""))
    for obstacle in detail.obstacles:
        yield _fact("waits", obstacle, "yellow")
    if detail.message is None:
        yield _fact("payload", "pruned")
        return
    if detail.message.headers:
        yield _fact("headers", one_line(", ".join(f"{name}={value}" for name, value in detail.message.headers.items())))
    payload = detail.message.payload
    cut = f" … ({len(payload):,} characters; --format json shows all)" if len(payload) > _PAYLOAD else ""
    yield _fact("payload", one_line(payload[:_PAYLOAD]) + cut)


def _broke(detail: DeliveryDetail) -> Iterator[list[Part]]:
    row = detail.listed.delivery
    if row.last_error is None and row.error_type is None:
        return
    yield from _heading("where it broke" if row.status is Status.FAILED else "the last error")
    yield [(f"  {row.error_type or 'error'}: ", "bold red"), (one_line(row.last_error), "")]
    if detail.frame:
        yield [("  at ", "dim"), (one_line(detail.frame), "bold")]
    trace = next((run.trace for run in reversed(detail.runs) if run.trace), None)
    for line in last_frames(trace or ""):
        yield [(f"  {line}", "dim")]
    if detail.alike is not None:
        alike = (
            "no other dead letter failed alike"
            if detail.alike == 1
            else f"{detail.alike:,} dead letters failed alike, this one among them"
        )
        group = f" (group {row.fingerprint})" if row.fingerprint else ""
        yield [(f"  {alike}{group}", "")]


def last_frames(trace: str) -> list[str]:
    """The innermost frames of a traceback: where it broke is at its end."""
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


def _tried(detail: DeliveryDetail) -> Iterator[list[Part]]:
    row, now = detail.listed.delivery, detail.now
    if not detail.runs and not row.failure_history:
        return
    yield from _heading("what was tried")
    told = [(run.completed_at, _run(run, now)) for run in detail.runs]
    told += [(cycle.replayed_at or now, _cycle(cycle, now)) for cycle in row.failure_history]
    told.sort(key=lambda entry: entry[0])
    if len(told) > _TRIED:
        yield [(f"  {len(told) - _TRIED} older entries: --format json shows all", "dim")]
    for _, line in told[-_TRIED:]:
        yield line


def _run(run: Run, now: datetime) -> list[Part]:
    took = "" if run.started_at is None else f", took {_seconds(run)}"
    deploy = "" if run.generation is None else f", generation {run.generation}"
    if run.error is not None:
        error = f": {one_line(run.error)[:160]}"
    else:
        error = f": {one_line(dumps(run.detail))[:160]}" if run.detail else ""
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
    yield from _heading("the same message, for others")
    for one in detail.siblings:
        status = state(one)
        yield [
            (f"  {one.delivery.id}  {one.delivery.consumer}  ", ""),
            (status.replace("_", " "), status_style(status)),
        ]


def _audit(detail: DeliveryDetail) -> Iterator[list[Part]]:
    if not detail.audit:
        return
    yield from _heading("what operators did")
    for entry in detail.audit[:_AUDIT]:
        why = f": {one_line(entry.reason)}" if entry.reason else ""
        yield [(f"  {ago(entry.at, detail.now)} ({clock(entry.at)}) {entry.actor} {entry.action}{why}", "")]


def _next(detail: DeliveryDetail) -> Iterator[list[Part]]:
    commands = list(next_commands(detail))
    if not commands:
        return
    yield from _heading("what next")
    width = max(len(what) for what, _ in commands)
    for what, line in commands:
        yield [(f"  {what.ljust(width)}  ", ""), (line, "bold")]


def next_commands(detail: DeliveryDetail) -> Iterator[tuple[str, str]]:
    """The exact commands that make sense now."""
    row = detail.listed.delivery
    if row.dead:
        yield "run it again", f"holdfast replay --id {row.id}"
        if detail.alike is not None and detail.alike > 1 and row.fingerprint:
            yield (
                f"look at all {detail.alike:,}",
                f"holdfast dlq list --group {row.fingerprint} --consumer {row.consumer}",
            )
            replay = f"holdfast replay --group {row.fingerprint} --consumer {row.consumer}"
            if detail.alike > _SAMPLE:
                yield f"try {_SAMPLE} of them first", f"{replay} --limit {_SAMPLE}"
            yield f"run all {detail.alike:,} again", replay
        yield "set it aside for good", f"holdfast dlq discard {row.id}"
    elif row.status is Status.DELIVERED:
        yield "run it again although it is done", f"holdfast replay --id {row.id} --rerun"
    elif row.status in (Status.PENDING, Status.IN_FLIGHT):
        yield "stop it", f"holdfast deliveries cancel {row.id}"


def _fact(name: str, text: str, style: str = "") -> list[Part]:
    return [(f"  {name:<10}", "dim"), (text, style)]


def _heading(text: str) -> Iterator[list[Part]]:
    yield []
    yield [(text, "bold")]
