"""Projectors: position, backlog, and the state of the last rebuild."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.values.bounded_count import BoundedCount
from holdfast.ops.doctor.checks import Finding, Level
from holdfast.ops.resources.consumers import ConsumerState, consumers
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.event_log import projection
from holdfast.stores.event_log.projection import LastRun, Projector, Rebuilding


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorState:
    """A projector.

    It has run every event up to `position`, except failed ones; `newest` is the position of the newest event. A
    transaction that commits late can lower a position. `pending` is the number of waiting events, `lag` the waiting time
    of the oldest. While it is `held`, a rebuild prevents it from running.
    """

    name: str
    patterns: tuple[str, ...]
    queue: str
    position: int
    newest: int
    pending: BoundedCount
    in_flight: BoundedCount
    failed: BoundedCount
    discarded: BoundedCount
    lag: timedelta
    workers: int
    paused_at: datetime | None
    held: bool
    last_run: LastRun | None
    rebuild: Rebuilding | None


def projectors() -> TaskSteps[list[ProjectorState]]:
    """All projectors that ever registered, by name."""
    known = yield from transact(projection.projectors())
    if not known:
        return []
    states: dict[str, ConsumerState] = {one.name: one for one in (yield from consumers())}
    newest = yield from transact(projection.newest_position())
    found = []
    for one in known:
        state = states[one.name]
        oldest = yield from transact(projection.oldest_unfinished(one.name))
        found.append(
            ProjectorState(
                name=one.name,
                patterns=state.patterns,
                queue=state.queue,
                position=newest if oldest is None else oldest - 1,
                newest=newest,
                pending=state.pending,
                in_flight=state.in_flight,
                failed=state.failed,
                discarded=state.discarded,
                lag=state.lag,
                workers=state.workers,
                paused_at=state.paused_at,
                held=one.held,
                last_run=(yield from transact(projection.last_run(one.name))),
                rebuild=one.rebuild,
            )
        )
    return found


def check_projectors(found: Iterable[Projector]) -> list[Finding]:
    """Findings about rebuilds that did not complete."""
    findings = []
    for one in found:
        rebuild = one.rebuild
        if rebuild is None or rebuild.state == "done" or rebuild.alive:
            continue
        how = "was interrupted" if rebuild.state == "running" else "stopped"
        message = f"the rebuild of projector {one.name} {how} after {rebuild.applied:,} events"
        if one.held:
            message += "; its result is incomplete and is not updated"
        remedy = f"`holdfast projectors rebuild {one.name}` starts again, --resume continues with the same handler"
        findings.append(Finding("projectors", Level.FAIL if one.held else Level.WARN, message, remedy))
    return findings
