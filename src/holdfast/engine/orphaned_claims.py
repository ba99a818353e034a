"""Orphaned claims: what a worker holds without knowing, because a claim committed while its reply was lost.

Nobody else would give it back: the worker's own lease keeps it alive.
"""

from collections.abc import Sequence
from uuid import UUID

from holdfast._log import get_logger
from holdfast.engine.settlement import release_unstarted
from holdfast.engine.settler import Ack, Settler
from holdfast.engine.slot_pool import SlotPool
from holdfast.stores.deliveries.claim import held_claims
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")


class OrphanedClaims:
    """Finds the orphaned of one life of a worker and gives them back."""

    def __init__(self, store: Store, worker: str, settler: Settler, pools: Sequence[SlotPool]) -> None:
        self._store, self._worker, self._settler, self._pools = store, worker, settler, pools
        self._unknown: dict[UUID, int] = {}

    async def scan(self) -> None:
        """Gives back what was unknown at the last look and still is.

        A claim that is only just under way is in the store before it is known here.
        """
        unknown = await self._held_unknown()
        orphaned = {id: fence for id, fence in unknown.items() if self._unknown.get(id) == fence}
        self._unknown = {id: fence for id, fence in unknown.items() if id not in orphaned}
        self._release(orphaned)

    async def release_all(self) -> None:
        """Gives back all that is unknown. Right only when no claim is under way any more."""
        self._release(await self._held_unknown())

    async def _held_unknown(self) -> dict[UUID, int]:
        held = await self._store.run(held_claims(self._worker))
        known = self._settler.ids().union(*(pool.ids() for pool in self._pools))
        return {id: fence for id, fence in held.items() if id not in known}

    def _release(self, orphaned: dict[UUID, int]) -> None:
        for id, fence in orphaned.items():
            log.warning("orphaned claim released", delivery_id=str(id), worker=self._worker)
            self._settler.add(Ack(release_unstarted(id, fence)))
