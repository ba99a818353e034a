"""Checks of workflow runs that do not continue on their own."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from holdfast.core.values.duration import format_duration
from holdfast.core.values.text import truncated
from holdfast.ops.doctor.checks import Finding, Level
from holdfast.stores.workflows.stalled_run import BlockedStep, IdleRun, StalledRuns, UnsentSignal, UnservedRun

LONG = timedelta(days=1)
"""A run that has waited for longer is a finding."""
_CHECK = "workflows"

T = TypeVar("T", BlockedStep, UnsentSignal, UnservedRun, IdleRun)


def check_workflows(found: StalledRuns, now: datetime) -> Iterator[Finding]:
    """One finding per workflow and reason, with the run that has waited for the longest time."""
    for steps in _by_workflow(found.blocked).values():
        yield Finding(
            _CHECK,
            Level.WARN,
            f"{_runs(steps)} for an operator at {_names(step.step for step in steps)}: {_text(steps[0].error)}",
            f"fix the cause, then run `holdfast workflows retry {steps[0].run_id}`",
        )
    for waits in _by_workflow(found.waits).values():
        first = waits[0]
        yield Finding(
            _CHECK,
            Level.WARN,
            f"{_runs(waits)} without a time limit for {_names(wait.signal for wait in waits)}, the oldest for "
            f"{_age(first.since, now)}",
            f"run `holdfast workflows signal {first.run_id} {first.signal}`, or cancel the run",
        )
    for runs in _by_workflow(found.unserved).values():
        first_run = runs[0]
        yield Finding(
            _CHECK,
            Level.FAIL,
            f"{_runs(runs)}: no live worker knows version {first_run.version}",
            f"start a worker with it, or name it in compatible_with= of version {first_run.newest}",
        )
    for idle in _by_workflow(found.idle).values():
        run = idle[0]
        if run.manual:
            message = f"{_runs(idle)} for a trigger for {_age(run.since, now)}"
            remedy = f"run `holdfast workflows trigger {run.run_id} {run.manual[0]}`, or cancel the run"
            yield Finding(_CHECK, Level.WARN, message, remedy)
        else:
            message = f"{_runs(idle)} without an unfinished step for {_age(run.since, now)}"
            remedy = f"run `holdfast workflows show {run.run_id}`, then retry it from a step or cancel it"
            yield Finding(_CHECK, Level.FAIL, message, remedy)


def _by_workflow(items: Sequence[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for one in items:
        found.setdefault(one.workflow, []).append(one)
    return found


def _runs(items: Sequence[T]) -> str:
    count = len({one.run_id for one in items})
    verb = "run of {} waits" if count == 1 else "runs of {} wait"
    return f"{count:,} {verb.format(items[0].workflow)}"


def _names(names: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _text(error: str | None) -> str:
    return truncated(" ".join((error or "no error was recorded").split()), 120)


def _age(at: datetime, now: datetime) -> str:
    seconds = max(0, int((now - at).total_seconds()))
    return format_duration(timedelta(seconds=seconds - seconds % 60))
