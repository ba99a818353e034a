"""Idempotency records in Redis, for services that have neither PostgreSQL nor SQLite.

Each record is a hash and each step one script, so each step is atomic. The clock of Redis decides about leases. There is
no transaction to share: the effect and its record are two writes.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_never

import orjson

from holdfast.core.encryption import Cipher, check_cipher
from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.idempotency.records import ReadRecord, ReleaseKey, RenewKeys, ReserveKey, Step, StoreResponse
from holdfast.stores.encryption.columns import response_places
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.integrations.idempotency import KeyStatus, Reservation, StoredRecord, read_response

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
_READ = """
local r = redis.call('HMGET', KEYS[1], 'owner', 'hash', 'status', 'lease_until', 'code', 'headers', 'body')
if not r[1] then return false end
r[4] = tonumber(r[4]) < now and 1 or 0
return r
"""
# ARGV: owner, hash, lease, retention, method, path, whether any request may reserve a key whose owner failed
_RESERVE = f"""{_NOW}
local s = redis.call('HMGET', KEYS[1], 'status', 'lease_until', 'hash')
if not s[1] or (s[1] == 'started' and tonumber(s[2]) < now and (ARGV[7] == '1' or s[3] == ARGV[2])) then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'hash', ARGV[2], 'status', 'started',
             'lease_until', now + ARGV[3], 'method', ARGV[5], 'path', ARGV[6])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
{_READ}"""
_READ_RECORD = _NOW + _READ
_IS_OWNER = "redis.call('HGET', {key}, 'owner') == {owner} and redis.call('HGET', {key}, 'status') == 'started'"
# ARGV: owner, status, code, headers, whether there is a body, body
_FINISH = f"""
if not ({_IS_OWNER.format(key="KEYS[1]", owner="ARGV[1]")}) then return 0 end
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'code', ARGV[3], 'headers', ARGV[4])
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'body', ARGV[6]) end
return 1
"""
# ARGV: owner, whether any request may use the key next
_RELEASE = f"""
if not ({_IS_OWNER.format(key="KEYS[1]", owner="ARGV[1]")}) then return 0 end
if ARGV[2] == '1' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'owner', '', 'lease_until', 0)
return 1
"""
# ARGV: lease, then an owner for each key
_RENEW = f"""{_NOW}
local kept = {{}}
for i, key in ipairs(KEYS) do
  if {_IS_OWNER.format(key="key", owner="ARGV[i + 1]")} then
    redis.call('HSET', key, 'lease_until', now + ARGV[1])
    kept[#kept + 1] = ARGV[i + 1]
  end
end
return kept
"""


class RedisRecords:
    """Records in Redis, for all instances. Needs `holdfast[redis]`.

    Use a Redis that does not evict keys: after a record is evicted, its request can run again. With a `cipher`, the headers and
    bodies of responses are encrypted.
    """

    store = None

    def __init__(
        self,
        url: str,
        prefix: str = "holdfast:idempotency",
        timeout: float = 5.0,
        *,
        cipher: Cipher | None = None,
    ) -> None:
        check_cipher(cipher)
        try:
            from redis import Redis
            from redis.asyncio import Redis as AsyncRedis
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigurationError(
                "idempotency in Redis needs the redis driver; run `pip install 'holdfast[redis]'`"
            ) from error
        limits: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        self._async_client: Any = AsyncRedis.from_url(url, **limits)
        self._sync_client: Any = Redis.from_url(url, **limits)
        self._scripts: dict[tuple[bool, str], Any] = {}
        self._error: type[Exception] = RedisError
        self._prefix = prefix
        self._encryption = None if cipher is None else Encryption(cipher)

    async def do(self, step: Step) -> Any:
        text, keys, args, read = self._call(step)
        try:
            return read(await self._script(self._async_client, text)(keys=keys, args=args))
        except (self._error, OSError) as error:
            raise StoreUnavailable("redis", str(error)) from error

    def do_sync(self, step: Step) -> Any:
        text, keys, args, read = self._call(step)
        try:
            return read(self._script(self._sync_client, text)(keys=keys, args=args))
        except (self._error, OSError) as error:
            raise StoreUnavailable("redis", str(error)) from error

    async def close(self) -> None:
        """Closes the connections."""
        await self._async_client.aclose()
        self._sync_client.close()

    def _script(self, client: Any, text: str) -> Any:
        which = (client is self._async_client, text)
        if which not in self._scripts:
            self._scripts[which] = client.register_script(text)
        return self._scripts[which]

    def _call(self, step: Step) -> tuple[str, list[str], list[Any], Callable[[Any], Any]]:
        match step:
            case ReserveKey(reservation, lease, retention, any_request):
                given = [reservation.owner, reservation.request_hash, _ms(lease), _ms(retention)]
                given += [reservation.method, reservation.path, int(any_request)]
                return _RESERVE, [self._name(reservation)], given, self._reader(reservation)
            case ReadRecord(reservation):
                return _READ_RECORD, [self._name(reservation)], [], self._reader(reservation)
            case StoreResponse(reservation, response):
                headers, body = self._written(reservation, orjson.dumps(response.headers), response.body)
                given = [reservation.owner, response.progress.value, response.status, headers]
                given += [0 if body is None else 1, body or b""]
                return _FINISH, [self._name(reservation)], given, bool
            case ReleaseKey(reservation, any_request):
                return _RELEASE, [self._name(reservation)], [reservation.owner, int(any_request)], bool
            case RenewKeys(reservations, lease):
                owners = [one.owner for one in reservations]
                return _RENEW, [self._name(one) for one in reservations], [_ms(lease), *owners], _owners
            case _:
                assert_never(step)

    def _written(self, reservation: Reservation, headers: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        if self._encryption is None:
            return headers, body
        write, places = self._encryption.write, response_places(reservation.scope, reservation.key)
        return write(headers, places[0]), write(body, places[1])

    def _reader(self, reservation: Reservation) -> Callable[[Any], StoredRecord | None]:
        def read(row: list[Any] | None) -> StoredRecord | None:
            if row and row[4] is not None and self._encryption is not None:
                for index, place in zip((5, 6), response_places(reservation.scope, reservation.key), strict=True):
                    row[index] = None if row[index] is None else self._encryption.read(row[index], place)
            return _found(row)

        return read

    def _name(self, reservation: Reservation) -> str:
        # With the length of the scope, two pairs never share a name.
        return f"{self._prefix}:{len(reservation.scope)}:{reservation.scope}:{reservation.key}"


def _ms(duration: timedelta) -> int:
    return max(1, round(duration.total_seconds() * 1000))


def _owners(kept: list[bytes]) -> frozenset[str]:
    return frozenset(owner.decode() for owner in kept)


def _found(row: list[Any] | None) -> StoredRecord | None:
    if not row:
        return None
    owner, request_hash, status, lapsed, code, headers, body = row
    progress = KeyStatus(status.decode())
    response = None
    if code is not None:
        response = read_response(int(code), headers.decode(), body)
    lapsed = progress is KeyStatus.STARTED and bool(lapsed)
    return StoredRecord(owner.decode(), request_hash.decode(), progress, lapsed, response)
