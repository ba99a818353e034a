"""Reading a queue: records are pushed to us, as many as the prefetch allows, and acknowledged one by one."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aiormq import Channel
from aiormq.abc import DeliveredMessage

from holdfast.brokers.protocol import Lag, Record
from holdfast.brokers.rabbitmq.line import Line
from holdfast.brokers.rabbitmq.sending import KEY

_COUNT = "x-delivery-count"
_MOMENT = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class _Receipt:
    """A tag means something in the channel it came through only; another counts from one again."""

    reading: "Reading"
    tag: int


class Reading:
    """One consumer in one channel. Once either ends, every tag is void and the queue hands its records to others."""

    def __init__(self, line: Line, queue: str, *, prefetch: int, ack_timeout: float) -> None:
        self._line, self._queue = line, queue
        self._prefetch, self._ack_timeout = prefetch, ack_timeout
        self._arrived: deque[Record] = deque()
        self._held: set[int] = set()
        self._settling = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._channel: Channel | None = None
        self._consumer: str | None = None

    async def start(self) -> None:
        self._channel = await self._line.channel()
        self._channel.closing.add_done_callback(lambda _: self._stirred.set())
        with self._line.told():
            await self._channel.basic_qos(prefetch_count=self._prefetch, timeout=self._line.timeout)
            told = await self._channel.basic_consume(
                self._queue,
                self._arrive,
                arguments={"x-consumer-timeout": round(self._ack_timeout * 1000)},
                timeout=self._line.timeout,
            )
        self._consumer = told.consumer_tag

    async def close(self) -> None:
        """Ends the channel, and with that waits until the server has taken what was sent before."""
        if self._channel is not None:
            await self._line.closed(self._channel)

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        if not self._arrived:
            self._stirred.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stirred.wait()
        if len(self._arrived) < limit:
            # They are pushed one by one; a moment later there are more to be committed together.
            await asyncio.sleep(_MOMENT)
        self._check()
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def ack(self, records: Sequence[Record]) -> None:
        async with self._settling:
            tags = self._tags(records)
            # What lies before everything that is still held goes in one frame. Of many single frames, some had no
            # effect when the channel was closed right after them (seen under load, not explained).
            lowest = min(self._held.difference(tags), default=None)
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
        """Does nothing: RabbitMQ counts from the delivery, and the subscription has already set `ack_timeout`."""

    async def lag(self) -> Lag:
        with self._line.told():
            return Lag(waiting=await self._line.declare(self._queue, passive=True), unacknowledged=len(self._held))

    async def _settle(self, tags: Sequence[int], frames: Sequence[Coroutine[None, None, None]]) -> None:
        """Sends these in order; a tag is held until its frame is written, or another's frame would settle it too."""
        if not frames:
            return
        sending = asyncio.create_task(_one_by_one(frames))
        try:
            # Not only awaited: in a connection that is lost the client would wait for ever for room to write.
            await asyncio.wait(
                [sending, self._open.closing], return_when=asyncio.FIRST_COMPLETED, timeout=self._line.timeout
            )
            if not sending.done():
                why = None if self._open.is_closed else TimeoutError()
                raise self._line.unavailable(why)
            with self._line.told():
                sending.result()
        finally:
            sending.cancel()
        self._held.difference_update(tags)

    @property
    def _open(self) -> Channel:
        assert self._channel is not None, "start() comes first"
        return self._channel

    async def _arrive(self, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        assert tag is not None
        self._held.add(tag)
        self._arrived.append(_record(self._queue, message, _Receipt(self, tag)))
        self._stirred.set()

    def _check(self) -> None:
        """Raises once nothing can come any more: the channel was closed, or the queue deleted, which only ends us."""
        if self._open.is_closed:
            closing = self._open.closing
            why = closing.exception() if closing.done() and not closing.cancelled() else None
            raise self._line.unavailable(why)
        if self._consumer not in self._open.consumers:
            raise self._line.unavailable(LookupError("the queue was deleted, or its node is away"))

    def _tags(self, records: Sequence[Record]) -> list[int]:
        """The tags of these that are still held here, lowest first."""
        # A tag that is told twice, or to another channel, would settle another record or end the channel.
        receipts = [record.receipt for record in records]
        own = {one.tag for one in receipts if isinstance(one, _Receipt) and one.reading is self}
        return sorted(own & self._held)


async def _one_by_one(frames: Sequence[Coroutine[None, None, None]]) -> None:
    try:
        for frame in frames:
            await frame
    finally:
        for frame in frames:
            frame.close()


def _record(queue: str, message: DeliveredMessage, receipt: _Receipt) -> Record:
    properties = message.header.properties
    # How often it was handed over is no part of it: what is kept of a record must be the same each time.
    headers = {name: _text(value) for name, value in (properties.headers or {}).items() if name != _COUNT}
    if properties.content_type:
        headers["content-type"] = properties.content_type
    return Record(
        stream=queue,
        id=properties.message_id or None,
        body=message.body,
        headers=headers,
        key=headers.get(KEY),
        at=properties.timestamp,
        delivery_count=_count(properties.headers or {}, again=bool(message.redelivered)),
        receipt=receipt,
    )


def _count(headers: Mapping[str, object], *, again: bool) -> int:
    counted = headers.get(_COUNT)  # of quorum queues
    return counted + 1 if isinstance(counted, int) else 2 if again else 1


def _text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
