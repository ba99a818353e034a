"""Store operations of an intake, retried while the database is unavailable."""

import asyncio
import random
from typing import TypeVar

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

log = get_logger("holdfast.brokers")

T = TypeVar("T")

_MIN_PAUSE, _MAX_PAUSE = 0.1, 2.0


class RetryingStore:
    """Runs the store operations of one intake. Logs the start and the end of an outage once each."""

    def __init__(self, store: Store, consumer: str) -> None:
        self._store, self._consumer = store, consumer
        self._is_unavailable = False

    async def run(self, operation: Operation[T]) -> T:
        """Retries until the store answers. The operation must be repeatable: an outage can hide a commit."""
        pause = _MIN_PAUSE
        while True:
            try:
                result = await self._store.run(operation)
            except StoreUnavailable as error:
                self._on_unavailable(error)
            else:
                self._on_available()
                return result
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _MAX_PAUSE)

    async def run_once(self, operation: Operation[T]) -> T | None:
        """Runs an operation without a retry; None if the store is unavailable."""
        try:
            result = await self._store.run(operation)
        except StoreUnavailable as error:
            self._on_unavailable(error)
            return None
        self._on_available()
        return result

    def _on_unavailable(self, error: StoreUnavailable) -> None:
        if not self._is_unavailable:
            log.warning("intake stalled", consumer=self._consumer, error=str(error))
        self._is_unavailable = True

    def _on_available(self) -> None:
        if self._is_unavailable:
            log.info("intake resumed", consumer=self._consumer)
        self._is_unavailable = False
