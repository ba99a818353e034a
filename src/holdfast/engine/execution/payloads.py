"""Loads payloads that are too large for a claim, with a limit of bytes per worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.telemetry.log_fields import delivery_fields
from holdfast.stores.deliveries.claim import Claimed, load_payload
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")

_LIMIT = 64 * 1024 * 1024
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


class LoadedBatch(NamedTuple):
    """The items of a batch with their payloads, those that exceed the memory limit, and those whose payload cannot be read."""

    loaded: list[Claimed]
    left: list[Claimed]
    failed: dict[UUID, Exception]


class LargePayloads:
    """Loads one payload at a time, and only while those of running handlers are below the limit.

    A worker holds at most the limit plus one payload for any number of slots, and one payload can always be loaded.
    """

    def __init__(self, store: Store, limit: int = _LIMIT) -> None:
        self._store, self._limit, self._held = store, limit, 0
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    async def load(self, claimed: Claimed) -> Claimed:
        """Waits for its turn and for memory, then reads the payload; waits while the store is unavailable."""
        async with self._turn:
            while self._held >= self._limit:
                self._released.clear()
                await self._released.wait()
            loaded = claimed._replace(payload=await self._read(claimed))
            self._held += len(loaded.payload)
            return loaded

    def release(self, loaded: Claimed) -> None:
        """Frees the memory of a payload whose handler has ended."""
        self._held -= len(loaded.payload)
        self._released.set()

    @contextlib.asynccontextmanager
    async def batch(self, claims: Sequence[Claimed]) -> AsyncIterator["LoadedBatch"]:
        """Loads the payloads of a batch up to the limit, and frees their memory at the end of the block.

        It waits for memory only before it has loaded anything: a batch that held memory while it waits could wait forever.
        """
        if all(claimed.has_payload for claimed in claims):
            yield LoadedBatch(list(claims), [], {})
            return
        batch, held = LoadedBatch([], [], {}), 0
        try:
            async with self._turn:
                while self._held >= self._limit:
                    self._released.clear()
                    await self._released.wait()
                for claimed in claims:
                    if claimed.has_payload:
                        batch.loaded.append(claimed)
                    elif held >= self._limit:
                        batch.left.append(claimed)
                    else:
                        try:
                            loaded = claimed._replace(payload=await self._read(claimed))
                        except Exception as error:  # noqa: BLE001
                            batch.failed[claimed.id] = error
                            continue
                        self._held += len(loaded.payload)
                        held += len(loaded.payload)
                        batch.loaded.append(loaded)
            yield batch
        finally:
            self._held -= held
            self._released.set()

    async def _read(self, claimed: Claimed) -> str:
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return await self._store.run(load_payload(claimed.message_id))
            except StoreUnavailable as error:
                log.warning(
                    "store unavailable", **delivery_fields(claimed) | {"task": "load payload", "error": str(error)}
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
