"""Finds out whether the transactions of handlers that called `ctx.complete` have committed."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.delivery import Claim
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.telemetry.log_fields import run_fields
from holdfast.stores.deliveries.settle import ClaimState, claim_states, unlocked
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Confirmation:
    """Waits until the states of claims are known. `lease_lost` is set when the worker has lost its lease, and with it all claims."""

    def __init__(self, store: Store, lease_lost: asyncio.Event) -> None:
        self._store, self._lease_lost = store, lease_lost

    async def states(self, claims: Sequence[Claim], run: Invocation | dict[str, object]) -> dict[UUID, ClaimState]:
        """The final states of claims that one transaction completed. `run`, or its fields, appear in log lines."""
        pause = _SHORTEST_PAUSE
        while not self._lease_lost.is_set():
            try:
                states = await self._store.run(claim_states(claims))
                held = [id for id, state in states.items() if state is ClaimState.HELD]
                if not held:
                    return states
                # A handler may leave its transaction open, for instance in a thread that timed out. Until the transaction
                # ends its result is unknown, and a settlement would wait for its lock, with all the others.
                if len(await self._store.run(unlocked(held))) == len(held):
                    return await self._store.run(claim_states(claims))
            except StoreUnavailable as error:
                log.warning("store unavailable", **run_fields(run) | {"task": "confirm", "error": str(error)})
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return dict.fromkeys((claim.delivery_id for claim in claims), ClaimState.LOST)
