"""The brokers that are measured, each with its own client doing by hand what Holdfast promises.

`bare_consume` acknowledges a batch after it is committed to a table; `bare_send` returns when a batch is confirmed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from holdfast.brokers import kafka, nats, rabbitmq, redis

BATCH = 500
_WAIT = 10

Insert = Callable[[Sequence[bytes]], Awaitable[None]]
Send = Callable[[Sequence[bytes]], Awaitable[None]]


class Broker(Protocol):
    """One broker on its server, as Holdfast's place and as the client's own loop. A stream's group has its name."""

    def place(self, stream: str, *, reads: bool) -> Any: ...

    async def prepare(self, stream: str) -> None:
        """Makes an empty stream."""
        ...

    async def bare_consume(self, stream: str, count: int, insert: Insert) -> None: ...

    def bare_sender(self, stream: str) -> "contextlib.AbstractAsyncContextManager[Send]": ...


class Redis:
    def __init__(self, url: str) -> None:
        self.url = url

    def place(self, stream: str, *, reads: bool) -> Any:
        return redis.stream(stream, group=stream if reads else None, url=self.url)

    async def prepare(self, stream: str) -> None:
        async with self._client() as client:
            await client.xgroup_create(stream, stream, id="0", mkstream=True)

    async def bare_consume(self, stream: str, count: int, insert: Insert) -> None:
        async with self._client() as client:
            while count > 0:
                reply = await client.xreadgroup(stream, "bare", {stream: ">"}, count=BATCH, block=1000 * _WAIT)
                entries = reply[0][1]
                await insert([fields[b"body"] for _, fields in entries])
                await client.xack(stream, stream, *(id for id, _ in entries))
                count -= len(entries)

    @contextlib.asynccontextmanager
    async def bare_sender(self, stream: str) -> AsyncIterator[Send]:
        async with self._client() as client:

            async def send(bodies: Sequence[bytes]) -> None:
                pipe = client.pipeline(transaction=False)
                for body in bodies:
                    pipe.xadd(stream, {"body": body})
                await pipe.execute()

            yield send

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        from redis.asyncio import Redis as Client

        client: Any = Client.from_url(self.url)
        yield client
        await client.aclose()


class Nats:
    def __init__(self, url: str) -> None:
        self.url = url

    def place(self, stream: str, *, reads: bool) -> Any:
        return nats.stream(stream, group=stream if reads else None, servers=self.url)

    async def prepare(self, stream: str) -> None:
        async with self._client() as jetstream:
            await jetstream.add_stream(name=stream, subjects=[stream])

    async def bare_consume(self, stream: str, count: int, insert: Insert) -> None:
        async with self._client() as jetstream:
            subscription = await jetstream.pull_subscribe(stream, durable=stream)
            while count > 0:
                messages = await subscription.fetch(BATCH, timeout=_WAIT)
                await insert([message.data for message in messages])
                await asyncio.gather(*(message.ack_sync(timeout=_WAIT) for message in messages))
                count -= len(messages)

    @contextlib.asynccontextmanager
    async def bare_sender(self, stream: str) -> AsyncIterator[Send]:
        async with self._client() as jetstream:

            async def send(bodies: Sequence[bytes]) -> None:
                await asyncio.gather(*(jetstream.publish(stream, body, timeout=_WAIT) for body in bodies))

            yield send

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        from nats.aio.client import Client

        client = Client()
        await client.connect(self.url)
        yield client.jetstream()
        await client.close()


class Rabbit:
    def __init__(self, url: str) -> None:
        self.url = url

    def place(self, stream: str, *, reads: bool) -> Any:
        return rabbitmq.queue(stream, url=self.url)

    async def prepare(self, stream: str) -> None:
        async with self._channel() as channel:
            await channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "quorum"})

    async def bare_consume(self, stream: str, count: int, insert: Insert) -> None:
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        async with self._channel() as channel:
            await channel.set_qos(prefetch_count=2 * BATCH)
            queue = await channel.get_queue(stream)
            tag = await queue.consume(arrived.put)
            while count > 0:
                messages = [await asyncio.wait_for(arrived.get(), _WAIT)]
                while not arrived.empty() and len(messages) < BATCH:
                    messages.append(arrived.get_nowait())
                await insert([message.body for message in messages])
                await messages[-1].ack(multiple=True)
                count -= len(messages)
            await queue.cancel(tag)

    @contextlib.asynccontextmanager
    async def bare_sender(self, stream: str) -> AsyncIterator[Send]:
        from aio_pika import DeliveryMode, Message

        async with self._channel() as channel:

            async def send(bodies: Sequence[bytes]) -> None:
                exchange = channel.default_exchange
                messages = (Message(body, delivery_mode=DeliveryMode.PERSISTENT) for body in bodies)
                await asyncio.gather(*(exchange.publish(message, stream) for message in messages))

            yield send

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        from aio_pika import connect

        async with await connect(self.url) as connection, connection.channel() as channel:
            yield channel


class Kafka:
    """librdkafka's own cluster, in memory: it shows what the clients cost, not what Kafka does."""

    def __init__(self, servers: str, create: Callable[[str], None]) -> None:
        self.servers, self._create = servers, create

    def place(self, stream: str, *, reads: bool) -> Any:
        return kafka.topic(stream, group=stream if reads else None, servers=self.servers)

    async def prepare(self, stream: str) -> None:
        self._create(stream)

    async def bare_consume(self, stream: str, count: int, insert: Insert) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": stream,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([stream])
        while count > 0:
            # It returns when it has as many, so the end of the stream would be waited out.
            messages = await asyncio.to_thread(consumer.consume, min(BATCH, count), _WAIT)
            if not messages:
                continue
            await insert([message.value() or b"" for message in messages])
            await asyncio.to_thread(consumer.commit, asynchronous=False)
            count -= len(messages)
        await asyncio.to_thread(consumer.close)

    @contextlib.asynccontextmanager
    async def bare_sender(self, stream: str) -> AsyncIterator[Send]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 0})

        async def send(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                producer.produce(stream, body)
            assert await asyncio.to_thread(producer.flush, _WAIT) == 0

        yield send
