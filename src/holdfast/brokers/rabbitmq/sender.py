"""Sends to a queue or an exchange: persistent, mandatory, and confirmed by the server."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiormq import Channel
from aiormq.exceptions import ChannelPreconditionFailed, PublishError
from pamqp.commands import Basic

from holdfast.brokers.protocol import OutgoingRecord
from holdfast.brokers.rabbitmq.connection import RabbitConnection, connect
from holdfast.brokers.rabbitmq.record import KEY
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.rabbitmq.queue import RabbitExchange, RabbitQueue

_PERSISTENT = 2
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


@asynccontextmanager
async def open_sender(target: "RabbitQueue | RabbitExchange") -> AsyncIterator["RabbitSender"]:
    queue: str | None = getattr(target, "queue", None)
    async with connect(target, "holdfast") as connection:
        if queue is not None:
            await connection.ensure(queue)
        yield RabbitSender(connection, queue=queue, exchange=getattr(target, "exchange", ""))


class RabbitSender:
    """Uses one channel, and opens a new one after the server closed it because of a message's size."""

    def __init__(self, connection: RabbitConnection, *, queue: str | None, exchange: str) -> None:
        self._connection, self._queue, self._exchange = connection, queue, exchange
        self._channel: Channel | None = None
        self._max_size: int | None = None

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        while True:
            rejected = [self._rejection(outgoing) for outgoing in batch]
            accepted = [outgoing for outgoing, reason in zip(batch, rejected, strict=True) if reason is None]
            known = self._max_size
            await self._publish(accepted)
            if self._max_size == known:
                return rejected

    async def _publish(self, batch: Sequence[OutgoingRecord]) -> None:
        """Returns when all are confirmed, or when the server reported that one of them is too large."""
        if self._channel is None or self._channel.is_closed:
            self._channel = await self._connection.channel(confirms=True)
        tasks = [asyncio.ensure_future(self._publish_one(self._channel, outgoing)) for outgoing in batch]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._connection.timeout)
        finally:
            late = [task for task in tasks if task.cancel()]
            errors = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
        for error in errors:
            if isinstance(error, ChannelPreconditionFailed) and (found := _TOO_LARGE.search(str(error))):
                self._max_size = int(found[1])
                return
        if late:
            raise self._connection.unavailable(TimeoutError())
        for error in errors:
            if isinstance(error, PublishError):
                raise BrokerUnavailable(self._connection.name, _unroutable(error)) from error
            with self._connection.broker_errors():
                raise error

    async def _publish_one(self, channel: Channel, outgoing: OutgoingRecord) -> None:
        headers = dict(outgoing.headers)
        content_type = headers.pop("content-type", None)
        if outgoing.key is not None:
            headers[KEY] = outgoing.key
        await channel.basic_publish(
            outgoing.body,
            exchange=self._exchange,
            routing_key=outgoing.type if self._queue is None else self._queue,
            properties=Basic.Properties(
                message_id=outgoing.id,
                message_type=outgoing.type,
                content_type=content_type,
                delivery_mode=_PERSISTENT,
                headers=dict(headers),
            ),
            mandatory=True,
            wait=False,
        )

    def _rejection(self, outgoing: OutgoingRecord) -> str | None:
        if self._max_size is None or len(outgoing.body) <= self._max_size:
            return None
        return f"{len(outgoing.body)} bytes, over the server's max_message_size of {self._max_size}"


def _unroutable(error: PublishError) -> str:
    message, frame = error.message, error.frame
    id = None if message is None else message.header.properties.message_id
    reason = f"{getattr(frame, 'reply_code', '')} {getattr(frame, 'reply_text', '')}"
    return f"unroutable: no queue accepts message {id} ({reason})"
