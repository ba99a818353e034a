"""Writing what must be durable before a broker hears of it: as long as the store is out, it is waited for."""

import asyncio
import random
from typing import TypeVar

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

log = get_logger("holdfast.brokers")

T = TypeVar("T")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Persisting:
    """Runs operations of an intake on the store, through its outages. Says once that it waits, and once that it goes on."""

    def __init__(self, store: Store, consumer: str) -> None:
        self._store, self._consumer = store, consumer
        self._out = False

    async def run(self, operation: Operation[T]) -> T:
        """Runs an operation that may be run twice: after an outage nobody knows whether it was committed."""
        pause = _SHORTEST_PAUSE
        while True:
            try:
                result = await self._store.run(operation)
            except StoreUnavailable as error:
                self.waits(error)
            else:
                self.goes_on()
                return result
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def ask(self, operation: Operation[T]) -> T | None:
        """Runs an operation once; none when the store is out."""
        try:
            result = await self._store.run(operation)
        except StoreUnavailable as error:
            self.waits(error)
            return None
        self.goes_on()
        return result

    def waits(self, error: StoreUnavailable) -> None:
        if not self._out:
            log.warning("intake stalled", consumer=self._consumer, error=str(error))
        self._out = True

    def goes_on(self) -> None:
        if self._out:
            log.info("intake resumed", consumer=self._consumer)
        self._out = False
