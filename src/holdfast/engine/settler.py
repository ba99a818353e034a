"""Settling in batches: outcomes gather for as long as the last batch takes, never longer."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from holdfast.core.delivery import Claim
from holdfast.core.errors import StoreUnavailable
from holdfast.core.report import ErrorReport
from holdfast.stores.protocol import Store
from holdfast.stores.settle import Hold, Settlement, ownership, settle

log = structlog.get_logger("holdfast.settle")

_BATCH = 500
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Ack:
    """A settlement on its way, with what to do once it is durable, or lost."""

    settlement: Settlement
    written: Callable[[], None] | None = None
    lost: Callable[[], None] | None = None


class Settler:
    """Writes outcomes in batches. Nothing is forgotten: what cannot be written now is tried until the deadline."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store, self._worker = store, worker
        self._waiting: deque[Ack] = deque()
        self._under_way = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + self._under_way

    def add(self, ack: Ack) -> None:
        """Queues a settlement; it is written within a batch or two."""
        self._waiting.append(ack)
        self._empty.clear()
        self._news.set()

    async def drained(self) -> None:
        """Waits until everything queued so far is written."""
        await self._empty.wait()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                self._under_way = len(batch)
                await self._write(batch)
                self._under_way = 0
            self._empty.set()

    async def _write(self, batch: list[Ack]) -> None:
        pause = 0.05
        written: frozenset[UUID] = frozenset()
        while True:
            try:
                written = await self._store.run(settle(self._worker, [ack.settlement for ack in batch]))
                break
            except StoreUnavailable as error:
                # The reply may have been lost after the commit; the ones that do not come back are looked up below.
                log.warning("settling waits for the store", settlements=len(batch), error=str(error))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception as error:  # noqa: BLE001
                if len(batch) == 1:
                    batch = [replace(batch[0], settlement=_plainer(batch[0].settlement, error))]
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    continue
                # One outcome that cannot be stored must not hold up the others.
                for ack in batch:
                    await self._write([ack])
                return
        missing = [ack for ack in batch if ack.settlement.delivery_id not in written]
        settled = await self._look(missing) if missing else frozenset()
        for ack in batch:
            id = ack.settlement.delivery_id
            then = ack.written if id in written or id in settled else ack.lost
            if then is not None:
                then()

    async def _look(self, missing: list[Ack]) -> frozenset[UUID]:
        claims = [Claim(a.settlement.delivery_id, self._worker, a.settlement.fence) for a in missing]
        while True:
            try:
                holds = await self._store.run(ownership(claims))
                return frozenset(id for id, hold in holds.items() if hold is Hold.SETTLED)
            except StoreUnavailable:
                await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311


def _plainer(settlement: Settlement, error: Exception) -> Settlement:
    """The same outcome with an error text that cannot be the reason why it was refused."""
    log.error("an outcome could not be stored as it was", delivery_id=str(settlement.delivery_id), error=repr(error))
    if settlement.error is None:
        return settlement
    return replace(
        settlement, error=ErrorReport("holdfast.Unstorable", "the error could not be stored", "", "unstorable")
    )
