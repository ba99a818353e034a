"""Sending to a Kafka topic: an idempotent producer, every record confirmed by all replicas in sync."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.kafka.place import Topic


@asynccontextmanager
async def opened(topic: "Topic") -> AsyncIterator["Sending"]:
    """A sender. What is not confirmed when it is closed is dropped here; whether it arrived is unknown."""
    sending = Sending(topic)
    try:
        yield sending
    finally:
        await sending.close()


class Sending:
    """One producer. Its calls block, so one thread makes them."""

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic
        self._thread = ThreadPoolExecutor(1, "holdfast-kafka-send")
        self._producer = topic.client(
            Producer,
            {
                "acks": "all",
                "enable.idempotence": True,
                # Of a key's records, the same partition that Java's clients choose.
                "partitioner": "murmur2_random",
                # Longer than we wait: a record must not be given up while a later one of its key still goes out.
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
        refused: list[str | None] = [None] * len(batch)
        for index, error in sorted(errors.items()):
            if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise BrokerUnavailable(self._topic.name, error.str())
            # The broker speaks of what it was sent at once; alone, a record is refused for its own size.
            [refused[index]] = [error.str()] if len(batch) == 1 else self._send([batch[index]])
        return refused

    def _produce(self, index: int, outgoing: OutgoingRecord, errors: dict[int, KafkaError], deadline: float) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors[index] = error

        while True:
            try:
                self._producer.produce(
                    self._topic.topic,
                    value=outgoing.body,
                    key=outgoing.key,
                    headers=[(name, value.encode()) for name, value in outgoing.headers.items()],
                    on_delivery=delivered,
                )
                return
            except BufferError:  # as many are on their way as the client keeps
                if time.monotonic() > deadline:
                    self._drop()
                    raise BrokerUnavailable(self._topic.name, "what was sent is not confirmed") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                errors[index] = error.args[0]
                return

    def _drop(self) -> None:
        self._producer.purge()
        self._producer.flush(0)
