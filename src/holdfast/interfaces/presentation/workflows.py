"""Runs of workflows in words: what a step does, the timeline of a run, and the commands that apply next."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.values.bounded_count import BoundedCount
from holdfast.core.workflows.state import StepState
from holdfast.interfaces.presentation.formatting import clock, many, rough
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.stores.workflows.query import RememberedRow, RunRecord, StepRecord
from holdfast.stores.workflows.run import RunStatus

_LONG = timedelta(days=3650)
_ITEMS = 20
_PAYLOAD = "--payload '<JSON>'"
"""A placeholder that is not JSON, so that the command is refused until it is replaced: a wrong payload fails the step."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run. `tone` is a state of a step or of the run, `signal` or `audit`."""

    at: datetime
    tone: str
    title: str
    text: str = ""


def step_label(step: StepRecord) -> str:
    """The name of a step, with the number of its item in a map."""
    return step.name if step.item_of is None else f"{step.name} #{step.occurrence} of {step.item_of}"


def shown_steps(detail: WorkflowRunDetail) -> list[StepRecord]:
    """The steps of a run with at most 20 items of maps, those that failed or are not done first."""
    items = [step for step in detail.steps if step.item_of is not None]
    items.sort(key=lambda step: step.state is StepState.DONE)
    kept = {step.delivery_id for step in items[:_ITEMS]}
    return [step for step in detail.steps if step.item_of is None or step.delivery_id in kept]


def item_notes(detail: WorkflowRunDetail) -> list[str]:
    """The items of each map by state, for example `resize of upload: 1,498 done, 2 retry wait`."""
    found = []
    for one in detail.items:
        calls = f", call {one.call + 1}" if one.call else ""
        states = ", ".join(f"{BoundedCount(count, one.or_more):,} {word(state)}" for state, count in one.states.items())
        found.append(f"{one.step} of {one.item_of}{calls}: {states}")
    return found


def duration(begin: datetime | None, end: datetime | None) -> str:
    """The time between two moments; empty if one is missing."""
    if begin is None or end is None:
        return ""
    took = max(timedelta(0), end - begin)
    return f"{took.total_seconds() * 1000:.0f} ms" if took < timedelta(seconds=10) else rough(took)


def forked_from(run: RunRecord) -> str:
    """The run and the step that a run was forked from; empty if it is not a fork."""
    return f"from run {run.forked_from} at step {run.forked_step}" if run.forked_from else ""


def fork_steps(detail: WorkflowRunDetail) -> list[str]:
    """The steps that a fork of a run can begin with: all steps before them are done."""
    if not detail.graph or detail.listed.run.status is RunStatus.COMPENSATING:
        return []
    done = {step.name for step in detail.steps if step.state is StepState.DONE}
    return [node.name for node in detail.graph if not node.mapped and done.issuperset(node.after)]


def step_note(detail: WorkflowRunDetail, step: StepRecord) -> str:
    """What a step is waiting for, or why it ended, in a few words."""
    match step.state:
        case StepState.WAITING:
            return "; ".join(_wait(one) for one in _open_waits(detail, step)) or "suspended"
        case StepState.RETRY_WAIT if step.due_at is not None:
            return f"next attempt {_time(step.due_at, detail.now)}"
        case StepState.IDLE:
            return _idle(detail, step)
        case StepState.QUEUED if step.due_at is not None and step.due_at > detail.now:
            return f"starts {_time(step.due_at, detail.now)}"
        case StepState.DONE if step.delivery_id is None and detail.listed.run.forked_from is not None:
            return "copied from the run that was forked"
        case _:
            return ""


def timeline(detail: WorkflowRunDetail) -> list[RunEvent]:
    """The events of a run, oldest first."""
    run = detail.listed.run
    key = f" with key {run.key}" if run.key else ""
    fork = f", forked {forked_from(run)}" if run.forked_from else ""
    found = [RunEvent(run.started_at, "started", "Started", f"version {run.version}{key}{fork}")]
    for step in shown_steps(detail):
        name = step_label(step)
        if step.started_at is not None and step.ended_at is None:
            found.append(RunEvent(step.started_at, step.state.value, f"{name}: last claimed", step_note(detail, step)))
        if step.ended_at is not None:
            took = duration(step.started_at, step.ended_at)
            more = [f"took {took}"] if took else []
            more += [many(step.attempts, "attempt")] if step.attempts > 1 else []
            more += [step.last_error] if step.last_error and step.state is not StepState.DONE else []
            title = f"{name}: {word(step.state.value)}"
            found.append(RunEvent(step.ended_at, step.state.value, title, ", ".join(more)))
    found += [
        RunEvent(one.done_at, "waiting" if ":" in one.name else "done", _ended(one))
        for one in detail.remembered
        if one.done_at is not None
    ]
    for signal in detail.signals:
        used = f"received by {signal.consumed_by.partition('/')[0]}" if signal.consumed_by else "not received yet"
        found.append(RunEvent(signal.sent_at, "signal", f"Signal {signal.name}", used))
    found += [
        RunEvent(entry.at, "audit", f"{entry.action.capitalize()} by {entry.actor}", entry.reason or "")
        for entry in detail.audit
    ]
    if run.ended_at is not None:
        found.append(RunEvent(run.ended_at, run.status.value, f"Run {run.status.value}", run.reason or ""))
    return sorted(found, key=lambda one: one.at)


def next_commands(detail: WorkflowRunDetail) -> Iterator[tuple[str, str]]:
    """The commands that apply to the state of a run, each with its label."""
    run = detail.listed.run
    for step in shown_steps(detail):
        if step.state in (StepState.BLOCKED, StepState.DEAD, StepState.RETRY_WAIT):
            yield f"see the error of {step_label(step)}", f"holdfast deliveries show {step.delivery_id}"
    if not run.status.is_active:
        if run.status is not RunStatus.DONE:
            yield "retry the steps that failed", f"holdfast workflows retry {run.id}"
        return
    if detail.listed.is_blocked:
        yield "retry the blocked steps", f"holdfast workflows retry {run.id}"
    for signal in dict.fromkeys(one.signal for one in detail.remembered if one.signal and one.done_at is None):
        yield f"send signal {signal}", f"holdfast workflows signal {run.id} {shlex.quote(str(signal))} {_PAYLOAD}"
    for name in waiting_for_trigger(detail):
        yield f"trigger {name}", f"holdfast workflows trigger {run.id} {name}"
    yield "cancel it", f"holdfast workflows cancel {run.id}"


def waiting_for_trigger(detail: WorkflowRunDetail) -> list[str]:
    """The manual steps that have not started."""
    idle = {step.name for step in detail.steps if step.state is StepState.IDLE}
    return [node.name for node in detail.graph if node.manual and node.name in idle]


def word(state: str) -> str:
    """A state as a word of a sentence."""
    return state.replace("_", " ")


def _open_waits(detail: WorkflowRunDetail, step: StepRecord) -> list[RememberedRow]:
    return [one for one in detail.remembered if one.done_at is None and one.name.startswith(f"{step.name}/")]


def _wait(one: RememberedRow) -> str:
    kind, _, name = one.name.rpartition("/")[2].partition(":")
    until = "" if one.wake_at is None else f" until {clock(one.wake_at)}"
    match kind:
        case "wait":
            return f"waits for signal {name}{until}"
        case "sleep":
            return f"sleeps{until}"
        case "map":
            left = "" if one.waiting is None else f" {one.waiting:,}"
            return f"waits for{left} items of {name.partition('#')[0]}"
        case "child":
            return f"waits for child run of {name}"
        case _:
            return f"waits for {one.name}"


def _ended(one: RememberedRow) -> str:
    step, _, what = one.name.partition("/")
    kind, colon, name = what.partition(":")
    if not colon:
        return f"{step}: remembered {what}"
    if kind == "deadline" and one.wake_at is not None:
        return f"{step}: must be done by {clock(one.wake_at)}"
    how = {"signal": "got its signal", "timeout": "timed out"}.get(one.outcome or "", "ended")
    return f"{step}: sleep ended" if kind == "sleep" else f"{step}: {kind} {name.partition('#')[0]} {how}"


def _idle(detail: WorkflowRunDetail, step: StepRecord) -> str:
    node = next((one for one in detail.graph if one.name == step.name), None)
    if node is None or not detail.listed.run.status.is_active:
        return ""
    done = {one.name for one in detail.steps if one.state is StepState.DONE}
    left = [name for name in node.after if name not in done]
    if left:
        return f"after {', '.join(left)}"
    return "waits for its trigger" if node.manual else ""


def _time(at: datetime, now: datetime) -> str:
    return f"in {rough(at - now)}" if now < at < now + _LONG else "now" if at <= now else "when something wakes it"
