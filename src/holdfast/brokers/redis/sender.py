"""Sends to a Redis stream; Redis confirms each record with its id."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.brokers.protocol import OutgoingRecord
from holdfast.brokers.redis.connection import broker_errors, connect
from holdfast.brokers.redis.record import BODY, KEY

if TYPE_CHECKING:
    from holdfast.brokers.redis.stream import RedisStream

_MAX_BYTES = 512 * 1024 * 1024


@asynccontextmanager
async def open_sender(stream: "RedisStream") -> AsyncIterator["RedisSender"]:
    async with connect(stream) as client:
        with broker_errors(stream.name):
            await client.ping()
        yield RedisSender(stream, client)


class RedisSender:
    """Sends each batch in one pipeline."""

    def __init__(self, stream: "RedisStream", client: Any) -> None:
        self._stream, self._client = stream, client

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        stream = self._stream
        rejected = [
            f"{len(one.body):,} bytes are too many for Redis" if len(one.body) > _MAX_BYTES else None for one in batch
        ]
        pipe = self._client.pipeline(transaction=False)
        for one, reason in zip(batch, rejected, strict=True):
            if reason is None:
                fields: dict[Any, Any] = {**one.headers, BODY: one.body}
                if one.key is not None:
                    fields[KEY] = one.key
                pipe.xadd(stream.stream, fields, maxlen=stream.maxlen, approximate=True)
        with broker_errors(stream.name):
            await pipe.execute()
        return rejected
