"""Runs: their start, what a claimed step needs to know about them, and their end."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import NotFound, TransactionConflict
from holdfast.core.identity import delivery_range
from holdfast.core.message import NewMessage
from holdfast.core.workflows.names import COMMANDS
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.publish import Published, addressed_batches, find_first
from holdfast.stores.operation import ErrorCondition, Query, Steps, columns, operation

_RUN = (
    "run_id",
    "name",
    "version",
    "waiting",
    "run_generation",
    "parent_run",
    "parent_wait",
    "parent_occurrence",
    "deadline",
)
_LOADED = ("run_id", "step", "results", "delivery_id", "mapped", "n")
_PRUNED = 500
_SERIALIZATION_FAILURE = ErrorCondition("40001")


class RunStatus(StrEnum):
    """The states of a run. A run with a blocked step is running."""

    RUNNING = "running"
    COMPENSATING = "compensating"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_active(self) -> bool:
        """Whether its steps may still run."""
        return self in (RunStatus.RUNNING, RunStatus.COMPENSATING)


_STATUSES = {status.value: status for status in RunStatus}
"""A lookup in this dict takes a tenth of the time of the constructor of the class."""


class Parent(NamedTuple):
    """The wait of a parent's step that the end of a child run resolves."""

    run_id: UUID
    wait: str
    occurrence: int


class NewRun(NamedTuple):
    """A run to start: its message, addressed to its first steps, and the number of its last steps."""

    message: NewMessage
    name: str
    version: int
    waiting: int
    parent: Parent | None = None
    deadline: timedelta | None = None


class StepRow(NamedTuple):
    """A row of `workflow_step`: a result, a memo, or a wait. `result` and `item` are JSON text."""

    name: str
    occurrence: int
    result: str | None
    outcome: str | None
    done: bool
    item: str | None
    next: str | None
    version: int | None = None
    """The version of the workflow whose form the result has; None if it is that of the run."""


class LoadedRun(NamedTuple):
    """The run of a claimed step as it was before the step started, with the rows that the step needs."""

    name: str
    version: int
    status: RunStatus
    signals: int
    epoch: int
    rows: tuple[StepRow, ...]


class StepRequest(NamedTuple):
    """A claimed step, and the steps whose results it takes as a JSON array."""

    run_id: UUID
    step: str
    results: str
    delivery_id: UUID
    mapped: bool = False
    """Whether it is an item of a map."""


class LockedRun(NamedTuple):
    """A run under its lock, with the source and the generation of its start message."""

    name: str
    version: int
    status: RunStatus
    epoch: int
    parent_run: UUID | None
    source: str
    generation: int


class StepResult(NamedTuple):
    """A stored result as JSON text. `version` is that of `StepRow`."""

    text: str | None
    version: int | None


class RunOutcome(NamedTuple):
    """The state of a run, and the results of its completed steps."""

    name: str
    version: int
    status: RunStatus
    reason: str | None
    results: Mapping[str, StepResult]


@operation
def start_runs(runs: Sequence[NewRun]) -> Steps[list[Published]]:
    """Stores each run with its message and the deliveries of its first steps; returns them in the given order.

    A repeated key stores nothing and returns the first run; with another payload it raises `KeyConflict`. A transaction
    with an older snapshot that meets a concurrent start of the same key raises `TransactionConflict`.
    """
    stored: dict[UUID, Published] = {}
    while missing := [run for run in runs if run.message.id not in stored]:
        ordered = sorted(missing, key=lambda run: run.message.key or "")
        rows = yield Query(
            "start_runs",
            batches={
                **addressed_batches([run.message for run in ordered]),
                "runs": columns(_RUN, [_row(run) for run in ordered]),
            },
            raises=(_SERIALIZATION_FAILURE, lambda: TransactionConflict("start a run")),
        )
        created = {as_uuid(row[0]) for row in rows}
        stored.update((id, Published(id, True)) for id in created)
        if late := [run.message for run in missing if run.message.id not in created]:
            stored.update((yield from find_first(late)))
    return [stored[run.message.id] for run in runs]


@operation(single=True, hot=True)
def load_steps(wanted: Sequence[StepRequest]) -> Steps[list[LoadedRun | None]]:
    """The data that each claimed step needs, in the given order; None if its run does not exist."""
    batch = [(*one, n) for n, one in enumerate(wanted, 1)]
    rows = yield Query("load_steps", batches={"steps": columns(_LOADED, batch)})
    runs: dict[int, tuple[str, int, RunStatus, int, int]] = {}
    known: list[list[StepRow]] = [[] for _ in wanted]
    for n, name, version, status, signals, epoch, step, occurrence, result, outcome, done, item, next, form in rows:
        if name is not None:
            runs[n] = str(name), version, _STATUSES[status], signals, epoch
        if step is not None:
            known[n - 1].append(StepRow(str(step), occurrence, result, outcome, bool(done), item, next, form))
    return [None if (run := runs.get(n)) is None else LoadedRun(*run, tuple(found)) for n, found in enumerate(known, 1)]


@operation(reads=True)
def run_states(ids: Sequence[UUID]) -> Steps[dict[UUID, RunStatus]]:
    """The status of each of these runs that exists."""
    rows = yield Query("run_states", {"ids": list(ids)})
    return {as_uuid(id): RunStatus(status) for id, status in rows}


@operation(reads=True)
def active_runs(ids: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """The runs that have not ended; the others have ended or do not exist."""
    rows = yield Query("run_states", {"ids": list(ids)})
    return frozenset(as_uuid(id) for id, status in rows if RunStatus(status).is_active)


@operation(reads=True)
def run_outcome(run_id: UUID) -> Steps[RunOutcome]:
    """The state of a run and the results of its completed steps; raises `NotFound` for an unknown run."""
    rows = yield Query("run_result", {"run_id": run_id})
    if not rows:
        raise NotFound("run", run_id)
    name, version, status, reason = rows[0][:4]
    results = {str(step): StepResult(result, form) for *_, step, result, form in rows if step is not None}
    return RunOutcome(str(name), version, RunStatus(status), reason, results)


@operation(reads=True)
def child_of(wait: Parent) -> Steps[UUID | None]:
    """The newest child run of a wait that is active or done."""
    rows = yield Query("child_of", wait._asdict())
    return as_uuid(rows[0][0]) if rows else None


def lock_run(run_id: UUID) -> Steps[LockedRun | None]:
    """Locks a run until the end of the transaction; None if it does not exist."""
    rows = yield Query("lock_run", {"run_id": run_id})
    if not rows:
        return None
    name, version, status, epoch, parent, source, generation = rows[0]
    parent_run = None if parent is None else as_uuid(parent)
    return LockedRun(str(name), version, RunStatus(status), epoch, parent_run, str(source), generation)


def step_marks(run_id: UUID) -> Steps[dict[str, bool]]:
    """The rows of a run's steps, triggers and compensation, each with whether it is done."""
    return {str(name): bool(done) for name, done in (yield Query("step_marks", {"run_id": run_id}))}


def discard_steps(run_id: UUID, reason: str, *, running: bool) -> Query:
    """Discards the pending deliveries of a run, and with `running` those in flight too. The caller holds the run's lock."""
    low, high = delivery_range(run_id)
    return Query(
        "discard_steps",
        {"run_id": run_id, "low": low, "high": high, "reason": reason, "running": running, "commands": COMMANDS},
    )


@operation
def prune_runs(cursor: UUID, ceiling: UUID, older_than: timedelta) -> Steps[tuple[int, UUID | None]]:
    """Removes a batch of ended runs with their steps and signals; returns their number and the next cursor, if any.

    A run stays while its parent is active or a delivery of it is unfinished or a dead letter. Its message and deliveries
    stay until then, and are pruned like all others afterwards.
    """
    rows = yield Query("prune_runs", {"cursor": cursor, "ceiling": ceiling, "older_than": older_than}, limit=_PRUNED)
    removed = sorted(as_uuid(row[0]) for row in rows)
    return len(removed), removed[-1] if len(removed) == _PRUNED else None


def _row(run: NewRun) -> tuple[object, ...]:
    parent = run.parent or (None, None, None)
    return run.message.id, run.name, run.version, run.waiting, run.message.generation, *parent, run.deadline
