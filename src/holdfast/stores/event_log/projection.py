"""Projectors: their state, and the steps of a rebuild, each fenced by the position of the rebuild.

At its end a rebuild holds the projector: no worker claims its deliveries. Each claim checks the hold, so a claim that
began before the hold can only get rows that existed before it. The rebuild locks those rows before it checks that no
delivery runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import RebuildLost, Refused
from holdfast.core.identity import delivery_id
from holdfast.stores.admin.actions import audited, replay
from holdfast.stores.dialect import as_uuid
from holdfast.stores.errors import LEASE_LOST
from holdfast.stores.event_log.log import START, Cursor
from holdfast.stores.event_log.position import PositionLease, Reader, take_position
from holdfast.stores.messages.backfill import absent
from holdfast.stores.messages.publish import insert_absent
from holdfast.stores.operation import Operation, Query, Row, Steps, operation
from holdfast.stores.row import row_reader

UNTIL_ENDED = timedelta(days=36_500)
"""The hold of a rebuild in place: workers must not use a partial result, even if the rebuild process dies."""

# Ids begin with the millisecond of their creation, so the oldest event is among the first ids.
_OLDEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilding:
    """The state of a projector's last rebuild. `online`: it builds a second result while the live one is in use.

    `state` is running, stopped or done; a running one that is not `alive` was killed. `total` is an estimate.
    """

    state: str
    alive: bool
    online: bool
    applied: int
    total: int | None
    by: str
    reason: str | None
    error: str | None
    started_at: datetime
    updated_at: datetime | None
    ended_at: datetime | None


class Projector(NamedTuple):
    """A projector in the store. `held`: a rebuild prevents claims of its deliveries."""

    name: str
    held: bool
    rebuild: Rebuilding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The newest recorded run of a consumer."""

    delivery_id: UUID
    attempt: int
    outcome: str
    error_type: str | None
    error: str | None
    started_at: datetime | None
    completed_at: datetime


_rebuilding = row_reader(Rebuilding)
_last_run = row_reader(LastRun)


class RebuildStep(NamedTuple):
    """A step of a rebuild from one log position to the next, under the fence of its owner."""

    held: PositionLease
    before: Cursor
    reached: Cursor


class RebuildResult(NamedTuple):
    """The number of deliveries that the end of a rebuild marked done, and of dead letters that it resolved."""

    done: int
    resolved: int


class ProjectorBusy(Exception):
    """A worker still runs deliveries of the held projector, from a claim that began before the hold."""


@operation
def with_projectors(registration: Operation[bool], names: Sequence[str]) -> Steps[bool]:
    """A registration that also declares projectors; existing ones stay unchanged."""
    changed = yield from registration.start()
    if names:
        for name in sorted(set(names) - {str(row[0]) for row in (yield Query("projectors"))}):
            yield Query("declare_projector", {"name": name})
    return changed


@operation(reads=True)
def projectors() -> Steps[list[Projector]]:
    """All declared projectors, by name."""
    return [_projector(row) for row in (yield Query("projectors"))]


@operation(reads=True)
def oldest_unfinished(name: str) -> Steps[int | None]:
    """The position of the oldest event that a projector has not run yet, if any."""
    ((position,),) = yield Query("projector_progress", {"name": name}, limit=_OLDEST)
    return None if position is None else int(position)


@operation(reads=True)
def newest_position() -> Steps[int]:
    """The position of the newest event; 0 without events."""
    rows = yield Query("newest_position")
    return int(rows[0][0]) if rows else 0


@operation(reads=True)
def last_run(consumer: str) -> Steps[LastRun | None]:
    """The newest recorded run of a consumer."""
    rows = yield Query("last_run", {"name": consumer})
    return _last_run(rows[0]) if rows else None


@operation
def begin_rebuild(name: str, owner: str, lease: timedelta, actor: str) -> Steps[PositionLease]:
    """Makes `owner` the owner of a projector's rebuild; raises `Refused` while the lease of another owner is valid."""
    held = yield from take_position(Reader.REBUILD, name, owner, lease).start()
    if held is None:
        found = {one.name: one.rebuild for one in (_projector(row) for row in (yield Query("projectors")))}[name]
        by = actor if found is None else found.by
        raise Refused(
            "rebuild", f"projector {name}", f"already being rebuilt by {by}", "wait for that rebuild or stop it"
        )
    return held


def started(
    held: PositionLease, *, online: bool, resume: bool, total: int, actor: str, reason: str | None
) -> Steps[tuple[Cursor, int]]:
    """Records the start of a rebuild, at the beginning of the log or at the position of the last rebuild.

    A rebuild in place holds its projector from here until it ends, even if its process dies. A run whose lease has expired
    cannot complete its delivery any more.
    """
    if not resume and not (yield Query("restart_rebuild", {**_fenced(held), "cursor": str(START)})):
        raise RebuildLost(held.name)
    values = {"name": held.name, "online": online, "actor": actor, "reason": reason, "total": total}
    yield Query("note_rebuild", values)
    if not online:
        yield Query("hold_projector", {**_fenced(held), "hold": UNTIL_ENDED})
        # Their workers may only be suspended. What they complete from now on would be applied twice.
        yield Query("fence_expired_runs", {"name": held.name})
    detail = {"online": online, "resumed": resume}
    yield audited(actor, "rebuild", "projector", held.name, reason, detail)
    return (yield from _cursor(held))


@operation
def checkpoint(place: RebuildStep, lease: timedelta, idle_timeout: timedelta) -> Steps[None]:
    """Stores the next position of a rebuild in the caller's transaction. If another owner took over, or this step was
    stored before, the database raises and rolls back that transaction."""
    yield Query(
        "rebuild_checkpoint",
        {
            **_fenced(place.held),
            "before": str(place.before),
            "reached": str(place.reached),
            "lease": lease,
            "idle_timeout_ms": round(idle_timeout.total_seconds() * 1000),
        },
        raises=(LEASE_LOST, lambda: RebuildLost(place.held.name)),
    )


@operation(reads=True)
def reached(held: PositionLease) -> Steps[tuple[Cursor, int]]:
    """The position of a rebuild and the number of applied events; raises `RebuildLost` if another owner took over."""
    return (yield from _cursor(held))


@operation
def hold(held: PositionLease, lease: timedelta) -> Steps[None]:
    """Prevents claims of the projector's deliveries for `lease`; current runs continue."""
    if not (yield Query("hold_projector", {**_fenced(held), "hold": lease})):
        raise RebuildLost(held.name)


@operation
def prolong_hold(held: PositionLease, lease: timedelta) -> Steps[bool]:
    """Renews a hold; False if it has expired."""
    return bool((yield Query("prolong_hold", {**_fenced(held), "hold": lease})))


@operation(single=True)
def release(held: PositionLease) -> Steps[None]:
    """Ends the hold: the projector's deliveries can be claimed again."""
    yield Query("release_projector", _fenced(held))


@operation(reads=True)
def running_of(consumer: str) -> Steps[int]:
    """The number of a consumer's deliveries that live workers run."""
    return int((yield Query("running_of", {"name": consumer}))[0][0])


def assert_idle(held: PositionLease) -> Steps[None]:
    """Ensures until the end of the transaction that no worker runs the held projector; otherwise `ProjectorBusy`."""
    if not (yield Query("hold_stands", _fenced(held))):
        raise RebuildLost(held.name)
    yield Query("lock_unfinished", {"name": held.name})
    ((running,),) = yield Query("running_of", {"name": held.name})
    if running:
        raise ProjectorBusy


def ended(
    held: PositionLease, cursor: Cursor, applied: int, skipped: Iterable[UUID], actor: str, reason: str | None
) -> Steps[RebuildResult]:
    """Marks the pending and dead deliveries of applied events done and ends the rebuild; the last step of its
    transaction.

    Deliveries of skipped messages stay unchanged.
    """
    values = {"skipped": sorted(skipped), "name": held.name, "done": cursor.done, "reached": cursor.position}
    for mark_tx, mark_position in (yield Query("lowest_mark", {"name": held.name})):
        marks = {"mark_tx": mark_tx, "mark_position": mark_position}
        missing = yield Query("unknown_to_rebuild", {**values, **marks})
        rows = sorted((absent(held.name, row) for row in missing), key=lambda row: str(row[0]))
        yield insert_absent(rows)
    dead = [as_uuid(row[0]) for row in (yield Query("dead_before_rebuild", values))]
    if dead:
        # As in a replay: the failed cycle moves to the history, and the audit records the actor.
        yield from replay(
            dead, actor, f"resolved by a rebuild of {held.name}" + (f": {reason}" if reason else "")
        ).start()
    ((done,),) = yield Query("mark_rebuilt", values)
    detail = {"applied": applied, "deliveries": int(done), "dead_letters": len(dead)}
    yield audited(actor, "rebuilt", "projector", held.name, reason, detail)
    if not (yield Query("end_rebuild", {**_fenced(held), "applied": applied})):
        raise RebuildLost(held.name)
    yield _released(held)
    return RebuildResult(int(done), len(dead))


@operation
def stop_rebuild(held: PositionLease, applied: int, error: str) -> Steps[None]:
    """Records why a rebuild stopped early; another one may begin immediately."""
    yield Query("stop_rebuild", {**_fenced(held), "applied": applied, "error": error})
    yield _released(held)


@operation(reads=True)
def set_aside(consumer: str, messages: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """The messages that an operator or the handler has discarded for this consumer."""
    ids = {delivery_id(message, consumer): message for message in messages}
    rows = yield Query("discarded_among", {"ids": list(ids)})
    return frozenset(ids[as_uuid(row[0])] for row in rows)


def _fenced(held: PositionLease) -> dict[str, object]:
    return {"name": held.name, "fence": held.fence}


def _released(held: PositionLease) -> Query:
    return Query("release_position", {"kind": held.kind.value, "owner": held.owner, **_fenced(held)})


def _cursor(held: PositionLease) -> Steps[tuple[Cursor, int]]:
    for cursor, passed in (yield Query("rebuild_cursor", _fenced(held))):
        return Cursor.parse(str(cursor)), int(passed)
    raise RebuildLost(held.name)


def _projector(row: Row) -> Projector:
    name, held, *rebuild = row
    return Projector(name, bool(held), None if rebuild[0] is None else _rebuilding(rebuild))
