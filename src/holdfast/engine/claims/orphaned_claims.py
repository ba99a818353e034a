"""Finds claims that a worker holds but does not know, because a claim committed and its reply was lost.

The worker's own lease keeps them alive, so no other worker would take them over.
"""

from collections.abc import Sequence
from uuid import UUID

from holdfast._log import get_logger
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.engine.settlement.builder import release_unstarted
from holdfast.engine.settlement.settler import Ack, Settler
from holdfast.stores.deliveries.claim import held_claims
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")


class OrphanedClaims:
    """Releases the orphaned claims of one worker session."""

    def __init__(self, store: Store, worker: str, settler: Settler, pools: Sequence[SlotPool]) -> None:
        self._store, self._worker, self._settler, self._pools = store, worker, settler, pools
        self._seen: dict[UUID, tuple[int, int]] = {}
        """The fence of each unknown claim, and how many rounds had ended when it was first seen."""
        self._rounds = 0

    def round_ended(self) -> None:
        """Call it when a round of the claim loop has ended, also with an error: no claim is in progress."""
        self._rounds += 1

    async def scan(self) -> None:
        """Releases the claims that were unknown to the worker in an earlier scan and still are.

        A claim in progress is in the store before the worker knows it, and its reply may be slow. So the round that was
        in progress in the earlier scan must have ended before this one.
        """
        rounds, earlier, orphaned = self._rounds, self._seen, dict[UUID, int]()
        unknown = await self._held_unknown()
        self._seen = {}
        for id, fence in unknown.items():
            seen = earlier.get(id)
            if seen is None or seen[0] != fence:
                self._seen[id] = (fence, self._rounds)
            elif rounds > seen[1]:
                orphaned[id] = fence
            else:
                self._seen[id] = seen
        self._release(orphaned)

    async def release_all(self) -> None:
        """Releases everything unknown. Call it only when no claim is in progress."""
        self._release(await self._held_unknown())

    async def _held_unknown(self) -> dict[UUID, int]:
        # A delivery may be settled while the store is read: it was known before, and is not known after.
        known = self._known()
        held = await self._store.run(held_claims(self._worker))
        known |= self._known()
        return {id: fence for id, fence in held.items() if id not in known}

    def _known(self) -> set[UUID]:
        return self._settler.ids().union(*(pool.ids() for pool in self._pools))

    def _release(self, orphaned: dict[UUID, int]) -> None:
        for id, fence in orphaned.items():
            log.warning("orphaned claim released", delivery_id=str(id), worker=self._worker)
            self._settler.add(Ack(release_unstarted(id, fence)))
