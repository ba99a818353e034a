"""Sending to a queue or through an exchange: persistent, mandatory, and confirmed by the server."""

import asyncio
import re
from collections.abc import Sequence

from aiormq import Channel
from aiormq.exceptions import ChannelPreconditionFailed, PublishError
from pamqp.commands import Basic

from holdfast.brokers.protocol import OutgoingRecord
from holdfast.brokers.rabbitmq.line import Line
from holdfast.core.errors import BrokerUnavailable

KEY = "key"
_PERSISTENT = 2
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class Sending:
    """One channel, opened when it is first needed, and anew after the server closed it for a message's size."""

    def __init__(self, line: Line, *, queue: str | None = None, exchange: str = "") -> None:
        self._line, self._queue, self._exchange = line, queue, exchange
        self._channel: Channel | None = None
        self._largest: int | None = None

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        while True:
            refused = [self._refusal(outgoing) for outgoing in batch]
            wanted = [outgoing for outgoing, reason in zip(batch, refused, strict=True) if reason is None]
            known = self._largest
            await self._publish(wanted)
            if self._largest == known:
                return refused

    async def _publish(self, batch: Sequence[OutgoingRecord]) -> None:
        """Returns when all are confirmed, or when the server said that one of them is too large."""
        if self._channel is None or self._channel.is_closed:
            self._channel = await self._line.channel(confirms=True)
        tasks = [asyncio.ensure_future(self._one(self._channel, outgoing)) for outgoing in batch]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._line.timeout)
        finally:
            late = [task for task in tasks if task.cancel()]
            errors = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
        for error in errors:
            if isinstance(error, ChannelPreconditionFailed) and (found := _TOO_LARGE.search(str(error))):
                self._largest = int(found[1])
                return
        if late:
            raise self._line.unavailable(TimeoutError())
        for error in errors:
            if isinstance(error, PublishError):
                raise BrokerUnavailable(self._line.name, f"unroutable: no queue takes it, {_told(error)}") from error
            with self._line.told():
                raise error

    async def _one(self, channel: Channel, outgoing: OutgoingRecord) -> None:
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

    def _refusal(self, outgoing: OutgoingRecord) -> str | None:
        if self._largest is None or len(outgoing.body) <= self._largest:
            return None
        return f"{len(outgoing.body)} bytes, over the server's max_message_size of {self._largest}"


def _told(error: PublishError) -> str:
    message, frame = error.message, error.frame
    id = None if message is None else message.header.properties.message_id
    return f"message {id} came back ({getattr(frame, 'reply_code', '')} {getattr(frame, 'reply_text', '')})"
