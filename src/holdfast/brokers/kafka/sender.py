"""Sends to a Kafka topic with an idempotent producer; all in-sync replicas confirm each record."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.brokers.kafka.connection import connect
from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.kafka.topic import KafkaTopic


@asynccontextmanager
async def open_sender(topic: "KafkaTopic") -> AsyncIterator["KafkaSender"]:
    """A sender. On close, unconfirmed records are dropped; it is unknown whether they arrived."""
    sender = KafkaSender(topic)
    try:
        yield sender
    finally:
        await sender.close()


class KafkaSender:
    """One producer. Its calls block, so one thread makes them."""

    def __init__(self, topic: "KafkaTopic") -> None:
        self._topic = topic
        self._thread = ThreadPoolExecutor(1, "holdfast-kafka-send")
        self._producer = connect(
            topic,
            Producer,
            {
                "acks": "all",
                "enable.idempotence": True,
                # The same partition for a key that the Java clients choose.
                "partitioner": "murmur2_random",
                # Longer than our timeout: a record must not expire while a later one with its key is still sent.
                "delivery.timeout.ms": round(topic.timeout * 2000),
            },
        )

    async def send(self, batch: Sequence[OutgoingRecord]) -> Sequence[str | None]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._send, batch)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        self._thread.shutdown(wait=False)

    def _send(self, batch: Sequence[OutgoingRecord]) -> list[str | None]:
        errors: dict[int, KafkaError] = {}
        deadline = time.monotonic() + self._topic.timeout
        for index, outgoing in enumerate(batch):
            self._produce(index, outgoing, errors, deadline)
        if self._producer.flush(max(0.1, deadline - time.monotonic())):
            self._drop()
            raise BrokerUnavailable(self._topic.name, f"no confirmation within {self._topic.timeout:g} s")
        rejected: list[str | None] = [None] * len(batch)
        for index, error in sorted(errors.items()):
            if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise BrokerUnavailable(self._topic.name, error.str())
            # The limit applies to the whole request; sent alone, a record is rejected for its own size.
            [rejected[index]] = [error.str()] if len(batch) == 1 else self._send([batch[index]])
        return rejected

    def _produce(self, index: int, outgoing: OutgoingRecord, errors: dict[int, KafkaError], deadline: float) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors[index] = error

        while True:
            try:
                self._producer.produce(
                    self._topic.topic,
                    value=outgoing.body,
                    key=outgoing.key,
                    headers=[(name, value.encode()) for name, value in outgoing.headers.items()],
                    on_delivery=on_delivery,
                )
                return
            except BufferError:  # the client's send buffer is full
                if time.monotonic() > deadline:
                    self._drop()
                    raise BrokerUnavailable(self._topic.name, "sent records were not confirmed") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                errors[index] = error.args[0]
                return

    def _drop(self) -> None:
        self._producer.purge()
        self._producer.flush(0)
