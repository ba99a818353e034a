"""Redis Streams: consumer groups, pending entries taken over from dead consumers. Needs `holdfast[redis]`, Redis 6.2.

An entry's field `body` is the record; other fields are its headers. An entry without it is read as an object of
all its fields, as text.
"""

import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast._log import get_logger
from holdfast.brokers.endpoint import check_texts
from holdfast.brokers.protocol import Lag, OutgoingRecord, Record
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

log = get_logger("holdfast.brokers")

BODY, KEY = "body", "key"
MOST_BYTES = 512 * 1024 * 1024
TRIMMED = "it was trimmed from the stream, or deleted, before it was read; what it held is lost"

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 10.0
_FORGET_AFTER_MS = 3_600_000
# A group or its stream that was deleted, also while somebody waited for it.
_GONE = ("NOGROUP", "UNBLOCKED")

# Only what is still this consumer's: one that was stalled for too long must not take back what another works on.
# KEYS: stream. ARGV: group, consumer, idle in ms, ids
_HOLD = """
local held = 0
for i = 4, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    held = held + 1
  end
end
return held
"""
# Deleting a consumer deletes its pending entries with it: looked at and deleted in one step.
_FORGET = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
"""
_COUNT_AFTER = "return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])"
_MOST_COUNTED = 10_000
_HELD_AT_ONCE = 500


def stream(
    name: str,
    *,
    group: str | None = None,
    url: str | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    maxlen: int | None = None,
) -> "RedisStream":
    """A stream, to consume from (with a `group`) or to send to.

    `url` is `redis://…`, from HOLDFAST_REDIS when left out. After `ack_timeout` a record that nobody acknowledges is taken
    from a consumer that must be dead. A new group starts with the first record, or with `start="now"`. `maxlen` trims
    the stream about there when sending: what a slow group has not read by then is lost to it.
    """
    check_texts("redis.stream", name, group=group, url=url)
    if maxlen is not None and (isinstance(maxlen, bool) or not isinstance(maxlen, int) or maxlen < 1):
        raise ConfigurationError(f"redis stream {name}: maxlen is {maxlen!r}; give a number of records")
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"redis stream {name}: start is {start!r}; use 'beginning' or 'now'")
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 0.1:
        raise ConfigurationError(f"redis stream {name}: ack_timeout is {ack_timeout!r}; give 100ms or more")
    return RedisStream(stream=name, group=group, url=url, ack_timeout=seconds, start=start, maxlen=maxlen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStream:
    """A Redis stream as a place; nothing is connected until it is opened."""

    stream: str
    group: str | None
    url: str | None
    ack_timeout: float
    start: str
    maxlen: int | None
    # Whether this process has read here: a group that is gone then was deleted, or its server forgot it.
    _read: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"RedisStream({self.name})"

    @property
    def name(self) -> str:
        return f"redis:{self.stream}" + ("" if self.group is None else f"/{self.group}")

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise ConfigurationError("Redis Streams need a driver; pip install holdfast[redis]") from error
        url = self.url or os.environ.get("HOLDFAST_REDIS")
        if not url:
            raise ConfigurationError(
                f"{self.name} has no address; pass url='redis://host:6379/0' or set HOLDFAST_REDIS"
            )
        try:
            client: Any = Redis.from_url(
                url,
                socket_connect_timeout=_CONNECT_SECONDS,
                socket_timeout=_ANSWER_SECONDS,
                # A command that is sent again may have been carried out: the caller decides about that.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError:
            # Not from it: it shows what it took for the port, which is part of a password with a slash in it.
            raise ConfigurationError(f"the address of {self.name} cannot be read; give redis://host:6379/0") from None
        # The driver gives the ids or the deleted ones, not both.
        client.set_response_callback("XAUTOCLAIM", lambda reply, **_: reply)
        try:
            yield client
        finally:
            with suppress(Exception):
                await client.aclose()

    @asynccontextmanager
    async def _opened(self, consumer: str | None) -> AsyncIterator[Any]:
        async with self._client() as client:
            if consumer is None:
                with _translated(self.name):
                    await client.ping()
                yield RedisSender(self, client)
                return
            subscription = RedisSubscription(self, client, consumer)
            await subscription.begin()
            try:
                yield subscription
            finally:
                await subscription.end()

    def open(self, consumer: str | None = None) -> Any:
        """As a source, for a consumer; as a target without one."""
        if consumer is not None and self.group is None:
            raise ConfigurationError(f"{self.name} is consumed without a group; give redis.stream(..., group='name')")
        return self._opened(consumer)

    async def durability_warnings(self) -> list[str]:
        """Settings of the server that can lose acknowledged records."""
        async with self._client() as client:
            with _translated(self.name):
                try:
                    found = {**await client.config_get("append*"), **await client.config_get("maxmemory*")}
                except Exception as error:
                    if "connect" in type(error).__name__.lower():
                        raise
                    return [
                        f"{self.name}: its settings may not be read ({error}); ask whoever runs it about appendonly"
                    ]
        return [f"{self.name}: {doubt}" for doubt in _doubts({str(k): str(v) for k, v in found.items()})]


def _doubts(settings: Mapping[str, str]) -> Iterator[str]:
    if settings.get("appendonly") == "no":
        yield "appendonly is off: a crash of Redis loses every record since its last snapshot; set appendonly yes"
    elif (fsync := settings.get("appendfsync")) in ("no", "everysec"):
        lost = "what the system had not written, some 30 seconds" if fsync == "no" else "up to two seconds"
        yield f"appendfsync is {fsync}: a crash of the machine loses {lost} of acknowledged records; set it to always"
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        yield f"maxmemory-policy is {policy}: a full Redis deletes whole streams; set it to noeviction"


class RedisSubscription:
    """One consumer instance of a group."""

    def __init__(self, place: RedisStream, client: Any, consumer: str) -> None:
        self._place, self._client = place, client
        self._prefix = f"{consumer}:"
        self.instance = f"{self._prefix}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._look_at = 0.0

    async def begin(self) -> None:
        """Makes the group if there is none, and forgets instances of this consumer that ended long ago."""
        with _translated(self._place.name):
            await self._make_group()
            await self._forget_dead()

    async def end(self) -> None:
        """Leaves: the name goes, unless it has pending entries, which others take over."""
        with suppress(Exception):
            await self._client.eval(_FORGET, 1, self._place.stream, self._place.group, self.instance)

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        with _translated(self._place.name):
            try:
                return await self._fetch(limit, wait)
            except Exception as error:
                if not str(error).startswith(_GONE):
                    raise
                log.warning(
                    "consumer group recreated",
                    source=self._place.name,
                )
                await self._make_group(from_start=True)
                return []

    async def ack(self, records: Sequence[Record]) -> None:
        with _translated(self._place.name):
            await self._client.xack(self._place.stream, self._place.group, *(record.receipt for record in records))

    async def release(self, records: Sequence[Record]) -> None:
        """Makes them look as if nobody had worked on them for long enough."""
        await self._hold(records, round(self._place.ack_timeout * 1000) + 1)

    async def extend(self, records: Sequence[Record]) -> None:
        await self._hold(records, 0)

    async def lag(self) -> Lag:
        with _translated(self._place.name):
            for group in await self._client.xinfo_groups(self._place.stream):
                if _str(group["name"]) == self._place.group:
                    waiting = group.get("lag")
                    if waiting is None:
                        # Before Redis 7 it does not say. Counted there, up to a limit: nothing is sent over.
                        last = group["last-delivered-id"]
                        waiting = await self._client.eval(_COUNT_AFTER, 1, self._place.stream, last, _MOST_COUNTED)
                    return Lag(waiting=waiting, unacknowledged=group["pending"])
        return Lag(waiting=None)

    async def _fetch(self, limit: int, wait: float) -> Sequence[Record]:
        if time.monotonic() >= self._look_at:
            if taken := await self._take_over(limit):
                return taken
            self._look_at = time.monotonic() + self._place.ack_timeout / 4
        # Before it is time to look for dead consumers again; and a block of zero would last for ever.
        block = min(wait, self._place.ack_timeout / 4, _ANSWER_SECONDS / 2)
        reply = await self._client.xreadgroup(
            self._place.group,
            self.instance,
            {self._place.stream: ">"},
            count=limit,
            block=max(1, round(block * 1000)),
        )
        return [self._record(id, fields, 1) for _, entries in reply or () for id, fields in entries]

    async def _take_over(self, limit: int) -> list[Record]:
        """What others have held for longer than is plausible, and what of it has lost its content."""
        place, cursor = self._place, "0-0"
        idle = round(place.ack_timeout * 1000)
        while True:
            reply = await self._client.execute_command(
                *("XAUTOCLAIM", place.stream, place.group, self.instance, idle, cursor, "COUNT", limit, "JUSTID")
            )
            # From Redis 7 on it has taken those without content off the list itself, and names them.
            cursor, ids, gone = reply[0], reply[1], reply[2] if len(reply) > 2 else []
            if ids or gone:
                return [*await self._read(ids), *(self._record(id, None, 2) for id in gone)]
            if _str(cursor) == "0-0":
                return []

    async def _read(self, ids: Sequence[Any]) -> list[Record]:
        # As one: its owner may still be alive and acknowledge it, and then it is done, not lost.
        pipe = self._client.pipeline(transaction=True)
        for id in ids:
            pipe.xpending_range(self._place.stream, self._place.group, id, id, 1)
            # Reading it so counts as handing it over once more.
            pipe.xclaim(self._place.stream, self._place.group, self.instance, 0, [id])
        answers = await pipe.execute()
        records = []
        for id, counted, claimed in zip(ids, answers[::2], answers[1::2], strict=True):
            if counted:
                fields = next((entry[1] for entry in claimed if entry and entry[0] is not None), None)
                records.append(self._record(id, fields, counted[0]["times_delivered"] + 1))
        if records:
            log.info("pending records claimed", source=self._place.name, records=len(records))
        return records

    def _record(self, id: Any, fields: Mapping[bytes, bytes] | None, delivery_count: int) -> Record:
        name = _str(id)
        at = datetime.fromtimestamp(int(name.partition("-")[0]) / 1000, UTC) if _plausible(name) else None
        if fields is None:
            log.error("records lost", source=self._place.name, lost=1, record=name, error=TRIMMED)
            return Record(
                stream=self._place.stream,
                id=name,
                body=b"",
                at=at,
                delivery_count=delivery_count,
                receipt=id,
                lost=TRIMMED,
            )
        body, headers = _content(fields)
        return Record(
            stream=self._place.stream,
            id=name,
            body=body,
            headers=headers,
            key=headers.pop(KEY, None),
            at=at,
            delivery_count=delivery_count,
            receipt=id,
        )

    async def _hold(self, records: Sequence[Record], idle: int) -> None:
        place = self._place
        with _translated(place.name):
            for at in range(0, len(records), _HELD_AT_ONCE):
                ids = [record.receipt for record in records[at : at + _HELD_AT_ONCE]]
                try:
                    await self._client.eval(_HOLD, 1, place.stream, place.group, self.instance, idle, *ids)
                except Exception as error:
                    # A group that is gone holds nothing: the next fetch makes it anew.
                    if "NOGROUP" not in str(error):
                        raise

    async def _make_group(self, *, from_start: bool = False) -> None:
        place = self._place
        start = "0" if from_start or place._read or place.start == "beginning" else "$"
        try:
            await self._client.xgroup_create(place.stream, place.group, id=start, mkstream=True)
        except Exception as error:
            if "BUSYGROUP" not in str(error):
                raise
        place._read.add(place.stream)

    async def _forget_dead(self) -> None:
        place = self._place
        for one in await self._client.xinfo_consumers(place.stream, place.group):
            name = _str(one["name"])
            if name.startswith(self._prefix) and not one["pending"] and one["idle"] > _FORGET_AFTER_MS:
                await self._client.eval(_FORGET, 1, place.stream, place.group, name)


class RedisSender:
    """Sends to one stream; Redis confirms each by the id it gave it."""

    def __init__(self, place: RedisStream, client: Any) -> None:
        self._place, self._client = place, client

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        place = self._place
        refused = [
            f"{len(one.body):,} bytes are too many for Redis" if len(one.body) > MOST_BYTES else None for one in batch
        ]
        pipe = self._client.pipeline(transaction=False)
        for one, reason in zip(batch, refused, strict=True):
            if reason is None:
                fields: dict[Any, Any] = {**one.headers, BODY: one.body}
                if one.key is not None:
                    fields[KEY] = one.key
                pipe.xadd(place.stream, fields, maxlen=place.maxlen, approximate=True)
        with _translated(place.name):
            await pipe.execute()
        return refused


def _content(fields: Mapping[bytes, bytes]) -> tuple[bytes, dict[str, str]]:
    body = fields.get(BODY.encode())
    try:
        texts = {name.decode(): value.decode() for name, value in fields.items() if name != BODY.encode()}
    except UnicodeDecodeError:
        if body is None:
            # Kept as it is, whatever it is: nobody can read this as JSON.
            return b"\n".join(name + b"=" + value for name, value in fields.items()), {}
        texts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
        texts.pop(BODY, None)
    return (orjson.dumps(texts), {}) if body is None else (body, texts)


def _plausible(id: str) -> bool:
    """Whether an id begins with a time: Redis makes them so, but whoever adds an entry may choose another."""
    milliseconds = id.partition("-")[0]
    return milliseconds.isdigit() and 10**12 <= int(milliseconds) < 10**14


def _str(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Whatever the driver raises, as one error: out of memory, loading, read-only and forbidden among it."""
    from redis import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(name, str(error)[:300]) from error
