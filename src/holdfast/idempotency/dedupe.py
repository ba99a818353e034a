"""Deduplication for consumers without a database effect: a key that was handled recently is not handled again.

A key is recorded after the handler succeeded. A crash in between means that the handler runs again (at least once):
deduplication makes a second run unlikely, and never skips the first one.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.stores.deliveries.dedupe import record_seen, was_seen
from holdfast.stores.protocol import Store


class Dedupe(Protocol):
    """Stores for a limited time which keys a consumer has handled."""

    async def seen(self, consumer: str, key: str) -> bool: ...

    async def record(self, consumer: str, key: str, window: timedelta) -> None: ...


class MemoryDedupe:
    """Keys in this process: for a single instance; a restart clears them. Beyond `max_keys` the oldest are removed."""

    def __init__(self, max_keys: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_keys, self._clock = max_keys, clock
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def seen(self, consumer: str, key: str) -> bool:
        return self._until.get((consumer, key), float("-inf")) > self._clock()

    async def record(self, consumer: str, key: str, window: timedelta) -> None:
        self._until[consumer, key] = self._clock() + window.total_seconds()
        self._until.move_to_end((consumer, key))
        while len(self._until) > self._max_keys:
            self._until.popitem(last=False)


class StoreDedupe:
    """Keys in the store's database, shared by all instances. The database's clock decides when they expire."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def seen(self, consumer: str, key: str) -> bool:
        return await self._store.run(was_seen(consumer, key))

    async def record(self, consumer: str, key: str, window: timedelta) -> None:
        await self._store.run(record_seen(consumer, key, window))


class RedisDedupe:
    """Keys in Redis, shared by all instances. Redis decides when they expire. Needs `holdfast[redis]`."""

    def __init__(self, url: str, prefix: str = "holdfast:seen") -> None:
        try:
            from redis.asyncio import Redis
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigurationError(
                "RedisDedupe needs the redis driver; run `pip install 'holdfast[redis]'`"
            ) from error
        self._redis: Any = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        self._error = RedisError
        self._prefix = prefix

    async def seen(self, consumer: str, key: str) -> bool:
        return bool(await self._call(self._redis.exists, self._name(consumer, key)))

    async def record(self, consumer: str, key: str, window: timedelta) -> None:
        milliseconds = max(1, round(window.total_seconds() * 1000))
        await self._call(self._redis.set, self._name(consumer, key), b"1", px=milliseconds)

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()

    def _name(self, consumer: str, key: str) -> str:
        # A consumer's name contains no space, so two pairs never share a name.
        return f"{self._prefix}:{consumer} {key}"

    async def _call(self, command: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await command(*args, **kwargs)
        except (self._error, OSError) as error:
            raise StoreUnavailable("redis", str(error)) from error
