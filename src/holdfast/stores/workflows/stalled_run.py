"""Runs that do not continue on their own: blocked steps, signals that are not sent, versions that no worker knows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.workflows.names import step_consumer, step_of, undo_of
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.workflows.definition import read_definition

_OLDEST = 10_000
"""The number of runs of a workflow that are checked, oldest first."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class BlockedStep:
    """A step whose attempts are used up and whose run waits for an operator."""

    run_id: UUID
    workflow: str
    step: str
    since: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class UnsentSignal:
    """A step that has waited for a signal without a time limit."""

    run_id: UUID
    workflow: str
    step: str
    signal: str
    since: datetime


@dataclass(frozen=True, slots=True)
class UnservedRun:
    """A run of an older version whose step workers claimed and did not run. `newest` is the newest declared version."""

    run_id: UUID
    workflow: str
    version: int
    newest: int


@dataclass(frozen=True, slots=True)
class IdleRun:
    """An active run without an unfinished delivery. `manual` are its steps that wait for a trigger."""

    run_id: UUID
    workflow: str
    since: datetime
    manual: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StalledRuns:
    """The runs that do not continue on their own, by cause. Each list is bounded."""

    blocked: Sequence[BlockedStep]
    waits: Sequence[UnsentSignal]
    unserved: Sequence[UnservedRun]
    idle: Sequence[IdleRun]


@operation(reads=True)
def blocked_steps() -> Steps[list[BlockedStep]]:
    """The blocked steps of all workflows, at most 200 of each."""
    found: list[BlockedStep] = []
    versions: dict[str, list[int]] = {}
    for name, version in (yield Query("declared_workflows", limit=_SHOWN)):
        versions.setdefault(str(name), []).append(version)
    for workflow, known in versions.items():
        found += yield from _blocked(workflow, known)
    return found


@operation(reads=True)
def stalled_runs(long: timedelta) -> Steps[StalledRuns]:
    """The runs that do not continue on their own. A wait counts after `long`; the oldest runs of each workflow are read."""
    blocked: list[BlockedStep] = []
    unserved: list[UnservedRun] = []
    idle: list[IdleRun] = []
    versions: dict[str, list[int]] = {}
    for name, version in (yield Query("declared_workflows", limit=_SHOWN)):
        versions.setdefault(str(name), []).append(version)
    for workflow, (newest, *_) in versions.items():
        blocked += yield from _blocked(workflow, versions[workflow])
        rows = yield Query("postponed_runs", {"name": workflow, "version": newest}, limit=_OLDEST)
        unserved += [UnservedRun(as_uuid(id), workflow, version, newest) for id, version in rows]
        for id, version, since in (yield Query("idle_runs", {"name": workflow, "older_than": long}, limit=_OLDEST)):
            graph = yield from read_definition(workflow, version)
            manual = () if graph is None else tuple(node.name for node in graph.nodes.values() if node.manual)
            idle.append(IdleRun(as_uuid(id), workflow, aware_time(since), manual))
    waits = yield Query("open_waits", {"older_than": long}, limit=_SHOWN)
    return StalledRuns(
        blocked,
        [
            UnsentSignal(as_uuid(id), str(name), str(wait).partition("/")[0], str(signal), aware_time(since))
            for id, name, wait, signal, since in waits
        ],
        unserved,
        idle,
    )


def _blocked(workflow: str, versions: Sequence[int]) -> Steps[list[BlockedStep]]:
    steps: dict[str, None] = {}
    for version in versions:
        if (graph := (yield from read_definition(workflow, version))) is not None:
            for name in graph.nodes:
                steps |= dict.fromkeys((name, undo_of(name)))
    rows = yield Query("blocked_steps", {"consumers": [step_consumer(workflow, s) for s in steps]}, limit=_SHOWN)
    return [
        BlockedStep(as_uuid(id), workflow, step_of(str(consumer)), optional_time(since), error)
        for id, consumer, since, error in rows
    ]
