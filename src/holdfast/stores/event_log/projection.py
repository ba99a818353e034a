"""Projectors: how each of them stands, and the steps of a rebuild, each fenced by the position of that rebuild.

A rebuild holds a projector while it takes over: nobody claims its deliveries then. Every claim looks whether its
consumer is held, so a claim that began before the hold can only take rows that were there before it; those are locked
before it is decided that nobody is at work.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import RebuildLost, Refused
from holdfast.core.identity import delivery_id
from holdfast.stores.admin.actions import audited, replay
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.event_log.log import START, Cursor
from holdfast.stores.event_log.position import PositionLease, Reader, take_position
from holdfast.stores.messages.backfill import absent
from holdfast.stores.messages.publish import insert_absent
from holdfast.stores.operation import Operation, Query, Row, Steps, operation

UNTIL_ENDED = timedelta(days=36_500)
"""How long a rebuild in place holds its projector: what is half built must not be worked on, whoever died."""

# Ids begin with the millisecond in which they were made, so the oldest event is among the first of them.
_OLDEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilding:
    """How a projector's last rebuild stands. `online` says that it builds beside the live result.

    `state` is running, stopped or done; one that is running without being `alive` was killed. `total` is an estimate.
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
    """A projector as the store knows it. `held` says that a rebuild keeps its deliveries from being claimed."""

    name: str
    held: bool
    rebuild: Rebuilding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The newest run of a consumer that was recorded."""

    delivery_id: UUID
    attempt: int
    outcome: str
    error_type: str | None
    error: str | None
    started_at: datetime | None
    completed_at: datetime


class RebuildStep(NamedTuple):
    """A step of a rebuild: from one place in the log to the next, under the fence of its owner."""

    held: PositionLease
    before: Cursor
    reached: Cursor


class RebuildResult(NamedTuple):
    """What the end of a rebuild did to deliveries: how many it made done, and how many dead letters it resolved."""

    done: int
    resolved: int


class ProjectorBusy(Exception):
    """Somebody runs deliveries of the projector, although it is held: a claim that began before."""


@operation
def with_projectors(registration: Operation[bool], names: Sequence[str]) -> Steps[bool]:
    """A registration that makes projectors known, too; those that are known change nothing."""
    changed = yield from registration.start()
    if names:
        for name in sorted(set(names) - {str(row[0]) for row in (yield Query("projectors"))}):
            yield Query("declare_projector", {"name": name})
    return changed


@operation(reads=True)
def projectors() -> Steps[list[Projector]]:
    """Every projector that was declared, by name."""
    return [_projector(row) for row in (yield Query("projectors"))]


@operation(reads=True)
def oldest_unfinished(name: str) -> Steps[int | None]:
    """The place of the oldest event that a projector has still to run, if there is one."""
    ((position,),) = yield Query("projector_progress", {"name": name}, limit=_OLDEST)
    return None if position is None else int(position)


@operation(reads=True)
def newest_position() -> Steps[int]:
    """The place of the newest event; 0 when there is none."""
    rows = yield Query("newest_position")
    return int(rows[0][0]) if rows else 0


@operation(reads=True)
def last_run(consumer: str) -> Steps[LastRun | None]:
    """The newest recorded run of a consumer."""
    for id, attempt, outcome, error_type, error, started, completed in (yield Query("last_run", {"name": consumer})):
        return LastRun(
            delivery_id=as_uuid(id),
            attempt=int(attempt),
            outcome=str(outcome),
            error_type=error_type,
            error=error,
            started_at=optional_time(started),
            completed_at=aware_time(completed),
        )
    return None


@operation
def begin_rebuild(name: str, owner: str, lease: timedelta, actor: str) -> Steps[PositionLease]:
    """Makes `owner` the one who rebuilds a projector; `Refused` while another's lease holds."""
    held = yield from take_position(Reader.REBUILD, name, owner, lease).start()
    if held is None:
        found = {one.name: one.rebuild for one in (_projector(row) for row in (yield Query("projectors")))}[name]
        by = actor if found is None else found.by
        raise Refused(
            "rebuild", f"projector {name}", f"being rebuilt already, asked for by {by}", "let that one end or stop it"
        )
    return held


def started(
    held: PositionLease, *, online: bool, resume: bool, total: int, actor: str, reason: str | None
) -> Steps[tuple[Cursor, int]]:
    """Notes a rebuild under way and where it begins: at the beginning, or where the last one got to.

    One that is not online holds its projector from here to its end, whoever dies.
    """
    if not resume and not (yield Query("restart_rebuild", {**_fenced(held), "cursor": str(START)})):
        raise RebuildLost(held.name)
    values = {"name": held.name, "online": online, "actor": actor, "reason": reason, "total": total}
    yield Query("note_rebuild", values)
    if not online:
        yield Query("hold_projector", {**_fenced(held), "hold": UNTIL_ENDED})
    detail = {"online": online, "resumed": resume}
    yield audited(actor, "rebuild", "projector", held.name, reason, detail)
    return (yield from _cursor(held))


@operation
def checkpoint(place: RebuildStep, lease: timedelta, idle_timeout: timedelta) -> Steps[None]:
    """Moves a rebuild on in the caller's transaction. When it was taken over, or this step was made before, the
    database raises and undoes that transaction."""
    yield Query(
        "rebuild_checkpoint",
        {
            **_fenced(place.held),
            "before": str(place.before),
            "reached": str(place.reached),
            "lease": lease,
            "idle_timeout_ms": round(idle_timeout.total_seconds() * 1000),
        },
    )


@operation(reads=True)
def reached(held: PositionLease) -> Steps[tuple[Cursor, int]]:
    """How far a rebuild has come, and how many events it has applied; `RebuildLost` when it was taken over."""
    return (yield from _cursor(held))


@operation
def hold(held: PositionLease, lease: timedelta) -> Steps[None]:
    """Keeps everybody from claiming the projector's deliveries for so long; what runs goes on."""
    if not (yield Query("hold_projector", {**_fenced(held), "hold": lease})):
        raise RebuildLost(held.name)


@operation
def prolong_hold(held: PositionLease, lease: timedelta) -> Steps[bool]:
    """Prolongs a hold; false when it lapsed."""
    return bool((yield Query("prolong_hold", {**_fenced(held), "hold": lease})))


@operation(single=True)
def release(held: PositionLease) -> Steps[None]:
    """Lets the projector's deliveries be claimed again."""
    yield Query("release_projector", _fenced(held))


@operation(reads=True)
def running_of(consumer: str) -> Steps[int]:
    """How many deliveries of a consumer somebody runs who is alive."""
    return int((yield Query("running_of", {"name": consumer}))[0][0])


def assert_idle(held: PositionLease) -> Steps[None]:
    """Makes sure, until the transaction ends, that nobody works for a projector that is held: else `ProjectorBusy`."""
    if not (yield Query("hold_stands", _fenced(held))):
        raise RebuildLost(held.name)
    yield Query("lock_unfinished", {"name": held.name})
    ((running,),) = yield Query("running_of", {"name": held.name})
    if running:
        raise ProjectorBusy


def ended(
    held: PositionLease, cursor: Cursor, applied: int, skipped: Iterable[UUID], actor: str, reason: str | None
) -> Steps[RebuildResult]:
    """Makes done what the rebuild applied, waiting and dead, and ends it; the last step of its transaction.

    Deliveries of the messages that it skipped stay as they are.
    """
    values = {"skipped": sorted(skipped), "name": held.name, "done": cursor.done, "reached": cursor.position}
    for mark_tx, mark_position in (yield Query("lowest_mark", {"name": held.name})):
        marks = {"mark_tx": mark_tx, "mark_position": mark_position}
        missing = yield Query("unknown_to_rebuild", {**values, **marks})
        rows = sorted((absent(held.name, row) for row in missing), key=lambda row: str(row[0]))
        yield insert_absent(rows)
    dead = [as_uuid(row[0]) for row in (yield Query("dead_before_rebuild", values))]
    if dead:
        # Its failed cycle goes into the history, and the audit says who resolved it: as a replay does.
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
    """Notes why a rebuild ended before its time; another may begin at once."""
    yield Query("stop_rebuild", {**_fenced(held), "applied": applied, "error": error})
    yield _released(held)


@operation(reads=True)
def set_aside(consumer: str, messages: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """Those of the messages that an operator, or the handler, has discarded for this consumer."""
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
    name, held, state, online, by, reason, total, applied, error, started_at, ended_at, updated_at, alive = row
    rebuild = None
    if state is not None:
        rebuild = Rebuilding(
            state=str(state),
            alive=bool(alive),
            online=bool(online),
            applied=int(applied or 0),
            total=None if total is None else int(total),
            by=str(by),
            reason=reason,
            error=error,
            started_at=aware_time(started_at),
            updated_at=optional_time(updated_at),
            ended_at=optional_time(ended_at),
        )
    return Projector(str(name), bool(held), rebuild)
