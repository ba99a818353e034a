"""Writes settlements in batches: a batch collects what arrives while the last one is written."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.change import Change, DeliverResult, Remove
from holdfast.core.delivery import Claim
from holdfast.core.errors import StoreUnavailable
from holdfast.core.failures.report import ErrorReport
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.workflows.settler import StepOutcome, StepSettlement, StepSettler
from holdfast.stores.deliveries.settle import ClaimState, Settlement, absent, claim_states, settle
from holdfast.stores.protocol import Store

log = get_logger("holdfast.settle")

_BATCH = 500
_MOST_UNWRITTEN = 4 * _BATCH
_COLLECT, _COLLECT_TURN = 0.02, 0.001
"""Seconds to wait at most for more steps, and between two checks."""
_SHORTEST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_NONE: frozenset[UUID] = frozenset()
_UNSTORABLE = ErrorReport("holdfast.Unstorable", "the error could not be stored", "", "unstorable")


class Ack(NamedTuple):
    """A queued settlement, with callbacks for when it is durable or lost. `refusals` counts failed writes.

    `step` is what it means for the run of a workflow; `skips` counts batches in which that run was locked.
    """

    settlement: Settlement
    written: Callable[[], None] | None = None
    lost: Callable[[], None] | None = None
    refusals: int = 0
    step: StepOutcome | None = None
    skips: int = 0


def announcing(ack: Ack, announce: Callable[[], None]) -> Ack:
    """The settlement, which calls `announce` before its other callback once it is durable."""
    written = ack.written

    def ended() -> None:
        announce()
        if written is not None:
            written()

    return ack._replace(written=ended)


class Settler:
    """Writes settlements in batches, and calls `wrote` with each batch. A failed settlement is retried until the end.

    `announce` wakes the callers that wait for a result or for the end of a run of a workflow. `expects_more`: whether
    claimed deliveries wait for a slot, so that more settlements follow soon.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        wrote: Callable[[Sequence[Ack]], None] = lambda _: None,
        longest_pause: float = _LONGEST_PAUSE,
        announce: Callable[[], None] = lambda: None,
        expects_more: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._worker, self._wrote, self._longest_pause = store, worker, wrote, longest_pause
        self._expects_more = expects_more
        self.announce = announce
        self._waiting: deque[Ack] = deque()
        self._in_progress: list[Ack] = []
        self._refused: list[Ack] = []
        self._steps: StepSettler | None = None
        self.lease_held_since: Callable[[float], bool] = lambda _: False
        """Whether the worker has held its lease since that time without a gap: no other worker settled its claims."""
        self._added = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_progress) + len(self._refused)

    @property
    def behind(self) -> bool:
        """Whether so many settlements are unwritten that no more deliveries should start."""
        return len(self) > _MOST_UNWRITTEN

    def ids(self) -> set[UUID]:
        """The deliveries whose settlement is not written yet."""
        return {ack.settlement.delivery_id for ack in (*self._waiting, *self._in_progress, *self._refused)}

    def add(self, ack: Ack) -> None:
        """Queues a settlement; it is written within a batch or two."""
        if ack.step is not None and self._steps is None:
            self._steps = StepSettler(self._store, self._worker, self.announce)
        if not self._waiting:
            self._empty.clear()
            self._added.set()
        self._waiting.append(ack)

    async def drained(self) -> None:
        """Waits until everything queued so far is written."""
        await self._empty.wait()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                if self._waiting[0].step is not None:
                    await self._collect()
                batch = self._in_progress = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                await self._write(batch)
                self._in_progress = []
                self._wrote(batch)
            if not self._refused:
                self._empty.set()

    async def _collect(self) -> None:
        """Waits shortly for more steps while more follow: a batch costs a commit and a millisecond besides its steps."""
        ends = time.monotonic() + _COLLECT
        # No event reports that no delivery waits any more.
        while len(self._waiting) < _BATCH and self._expects_more() and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_COLLECT_TURN)

    async def _write(self, batch: list[Ack], sent_at: float | None = None) -> None:
        """Writes a batch. `sent_at` is when an earlier attempt began whose reply was lost."""
        pause = _SHORTEST_PAUSE
        while True:
            started = time.monotonic()
            try:
                settled, skipped = await self._settle_all(batch, sent_at)
            except StoreUnavailable as error:
                sent_at = started if sent_at is None else sent_at
                log.warning("store unavailable", task="settle", settlements=len(batch), error=str(error))
            except Exception as error:  # noqa: BLE001
                if len(batch) == 1:
                    self._retry_later(batch[0], error)
                    return
                # One settlement that cannot be stored must not delay the others.
                for ack in batch:
                    await self._write([ack], sent_at)
                return
            else:
                # Without a lookup if all are settled: hashing the id of each delivery costs more than its callback.
                all_settled = len(settled) == len(batch)
                for ack in batch:
                    if skipped and ack.settlement.delivery_id in skipped:
                        self._later(ack._replace(skips=ack.skips + 1), _SHORTEST_PAUSE)
                        continue
                    callback = ack.written if all_settled or ack.settlement.delivery_id in settled else ack.lost
                    if callback is not None:
                        _call_back(callback)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, self._longest_pause)

    async def _settle_all(self, batch: list[Ack], sent_at: float | None) -> tuple[Set[UUID], Set[UUID]]:
        """The deliveries whose outcome is durable, and steps whose run is locked by another transaction."""
        if self._steps is None or not (steps := [ack for ack in batch if ack.step is not None]):
            return await self._settle(batch, sent_at), _NONE
        plain = [ack for ack in batch if ack.step is None]
        settled = await self._settle(plain, sent_at) if plain else _NONE
        ended, skipped = await self._steps.settle(
            [StepSettlement(ack.settlement, ack.step, ack.skips) for ack in steps if ack.step is not None]
        )
        return settled | ended, skipped

    async def _settle(self, batch: list[Ack], sent_at: float | None) -> frozenset[UUID]:
        """The deliveries whose outcome is durable, by this attempt or an earlier one. Another worker owns the others."""
        written = await self._store.run(settle(self._worker, [ack.settlement for ack in batch]))
        if len(written) == len(batch):
            return written
        missing = [ack.settlement for ack in batch if ack.settlement.delivery_id not in written]
        # The reply to an earlier attempt may have been lost after its commit.
        claims = [Claim(settlement.delivery_id, self._worker, settlement.fence) for settlement in missing]
        holds = await self._store.run(claim_states(claims))
        found = written | {id for id, hold in holds.items() if hold is ClaimState.SETTLED}
        if sent_at is None or not (removed := [one.delivery_id for one in missing if _removes(one.change)]):
            return found
        # Without a row it was removed: by that attempt, if no other worker could own the delivery since then.
        gone = await self._store.run(absent(removed))
        return found | gone if self.lease_held_since(sent_at) else found

    def _retry_later(self, ack: Ack, error: Exception) -> None:
        """Retries a refused settlement later; from the second refusal on with a generic error text."""
        id = str(ack.settlement.delivery_id)
        log.error("settlement failed", delivery_id=id, refusals=ack.refusals + 1, **error_fields(error))
        settlement = ack.settlement
        if ack.refusals and settlement.error is not None:
            settlement = settlement._replace(error=_UNSTORABLE)
        again = ack._replace(settlement=settlement, refusals=ack.refusals + 1)
        self._later(again, min(_SHORTEST_PAUSE * 2**ack.refusals, _LONGEST_PAUSE))

    def _later(self, ack: Ack, pause: float) -> None:
        self._refused.append(ack)
        asyncio.get_running_loop().call_later(pause, self._requeue, ack)

    def _requeue(self, ack: Ack) -> None:
        self._refused.remove(ack)
        self.add(ack)


def _removes(change: Change) -> bool:
    return isinstance(change, Remove) or (isinstance(change, DeliverResult) and change.remove)


def _call_back(callback: Callable[[], None]) -> None:
    """Calls a log or alert callback; its failure must not affect the durable settlement."""
    try:
        callback()
    except Exception as error:  # noqa: BLE001
        log.error("settlement callback failed", **error_fields(error))
