"""CircuitStore in Redis, shared by all processes. Needs `holdfast[redis]`."""

from collections.abc import Callable, Generator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import orjson

from holdfast.core.circuit import Change, Circuit
from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.core.values.duration import Duration, to_timedelta

T = TypeVar("T")
_Steps = Generator[Callable[[Any], Any], Any, T]

_TRIES = 1_000
_FIELDS = frozenset(field.name for field in fields(Circuit))
_TIMES = ("open_until", "probe_until", "changed_at", "window_at")

# Compare and swap: writes only if the value has not changed since it was read. A change depends on nothing else, so a
# value that was changed and restored is safe.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisCircuits:
    """Stores circuits in Redis; Redis's clock decides. A circuit without a change for `ttl` expires, which closes it.

    The async methods belong to one event loop, as in every asyncio client.
    """

    refresh = 1.0

    def __init__(self, url: str, prefix: str = "holdfast:breaker", ttl: Duration = "1d") -> None:
        try:
            import redis
            import redis.asyncio
        except ImportError as error:
            raise ConfigurationError(
                "RedisCircuits needs the redis driver; run `pip install 'holdfast[redis]'`"
            ) from error
        bounds: dict[str, Any] = {"socket_timeout": 2, "socket_connect_timeout": 2}
        self._redis: Any = redis.asyncio.Redis.from_url(url, **bounds)
        self._redis_sync: Any = redis.Redis.from_url(url, **bounds)
        self._errors = (redis.RedisError, OSError)
        self._prefix, self._ttl = prefix, to_timedelta(ttl, name="ttl")

    def peek(self, name: str, /) -> None:
        """Returns None: reading needs a command."""

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change atomically; see `CircuitStore`."""
        try:
            return await drive_async(self._steps(name, change), lambda command: command(self._redis))
        except self._errors as error:
            raise StoreUnavailable("redis", str(error)) from error

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        try:
            return drive(self._steps(name, change), lambda command: command(self._redis_sync))
        except self._errors as error:
            raise StoreUnavailable("redis", str(error)) from error

    async def close(self) -> None:
        """Closes the async and the blocking connections."""
        await self._redis.aclose()
        self.close_sync()

    def close_sync(self) -> None:
        """Closes the blocking connections."""
        self._redis_sync.close()

    def _steps(self, name: str, change: Change[T]) -> _Steps[tuple[Circuit, T, datetime]]:
        key = f"{self._prefix}:{name}"
        for _ in range(_TRIES):
            (seconds, microseconds), raw = (
                yield lambda client: client.pipeline(transaction=False).time().get(key).execute()
            )
            now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
            before = Circuit() if raw is None else _loads(raw)
            after, outcome = change(before, now)
            if after is before or (yield self._swap(key, raw, after, now)):
                return after, outcome, now
        raise StoreUnavailable("redis", f"circuit {name}: {_TRIES:,} conflicting changes in a row; try again")

    def _swap(self, key: str, raw: bytes | None, after: Circuit, now: datetime) -> Callable[[Any], Any]:
        ttl = self._ttl + max((after.open_until or now) - now, timedelta(0))
        milliseconds = max(1, round(ttl.total_seconds() * 1000))
        return lambda client: client.eval(_SWAP, 1, key, raw or b"", orjson.dumps(after), milliseconds)


def _loads(raw: bytes) -> Circuit:
    """Reads a stored circuit. Fields that another release wrote and this one does not know are ignored."""
    stored = {name: value for name, value in orjson.loads(raw).items() if name in _FIELDS}
    for name in _TIMES:
        if stored.get(name) is not None:
            stored[name] = datetime.fromisoformat(stored[name])
    return Circuit(**stored)
