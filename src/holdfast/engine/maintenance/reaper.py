"""Takes over the deliveries of dead workers as soon as their leases have expired."""

import asyncio
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.core.change import DeadLetter
from holdfast.core.errors import StoreUnavailable
from holdfast.core.group import GROUP_MARK
from holdfast.engine.settlement.builder import SettlementBuilder
from holdfast.engine.settlement.group_stages import GroupStages
from holdfast.engine.settlement.settler import Settler, announcing
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.lease import Lease
from holdfast.stores.deliveries.claim import next_expiry, rescue
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")

_TAKE_OVER = 100
_MOMENT = 0.02
_SHORTEST_WAIT = 0.1


class Reaper:
    """Waits until the next lease may expire, by the database's clock, and settles expired deliveries like any failure.

    A living worker has renewed its lease by then. A delivery that is locked by a transaction of its dead owner is retried
    shortly after.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        lease: timedelta,
        own_lease: Lease,
        settlements: SettlementBuilder,
        settler: Settler,
        groups: GroupStages,
    ) -> None:
        self._store, self._worker, self._lease, self._own_lease = store, worker, lease, own_lease
        self._settlements, self._settler, self._groups = settlements, settler, groups
        # Another worker may start at any time, and its lease may be shorter than the known ones.
        self._longest_wait = lease.total_seconds() / 4

    async def run(self) -> None:
        """Reaps until cancelled. A failure is logged and does not end it."""
        while True:
            wait = self._longest_wait
            try:
                wait = await self._reap()
            except StoreUnavailable as error:
                log.debug("store unavailable", task="takeover", error=str(error))
            except Exception as error:  # noqa: BLE001
                log.error("takeover failed", worker=self._worker, **error_fields(error))
            await asyncio.sleep(min(max(wait, _SHORTEST_WAIT), self._longest_wait))

    async def _reap(self) -> float:
        """Takes over all expired deliveries; returns the seconds until the next lease may expire."""
        while self._own_lease.trusted_in <= 0:
            expires_in = await self._store.run(next_expiry(self._worker))
            if expires_in is None:
                return self._longest_wait
            if expires_in >= 0:
                return expires_in + _MOMENT
            if not await self._take_over():
                return _SHORTEST_WAIT
        return self._own_lease.trusted_in

    async def _take_over(self) -> bool:
        """Takes over a batch and settles it; false if nothing could be taken over."""
        # Checked again: a process that was suspended here has lost contact, and must not act on old knowledge.
        if self._own_lease.trusted_in > 0:
            return False
        taken = await self._store.run(rescue(self._worker, self._lease, _TAKE_OVER))
        for claimed, policy in taken:
            change, ack = self._settlements.take_over(claimed, policy)
            if GROUP_MARK in claimed.headers:
                ack = self._groups.settlement(claimed, change, ack)
            if isinstance(change, DeadLetter):
                # A caller may wait for its result, also if this worker does not have its handler.
                ack = announcing(ack, self._settler.announce)
            self._settler.add(ack)
        # One batch at a time: this worker would lose what it has taken over and not yet settled.
        while len(self._settler) > _TAKE_OVER:  # noqa: ASYNC110
            await asyncio.sleep(_MOMENT)
        return bool(taken)
