"""RabbitMQ as a broker under test: an exchange for each stream, a queue for each group."""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence

import aiormq
from pamqp.commands import Basic

from holdfast.brokers.rabbitmq import RabbitQueue, queue
from tests.servers.rabbitmq import RabbitMQ


def make_source(name: str, group: str) -> RabbitQueue:
    return queue(f"{name}.{group}", url=os.environ["HOLDFAST_RABBITMQ"])


class RabbitBroker:
    """One node, killed and started again. What it confirmed is on its disk."""

    source = "tests.brokers.rabbitmq_broker:make_source"

    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self._ids = itertools.count()

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOLDFAST_RABBITMQ": self.server.url}

    def prepare(self, stream: str, groups: Sequence[str]) -> None:
        async def declare() -> None:
            connection = await aiormq.connect(self.server.url)
            channel = await connection.channel()
            await channel.exchange_declare(stream, exchange_type="fanout", durable=True)
            for group in groups:
                name = f"{stream}.{group}"
                await channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
                await channel.queue_bind(name, stream)
            await connection.close()

        asyncio.run(declare())

    def put(self, stream: str, bodies: Sequence[bytes]) -> None:
        async def publish() -> None:
            connection = await aiormq.connect(self.server.url)
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await asyncio.gather(
                *(
                    channel.basic_publish(
                        body,
                        exchange=stream,
                        properties=Basic.Properties(message_id=f"{stream}-{next(self._ids)}", delivery_mode=2),
                        mandatory=True,
                    )
                    for body in bodies
                )
            )
            await connection.close()

        asyncio.run(publish())

    def unsettled(self, stream: str, group: str) -> int:
        return sum(self.server.queues()[f"{stream}.{group}"])

    def restart(self) -> None:
        self.server.kill()
        self.server.start()
