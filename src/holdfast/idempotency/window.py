"""Deduplication windows: for consumers with no database effect, what was done a short while ago is not done again.

A key is recorded only after the handler succeeded. So a crash in between means that it runs again, at least once:
a window makes a second run unlikely, it never makes the first one disappear.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.stores.protocol import Store
from holdfast.stores.seen import record_seen, was_seen


class Window(Protocol):
    """Remembers for a while which keys a consumer has dealt with."""

    async def seen(self, consumer: str, key: str) -> bool: ...

    async def record(self, consumer: str, key: str, window: timedelta) -> None: ...


class MemoryWindow:
    """Remembers within this process: enough for one instance, gone with it. Bounded; the oldest go first."""

    def __init__(self, most: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def seen(self, consumer: str, key: str) -> bool:
        return self._until.get((consumer, key), float("-inf")) > self._clock()

    async def record(self, consumer: str, key: str, window: timedelta) -> None:
        self._until[consumer, key] = self._clock() + window.total_seconds()
        self._until.move_to_end((consumer, key))
        while len(self._until) > self._most:
            self._until.popitem(last=False)


class StoreWindow:
    """Remembers in the store's own database, for all instances; the database's clock decides."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def seen(self, consumer: str, key: str) -> bool:
        return await self._store.run(was_seen(consumer, key))

    async def record(self, consumer: str, key: str, window: timedelta) -> None:
        await self._store.run(record_seen(consumer, key, window))


class RedisWindow:
    """Remembers in Redis, for all instances; Redis's clock and expiry decide. Needs `holdfast[redis]`."""

    def __init__(self, url: str, prefix: str = "holdfast:seen") -> None:
        try:
            from redis.asyncio import Redis
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigurationError("a window in Redis needs a driver; install holdfast[redis]") from error
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
        # A consumer's name holds no blank, so that no pair can be read as another.
        return f"{self._prefix}:{consumer} {key}"

    async def _call(self, command: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await command(*args, **kwargs)
        except (self._error, OSError) as error:
            raise StoreUnavailable("redis", str(error)) from error
