"""Consumes a queue: the server pushes records up to the prefetch limit, and each is acknowledged."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiormq import Channel
from aiormq.abc import DeliveredMessage

from holdfast.brokers.protocol import Lag, Record
from holdfast.brokers.rabbitmq.connection import RabbitConnection, connect
from holdfast.brokers.rabbitmq.record import record_of

if TYPE_CHECKING:
    from holdfast.brokers.rabbitmq.queue import RabbitQueue

_BATCH_SECONDS = 0.002


@asynccontextmanager
async def open_subscription(queue: "RabbitQueue", consumer: str) -> AsyncIterator["RabbitSubscription"]:
    async with connect(queue, consumer) as connection:
        await connection.ensure(queue.queue)
        subscription = RabbitSubscription(connection, queue)
        try:
            await subscription.start()
            yield subscription
        finally:
            await subscription.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Receipt:
    """A delivery tag is valid only in the channel that delivered it; each channel counts from one."""

    subscription: "RabbitSubscription"
    tag: int


class RabbitSubscription:
    """One consumer in one channel. When either ends, every tag is invalid and the queue redelivers its records."""

    def __init__(self, connection: RabbitConnection, queue: "RabbitQueue") -> None:
        self._connection, self._queue = connection, queue
        self._arrived: deque[Record] = deque()
        self._unsettled: set[int] = set()
        self._settling = asyncio.Lock()
        self._changed = asyncio.Event()
        self._channel: Channel | None = None
        self._consumer: str | None = None

    async def start(self) -> None:
        self._channel = await self._connection.channel()
        self._channel.closing.add_done_callback(lambda _: self._changed.set())
        with self._connection.broker_errors():
            await self._channel.basic_qos(prefetch_count=self._queue.prefetch, timeout=self._connection.timeout)
            answer = await self._channel.basic_consume(
                self._queue.queue,
                self._on_message,
                arguments={"x-consumer-timeout": round(self._queue.ack_timeout * 1000)},
                timeout=self._connection.timeout,
            )
        self._consumer = answer.consumer_tag

    async def close(self) -> None:
        """Closes the channel, which waits until the server has processed all earlier frames."""
        if self._channel is not None:
            await self._connection.close(self._channel)

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        if not self._arrived:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
        if len(self._arrived) < limit:
            # The server pushes records one by one; after a short wait there are more to commit together.
            await asyncio.sleep(_BATCH_SECONDS)
        self._check()
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def ack(self, records: Sequence[Record]) -> None:
        async with self._settling:
            tags = self._tags(records)
            # One frame acknowledges all tags below the lowest unsettled one. When there were many single frames, some
            # had no effect if the channel was closed right after them (seen under load, cause unknown).
            lowest = min(self._unsettled.difference(tags), default=None)
            rest = [] if lowest is None else [tag for tag in tags if tag > lowest]
            frames = [self._open.basic_ack(tag, wait=False) for tag in rest]
            if len(tags) > len(rest):
                frames.append(self._open.basic_ack(tags[len(tags) - len(rest) - 1], multiple=True, wait=False))
            await self._settle(tags, frames)

    async def release(self, records: Sequence[Record]) -> None:
        async with self._settling:
            tags = self._tags(records)
            await self._settle(tags, [self._open.basic_nack(tag, requeue=True, wait=False) for tag in tags])

    async def extend(self, records: Sequence[Record]) -> None:
        """Does nothing: RabbitMQ measures the time from the delivery, and the subscription has already set `ack_timeout`."""

    async def lag(self) -> Lag:
        with self._connection.broker_errors():
            waiting = await self._connection.declare(self._queue.queue, passive=True)
            return Lag(waiting=waiting, unacknowledged=len(self._unsettled))

    async def _settle(self, tags: Sequence[int], frames: Sequence[Coroutine[None, None, None]]) -> None:
        """Sends the frames in order. A tag stays unsettled until its frame is written: else `multiple` could include it."""
        if not frames:
            return
        sending = asyncio.create_task(_send_in_order(frames))
        try:
            # Not a plain await: after a lost connection the client would wait without a limit to write.
            await asyncio.wait(
                [sending, self._open.closing], return_when=asyncio.FIRST_COMPLETED, timeout=self._connection.timeout
            )
            if not sending.done():
                raise self._connection.unavailable(None if self._open.is_closed else TimeoutError())
            with self._connection.broker_errors():
                sending.result()
        finally:
            sending.cancel()
        self._unsettled.difference_update(tags)

    @property
    def _open(self) -> Channel:
        assert self._channel is not None, "start() comes first"
        return self._channel

    async def _on_message(self, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        assert tag is not None
        self._unsettled.add(tag)
        self._arrived.append(record_of(self._queue.queue, message, _Receipt(self, tag)))
        self._changed.set()

    def _check(self) -> None:
        """Raises if no more records can arrive: the channel was closed, or the queue was deleted."""
        if self._open.is_closed:
            closing = self._open.closing
            why = closing.exception() if closing.done() and not closing.cancelled() else None
            raise self._connection.unavailable(why)
        if self._consumer not in self._open.consumers:
            raise self._connection.unavailable(LookupError("the queue was deleted, or its node is down"))

    def _tags(self, records: Sequence[Record]) -> list[int]:
        """The tags of these records that are unsettled in this channel, lowest first."""
        # A tag that is sent twice, or in another channel, would settle another record or end the channel.
        receipts = [record.receipt for record in records]
        own = {one.tag for one in receipts if isinstance(one, _Receipt) and one.subscription is self}
        return sorted(own & self._unsettled)


async def _send_in_order(frames: Sequence[Coroutine[None, None, None]]) -> None:
    try:
        for frame in frames:
            await frame
    finally:
        for frame in frames:
            frame.close()
