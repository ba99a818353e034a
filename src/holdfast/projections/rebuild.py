"""Building a projector's result anew from the event store, beside the live one or in its place.

Beside it: the log is applied in order to what `reset` made, while the live result goes on. Near the end of the log the
projector is held, so that nobody claims its deliveries; what runs is waited for; the rest of the log is applied; then
one transaction calls `swap` and makes done every delivery whose event was applied. Whoever dies before that commit has
changed nothing that anybody reads. In place, the projector is held from the first moment to the last.

Each step is fenced: of two who rebuild one projector, the one whose lease ran out writes nothing any more.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, LockTimeout, RebuildLost, Refused, StoreUnavailable
from holdfast.core.failures.report import report
from holdfast.core.message import Message
from holdfast.stores.connections.connection import adapt_connection, run_on
from holdfast.stores.event_log.log import START, Cursor, EventFilter, LogEntry, behind, look_ahead
from holdfast.stores.event_log.position import PositionLease, move_position
from holdfast.stores.event_log.projection import (
    UNTIL_ENDED,
    ProjectorBusy,
    RebuildResult,
    RebuildStep,
    assert_idle,
    begin_rebuild,
    ended,
    hold,
    projectors,
    prolong_hold,
    release,
    running_of,
    set_aside,
    started,
    stop_rebuild,
)
from holdfast.stores.messages.registry import catch_up
from holdfast.stores.operation import Operation, Steps
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages_with

log = get_logger("holdfast.rebuild")

LEASE = timedelta(seconds=30)
_COUNTED = 1_000_000
_CHUNK, _CHUNK_BYTES = 100, 4_000_000
_NEAR = 200
"""So few events left that the projector may be held for them."""
_LOCK_TIMEOUT = timedelta(seconds=5)
_DRAIN = 30.0
"""Seconds that a held projector waits for what runs, before it is let go on and held again later."""
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0

Prepare = Callable[[Any], object]


class RebuildProgress(NamedTuple):
    """How far a rebuild has come. `total` is an estimate; `waiting` counts what still runs while it is held."""

    projector: str
    applied: int
    total: int
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A rebuild that is done: how many events were applied and left out, how many waiting deliveries it made done, and
    how many dead letters it resolved."""

    projector: str
    online: bool
    applied: int
    skipped: int
    done: int
    resolved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is rebuilt. `apply` runs the handler for one event; true says that it moved the rebuild on by itself."""

    name: str
    wanted: EventFilter
    apply: Callable[[Message, RebuildStep], Awaitable[bool]]
    reset: Prepare
    swap: Prepare | None


class Rebuild:
    """One rebuild of one projector, by one owner."""

    def __init__(
        self,
        store: Store,
        subject: Subject,
        *,
        owner: str,
        actor: str,
        reason: str | None = None,
        skip: frozenset[UUID] = frozenset(),
        progress: Callable[[RebuildProgress], None] | None = None,
        lease: timedelta = LEASE,
    ) -> None:
        self._store, self._subject, self._owner, self._lease = store, subject, owner, lease
        self._actor, self._reason, self._skip, self._progress = actor, reason, skip, progress
        self._online = subject.swap is not None
        self._cursor, self._applied, self._skipped, self._total = START, 0, 0, 0
        self._holding = self._begun = self._half_built = False

    async def run(self, *, resume: bool = False) -> Rebuilt:
        """Rebuilds to the end. When it raises, a live result that is built beside is as it was; one that is built in
        place stays held, unless nothing was done to it yet."""
        await self._look(resume)
        held = await self._store.run(begin_rebuild(self._subject.name, self._owner, self._lease, self._actor))
        renewing = asyncio.create_task(self._renew(held), name="holdfast-rebuild-lease")
        try:
            result = await (self._beside(held, resume) if self._online else self._in_place(held, resume))
        except BaseException as error:
            await self._stop(held, error)
            raise
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self._store.hint()
        return Rebuilt(
            projector=self._subject.name,
            online=self._online,
            applied=self._applied,
            skipped=self._skipped,
            done=result.done,
            resolved=result.resolved,
        )

    async def _beside(self, held: PositionLease, resume: bool) -> RebuildResult:
        await self._begin(held, resume, lambda: ())
        pause = _FIRST_PAUSE
        while True:
            await self._come_near(held)
            await self._hold(held)
            try:
                if await self._drained(held, _DRAIN):
                    # A snapshot taken now shows everything that was ever applied to the live result.
                    await self._pass(held)
                    return await asyncio.to_thread(self._finish, held)
            except (ProjectorBusy, LockTimeout) as error:
                self._waits(error)
            self._holding = False
            if not self._half_built:
                await self._store.run(release(held))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _in_place(self, held: PositionLease, resume: bool) -> RebuildResult:
        await self._hold(held)
        while True:
            await self._drained(held, float("inf"))
            with contextlib.suppress(ProjectorBusy):
                await self._begin(held, resume, lambda: assert_idle(held))
                break
        self._holding = False
        while True:
            await self._pass(held)
            try:
                return await asyncio.to_thread(self._finish, held)
            except (ProjectorBusy, LockTimeout) as error:
                # A worker that takes over what a dead one left has it for a moment.
                self._waits(error)
            await asyncio.sleep(_FIRST_PAUSE)
            await self._drained(held, float("inf"))

    async def _hold(self, held: PositionLease) -> None:
        """Holds the projector for as long as the lease is kept; what is half built stays held whatever happens."""
        await self._store.run(hold(held, UNTIL_ENDED if self._half_built else self._lease))
        self._holding = not self._half_built

    async def _look(self, resume: bool) -> None:
        """Whether there is something to resume, and whether one in place left its result half built, and held."""
        (found,) = [one for one in await self._store.run(projectors()) if one.name == self._subject.name]
        last = found.rebuild
        self._half_built = found.held and last is not None and not last.online and last.state != "done"
        if resume and (last is None or last.state == "done" or last.online != self._online):
            raise Refused(
                "resume the rebuild of", self._subject.name, "not half done", "leave out --resume to begin a new one"
            )

    async def _begin(self, held: PositionLease, resume: bool, check: Callable[[], Steps[None] | tuple[()]]) -> None:
        """Notes the rebuild and empties what it writes into, in one transaction."""
        self._total = (await self._store.run(behind(START, self._subject.wanted, _COUNTED))).waiting

        def steps() -> Steps[tuple[Cursor, int]]:
            yield from check()
            return (
                yield from started(
                    held,
                    online=self._online and not self._half_built,
                    resume=resume,
                    total=self._total,
                    actor=self._actor,
                    reason=self._reason,
                )
            )

        def begin() -> tuple[Cursor, int]:
            with self._store.transaction(_LOCK_TIMEOUT) as conn:
                place = run_on(Operation(steps), self._store.dialect, _blocking(conn))
                if not resume:
                    self._subject.reset(conn)
                return place

        self._cursor, self._applied = await asyncio.to_thread(begin)
        self._begun = True
        self._tell()

    def _finish(self, held: PositionLease) -> RebuildResult:
        """The transaction in which the new result takes over: all of it, or nothing."""

        def steps() -> Steps[None]:
            yield from assert_idle(held)

        def end() -> Steps[RebuildResult]:
            # Once more, now that `swap` has its locks: nobody has begun meanwhile.
            yield from assert_idle(held)
            return (yield from ended(held, self._cursor, self._applied, self._skip, self._actor, self._reason))

        with self._store.transaction(_LOCK_TIMEOUT) as conn:
            run_on(Operation(steps), self._store.dialect, _blocking(conn))
            if self._subject.swap is not None:
                self._subject.swap(conn)
            return run_on(Operation(end), self._store.dialect, _blocking(conn))

    async def _come_near(self, held: PositionLease) -> None:
        """Applies the log until little is left, or until what is left does not shrink any more."""
        before = None
        while True:
            count = await self._pass(held)
            if count <= _NEAR or (before is not None and count > before / 2):
                break
            before = count
        more = True
        while more:
            # Deliveries that are still to be made for it would be run after the swap, and applied twice.
            _, more = await self._store.run(catch_up())

    async def _pass(self, held: PositionLease) -> int:
        """Applies what the log shows now, or showed when this step of it began; how many events that were."""
        count = 0
        while True:
            ahead = await self._store.run(look_ahead(self._cursor, self._subject.wanted))
            for chunk in _chunks(ahead.entries):
                await self._apply(held, chunk, ahead.step)
            if ahead.end != self._cursor:
                await self._move(held, ahead.end)
            count += len(ahead.entries)
            if not ahead.more:
                return count

    async def _apply(self, held: PositionLease, chunk: Sequence[LogEntry], step: Cursor) -> None:
        ids = [entry.id for entry in chunk]
        found = await self._store.run(messages_with(ids))
        left_out = self._skip | await self._store.run(set_aside(self._subject.name, ids))
        for entry in chunk:
            message, place = (
                found.get(entry.id),
                RebuildStep(held, self._cursor, replace(step, position=entry.position)),
            )
            if message is None or entry.id in left_out:
                await self._move(held, place.reached)
                self._skipped += 1
                continue
            if not await self._subject.apply(message, place):
                await self._move(held, place.reached, passed=1)
            self._cursor = place.reached
            self._applied += 1
            self._tell()

    async def _move(self, held: PositionLease, cursor: Cursor, passed: int = 0) -> None:
        if not await self._store.run(move_position(held, cursor, self._lease, passed)):
            raise RebuildLost(held.name)
        self._cursor = cursor

    async def _drained(self, held: PositionLease, patience: float) -> bool:
        """Waits until nothing of the projector runs; false when that takes too long."""
        ends, pause = asyncio.get_running_loop().time() + patience, _FIRST_LOOK
        while running := await self._store.run(running_of(held.name)):
            self._tell(running)
            if asyncio.get_running_loop().time() > ends:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
        return True

    async def _renew(self, held: PositionLease) -> None:
        """Keeps the lease, and the hold while there is one. What cannot be kept is noticed by the next fenced step."""
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 4)
            with contextlib.suppress(StoreUnavailable):
                await self._store.run(move_position(held, None, self._lease))
                if self._holding:
                    await self._store.run(prolong_hold(held, self._lease))

    async def _stop(self, held: PositionLease, error: BaseException) -> None:
        if isinstance(error, RebuildLost):
            return
        with contextlib.suppress(HoldfastError):
            await asyncio.shield(self._store.run(stop_rebuild(held, self._applied, _why(error))))
            if not self._begun and not self._half_built:
                await asyncio.shield(self._store.run(release(held)))

    def _waits(self, error: Exception) -> None:
        log.info("rebuild swap delayed", projector=self._subject.name, reason=str(error) or "the projector is busy")

    def _tell(self, waiting: int = 0) -> None:
        if self._progress is not None:
            self._progress(RebuildProgress(self._subject.name, self._applied, max(self._total, self._applied), waiting))


def _chunks(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """As many at once as memory bears."""
    start, size = 0, 0
    for at, entry in enumerate(entries):
        if at > start and (at - start >= _CHUNK or size + entry.size > _CHUNK_BYTES):
            yield entries[start:at]
            start, size = at, 0
        size += entry.size
    if start < len(entries):
        yield entries[start:]


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, HoldfastError):
        return str(error)
    told = report(error)
    return f"{told.type}: {told.message}"


def _blocking(conn: object) -> Any:
    return adapt_connection(conn)
