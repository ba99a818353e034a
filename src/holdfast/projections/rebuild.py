"""Rebuilds a projector's result from the event store, online or in place.

Online: the log is applied in order to a second result, while the live one is updated. Near the end of the log the projector
is held, so that no worker claims its deliveries; running ones finish; the rest of the log is applied. Then one
transaction calls `swap` and completes every delivery whose event was applied. A crash before that commit does not change
the live result. In place: the projector is held during the whole rebuild.

Each step is fenced: of two processes that rebuild one projector, the one whose lease expired writes nothing.
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
"""With at most this many events left, the projector is held."""
_LOCK_TIMEOUT = timedelta(seconds=5)
_DRAIN = 30.0
"""Seconds that a held projector waits for running deliveries, before it is released and held again later."""
_FIRST_POLL, _LONGEST_POLL = 0.02, 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0

Prepare = Callable[[Any], object]


class RebuildProgress(NamedTuple):
    """The progress of a rebuild. `total` is an estimate.

    `waiting` counts the deliveries that still run while the projector is held.
    """

    projector: str
    applied: int
    total: int
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A finished rebuild: the numbers of applied and skipped events, of completed deliveries and of resolved dead letters."""

    projector: str
    online: bool
    applied: int
    skipped: int
    done: int
    resolved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTarget:
    """The projector to rebuild. `apply` runs the handler for one event; true if the handler moved the checkpoint."""

    name: str
    wanted: EventFilter
    apply: Callable[[Message, RebuildStep], Awaitable[bool]]
    reset: Prepare
    swap: Prepare | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRequest:
    """The options of a rebuild: who requests it and why, the events to skip, and the lease of its owner."""

    actor: str
    reason: str | None = None
    resume: bool = False
    skip: frozenset[UUID] = frozenset()
    progress: Callable[[RebuildProgress], None] | None = None
    lease: timedelta = LEASE


class Rebuild:
    """One rebuild of one projector by one owner."""

    def __init__(self, store: Store, target: RebuildTarget, owner: str, request: RebuildRequest) -> None:
        self._store, self._target, self._owner, self._request = store, target, owner, request
        self._actor, self._reason, self._skip, self._lease = request.actor, request.reason, request.skip, request.lease
        self._online = target.swap is not None
        self._cursor, self._applied, self._skipped, self._total = START, 0, 0, 0
        self._holding = self._begun = self._partly_built = False

    async def run(self) -> Rebuilt:
        """Runs the rebuild. If it raises, the live result of an online rebuild is unchanged; a projector that is rebuilt in
        place stays held, unless its result was not changed yet."""
        resume = self._request.resume
        await self._check_resumable(resume)
        held = await self._store.run(begin_rebuild(self._target.name, self._owner, self._lease, self._actor))
        renewing = asyncio.create_task(self._renew(held), name="holdfast-rebuild-lease")
        try:
            result = await (
                self._rebuild_online(held, resume) if self._online else self._rebuild_in_place(held, resume)
            )
        except BaseException as error:
            await self._stop(held, error)
            raise
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self._store.hint()
        return Rebuilt(
            projector=self._target.name,
            online=self._online,
            applied=self._applied,
            skipped=self._skipped,
            done=result.done,
            resolved=result.resolved,
        )

    async def _rebuild_online(self, held: PositionLease, resume: bool) -> RebuildResult:
        await self._begin(held, resume, lambda: ())
        pause = _FIRST_PAUSE
        while True:
            await self._catch_up(held)
            await self._hold(held)
            try:
                if await self._drained(held, _DRAIN):
                    # A snapshot taken now shows everything that was ever applied to the live result.
                    await self._pass(held)
                    return await asyncio.to_thread(self._finish, held)
            except (ProjectorBusy, LockTimeout) as error:
                self._log_delay(error)
            self._holding = False
            if not self._partly_built:
                await self._store.run(release(held))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _rebuild_in_place(self, held: PositionLease, resume: bool) -> RebuildResult:
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
                # A worker that takes over a delivery of a dead one holds it for a moment.
                self._log_delay(error)
            await asyncio.sleep(_FIRST_PAUSE)
            await self._drained(held, float("inf"))

    async def _hold(self, held: PositionLease) -> None:
        """Holds the projector until the lease expires; a partly rebuilt result stays held in any case."""
        await self._store.run(hold(held, UNTIL_ENDED if self._partly_built else self._lease))
        self._holding = not self._partly_built

    async def _check_resumable(self, resume: bool) -> None:
        """Checks whether a rebuild can be resumed, and whether one in place left its result partly rebuilt and held."""
        (found,) = [one for one in await self._store.run(projectors()) if one.name == self._target.name]
        last = found.rebuild
        self._partly_built = found.held and last is not None and not last.online and last.state != "done"
        if resume and (last is None or last.state == "done" or last.online != self._online):
            raise Refused(
                "resume the rebuild of", self._target.name, "not interrupted", "leave out --resume to begin a new one"
            )

    async def _begin(self, held: PositionLease, resume: bool, check: Callable[[], Steps[None] | tuple[()]]) -> None:
        """Stores the start of the rebuild and empties its result, in one transaction."""
        self._total = (await self._store.run(behind(START, self._target.wanted, _COUNTED))).waiting

        def steps() -> Steps[tuple[Cursor, int]]:
            yield from check()
            return (
                yield from started(
                    held,
                    online=self._online and not self._partly_built,
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
                    self._target.reset(conn)
                return place

        self._cursor, self._applied = await asyncio.to_thread(begin)
        self._begun = True
        self._report_progress()

    def _finish(self, held: PositionLease) -> RebuildResult:
        """The transaction that makes the new result the live one."""

        def steps() -> Steps[None]:
            yield from assert_idle(held)

        def end() -> Steps[RebuildResult]:
            # Checked again after `swap` has its locks: no delivery has started in between.
            yield from assert_idle(held)
            return (yield from ended(held, self._cursor, self._applied, self._skip, self._actor, self._reason))

        with self._store.transaction(_LOCK_TIMEOUT) as conn:
            run_on(Operation(steps), self._store.dialect, _blocking(conn))
            if self._target.swap is not None:
                self._target.swap(conn)
            return run_on(Operation(end), self._store.dialect, _blocking(conn))

    async def _catch_up(self, held: PositionLease) -> None:
        """Applies the log until few events are left, or until their number stops shrinking."""
        before = None
        while True:
            count = await self._pass(held)
            if count <= _NEAR or (before is not None and count > before / 2):
                break
            before = count
        more = True
        while more:
            # Deliveries that are not created yet would run after the swap, and apply their events twice.
            _, more = await self._store.run(catch_up())

    async def _pass(self, held: PositionLease) -> int:
        """Applies the events that the log shows now; returns their number."""
        count = 0
        while True:
            ahead = await self._store.run(look_ahead(self._cursor, self._target.wanted))
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
        left_out = self._skip | await self._store.run(set_aside(self._target.name, ids))
        for entry in chunk:
            message, place = (
                found.get(entry.id),
                RebuildStep(held, self._cursor, replace(step, position=entry.position)),
            )
            if message is None or entry.id in left_out:
                await self._move(held, place.reached)
                self._skipped += 1
                continue
            if not await self._target.apply(message, place):
                await self._move(held, place.reached, passed=1)
            self._cursor = place.reached
            self._applied += 1
            self._report_progress()

    async def _move(self, held: PositionLease, cursor: Cursor, passed: int = 0) -> None:
        if not await self._store.run(move_position(held, cursor, self._lease, passed)):
            raise RebuildLost(held.name)
        self._cursor = cursor

    async def _drained(self, held: PositionLease, patience: float) -> bool:
        """Waits until no delivery of the projector runs; false on timeout."""
        ends, pause = asyncio.get_running_loop().time() + patience, _FIRST_POLL
        while running := await self._store.run(running_of(held.name)):
            self._report_progress(running)
            if asyncio.get_running_loop().time() > ends:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_POLL)
        return True

    async def _renew(self, held: PositionLease) -> None:
        """Renews the lease, and the hold if there is one. If that fails, the next fenced step fails."""
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
            if not self._begun and not self._partly_built:
                await asyncio.shield(self._store.run(release(held)))

    def _log_delay(self, error: Exception) -> None:
        log.info("rebuild swap delayed", projector=self._target.name, reason=str(error) or "the projector is busy")

    def _report_progress(self, waiting: int = 0) -> None:
        if self._request.progress is not None:
            self._request.progress(
                RebuildProgress(self._target.name, self._applied, max(self._total, self._applied), waiting)
            )


def _chunks(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """Chunks that are limited in number and bytes."""
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
    reported = report(error)
    return f"{reported.type}: {reported.message}"


def _blocking(conn: object) -> Any:
    return adapt_connection(conn)
