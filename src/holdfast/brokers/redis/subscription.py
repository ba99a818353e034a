"""Consumes a Redis stream as one instance of a consumer group; claims the pending entries of dead instances."""

import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast._log import get_logger
from holdfast.brokers.protocol import Lag, Record
from holdfast.brokers.redis.connection import ANSWER_SECONDS, broker_errors, connect
from holdfast.brokers.redis.record import TRIMMED, record_of, text

if TYPE_CHECKING:
    from holdfast.brokers.redis.stream import RedisStream

log = get_logger("holdfast.brokers")

_DELETE_AFTER_MS = 3_600_000
# The group or its stream was deleted, perhaps during a blocking read.
_GROUP_MISSING = ("NOGROUP", "UNBLOCKED")

# Only entries that still belong to this instance: after a stall, another instance may have claimed them.
# KEYS: stream. ARGV: group, consumer, idle in ms, ids
_SET_IDLE = """
local held = 0
for i = 4, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    held = held + 1
  end
end
return held
"""
# Deleting a consumer deletes its pending entries, so the check and the deletion are one step.
_DELETE_CONSUMER = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
"""
_COUNT_AFTER = "return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])"
_MAX_COUNT = 10_000
_IDS_PER_CALL = 500


@asynccontextmanager
async def open_subscription(stream: "RedisStream", consumer: str) -> AsyncIterator["RedisSubscription"]:
    """Joins the group. On close, the instance is deleted unless it has pending entries, which others claim."""
    async with connect(stream) as client:
        subscription = RedisSubscription(stream, client, consumer)
        await subscription.start()
        try:
            yield subscription
        finally:
            await subscription.close()


class RedisSubscription:
    """One instance of a consumer in the group."""

    def __init__(self, stream: "RedisStream", client: Any, consumer: str) -> None:
        self._stream, self._client = stream, client
        self._prefix = f"{consumer}:"
        self.instance = f"{self._prefix}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._claim_at = 0.0

    async def start(self) -> None:
        """Creates the group if it does not exist, and deletes instances of this consumer that ended long ago."""
        with broker_errors(self._stream.name):
            await self._create_group()
            await self._delete_dead_instances()

    async def close(self) -> None:
        with suppress(Exception):
            await self._client.eval(_DELETE_CONSUMER, 1, self._stream.stream, self._stream.group, self.instance)

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        with broker_errors(self._stream.name):
            try:
                return await self._fetch(limit, wait)
            except Exception as error:
                if not str(error).startswith(_GROUP_MISSING):
                    raise
                log.warning("consumer group recreated", source=self._stream.name)
                await self._create_group(from_start=True)
                return []

    async def ack(self, records: Sequence[Record]) -> None:
        with broker_errors(self._stream.name):
            await self._client.xack(self._stream.stream, self._stream.group, *(record.receipt for record in records))

    async def release(self, records: Sequence[Record]) -> None:
        """Sets the idle time over the timeout, so that any instance can claim them at once."""
        await self._set_idle(records, round(self._stream.ack_timeout * 1000) + 1)

    async def extend(self, records: Sequence[Record]) -> None:
        await self._set_idle(records, 0)

    async def lag(self) -> Lag:
        with broker_errors(self._stream.name):
            for group in await self._client.xinfo_groups(self._stream.stream):
                if text(group["name"]) == self._stream.group:
                    waiting = group.get("lag")
                    if waiting is None:
                        # Redis before version 7 does not report the lag, so the server counts up to a limit.
                        last = group["last-delivered-id"]
                        waiting = await self._client.eval(_COUNT_AFTER, 1, self._stream.stream, last, _MAX_COUNT)
                    return Lag(waiting=waiting, unacknowledged=group["pending"])
        return Lag(waiting=None)

    async def _fetch(self, limit: int, wait: float) -> Sequence[Record]:
        if time.monotonic() >= self._claim_at:
            if claimed := await self._claim_expired(limit):
                return claimed
            self._claim_at = time.monotonic() + self._stream.ack_timeout / 4
        # Until the next check for dead instances; never 0, which would block without a limit.
        block = min(wait, self._stream.ack_timeout / 4, ANSWER_SECONDS / 2)
        reply = await self._client.xreadgroup(
            self._stream.group,
            self.instance,
            {self._stream.stream: ">"},
            count=limit,
            block=max(1, round(block * 1000)),
        )
        return [self._record(id, fields, 1) for _, entries in reply or () for id, fields in entries]

    async def _claim_expired(self, limit: int) -> list[Record]:
        """Claims entries that were pending for longer than the timeout, including those that lost their content."""
        stream, cursor = self._stream, "0-0"
        idle = round(stream.ack_timeout * 1000)
        while True:
            reply = await self._client.execute_command(
                *("XAUTOCLAIM", stream.stream, stream.group, self.instance, idle, cursor, "COUNT", limit, "JUSTID")
            )
            # Redis 7 and later has already removed the entries without content, and lists their ids.
            cursor, ids, deleted = reply[0], reply[1], reply[2] if len(reply) > 2 else []
            if ids or deleted:
                return [*await self._read(ids), *(self._record(id, None, 2) for id in deleted)]
            if text(cursor) == "0-0":
                return []

    async def _read(self, ids: Sequence[Any]) -> list[Record]:
        # One transaction: the former owner may still acknowledge an entry, which is then done and not lost.
        pipe = self._client.pipeline(transaction=True)
        for id in ids:
            pipe.xpending_range(self._stream.stream, self._stream.group, id, id, 1)
            # This read counts as another delivery.
            pipe.xclaim(self._stream.stream, self._stream.group, self.instance, 0, [id])
        answers = await pipe.execute()
        records = []
        for id, pending, claimed in zip(ids, answers[::2], answers[1::2], strict=True):
            if pending:
                fields = next((entry[1] for entry in claimed if entry and entry[0] is not None), None)
                records.append(self._record(id, fields, pending[0]["times_delivered"] + 1))
        if records:
            log.info("pending records claimed", source=self._stream.name, records=len(records))
        return records

    def _record(self, id: Any, fields: Mapping[bytes, bytes] | None, delivery_count: int) -> Record:
        if fields is None:
            log.error("records lost", source=self._stream.name, lost=1, record=text(id), error=TRIMMED)
        return record_of(self._stream.stream, id, fields, delivery_count)

    async def _set_idle(self, records: Sequence[Record], idle: int) -> None:
        stream = self._stream
        with broker_errors(stream.name):
            for at in range(0, len(records), _IDS_PER_CALL):
                ids = [record.receipt for record in records[at : at + _IDS_PER_CALL]]
                try:
                    await self._client.eval(_SET_IDLE, 1, stream.stream, stream.group, self.instance, idle, *ids)
                except Exception as error:
                    # A deleted group has no pending entries; the next fetch creates it again.
                    if "NOGROUP" not in str(error):
                        raise

    async def _create_group(self, *, from_start: bool = False) -> None:
        stream = self._stream
        start = "0" if from_start or stream.seen or stream.start == "beginning" else "$"
        try:
            await self._client.xgroup_create(stream.stream, stream.group, id=start, mkstream=True)
        except Exception as error:
            if "BUSYGROUP" not in str(error):
                raise
        stream.seen.add(stream.stream)

    async def _delete_dead_instances(self) -> None:
        stream = self._stream
        for one in await self._client.xinfo_consumers(stream.stream, stream.group):
            name = text(one["name"])
            if name.startswith(self._prefix) and not one["pending"] and one["idle"] > _DELETE_AFTER_MS:
                await self._client.eval(_DELETE_CONSUMER, 1, stream.stream, stream.group, name)
