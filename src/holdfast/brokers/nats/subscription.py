"""Consumes a stream through the group's durable pull consumer; the server confirms each acknowledgment."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from holdfast._log import get_logger
from holdfast.brokers.nats.connection import (
    ANSWER_SECONDS,
    NatsConnection,
    broker_errors,
    connect,
    description,
    status,
)
from holdfast.brokers.nats.record import record_of
from holdfast.brokers.protocol import Lag, Record
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo, StreamInfo

    from holdfast.brokers.nats.stream import NatsStream

log = get_logger("holdfast.brokers")

_HEARTBEAT_SECONDS = 5.0
# How long the rest of a batch may take after its first record.
_TAIL_SECONDS = 0.1
_FLOOR_SECONDS = 10.0
# The server stops delivering at this many unacknowledged records in the whole group.
_MAX_ACK_PENDING = 10_000


@asynccontextmanager
async def open_subscription(stream: "NatsStream", consumer: str) -> AsyncIterator["NatsSubscription"]:
    """On close, records that arrived too late to be fetched are released."""
    async with connect(stream, consumer) as connection:
        with broker_errors(stream.name):
            info = await connection.stream_info(stream)
            group = await _ensure_consumer(connection, stream, info)
        subscription = NatsSubscription(stream, connection, info, group)
        try:
            yield subscription
        finally:
            with suppress(BrokerUnavailable):
                await subscription.close()


async def _ensure_consumer(connection: NatsConnection, stream: "NatsStream", info: "StreamInfo") -> "ConsumerInfo":
    """The group's durable consumer, created or updated to our settings."""
    name = info.config.name or ""
    subjects = info.config.subjects or []
    settings: dict[str, Any] = {
        "ack_wait": stream.ack_timeout,
        "max_deliver": -1,
        "max_ack_pending": _MAX_ACK_PENDING,
        # No filter if it would match everything: then a gap in the sequence means lost records.
        "filter_subject": None if [stream.filter_subject] == subjects else stream.filter_subject,
        "filter_subjects": None,
        "backoff": None,
        "inactive_threshold": None,
    }
    found = await connection.consumer_info(stream, info)
    if found is not None:
        if found.config.deliver_subject is not None or found.config.ack_policy != AckPolicy.EXPLICIT:
            raise ConfigurationError(
                f"consumer {stream.group} of stream {name} is not a pull consumer that acknowledges each record; "
                "choose another group, or delete the consumer if it is not used"
            )
        if any(getattr(found.config, setting) != value for setting, value in settings.items()):
            found = await connection.jetstream.add_consumer(name, found.config.evolve(**settings))
        return found
    begin: dict[str, Any] = {"deliver_policy": DeliverPolicy.NEW if stream.start == "now" else DeliverPolicy.ALL}
    if stream.floors:
        # This process has consumed before: continue after the acknowledged records; a new stream starts at its beginning.
        first = stream.floors.get((name, info.created), 0) + 1
        begin = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": first}
        log.warning("consumer group recreated", source=stream.name, first_sequence=first)
    return await connection.jetstream.add_consumer(
        name, ConsumerConfig(durable_name=stream.group, ack_policy=AckPolicy.EXPLICIT, **begin, **settings)
    )


class NatsSubscription:
    """Pulls from the group's consumer for one process. Nothing is delivered between fetches."""

    def __init__(
        self, stream: "NatsStream", connection: NatsConnection, info: "StreamInfo", consumer: "ConsumerInfo"
    ) -> None:
        self._name, self._connection = stream.name, connection
        self._stream, self._consumer = consumer.stream_name, consumer.name
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._floors, self._created = stream.floors, (info.config.name or "", info.created)
        self._floor_at = asyncio.get_running_loop().time()
        self._is_unfiltered = not consumer.config.filter_subject and not consumer.config.filter_subjects
        delivered = consumer.delivered
        self._last = (delivered.consumer_seq, delivered.stream_seq) if delivered else (0, 0)
        self._note_floor(consumer)

    async def fetch(self, limit: int, wait: float) -> list[Record]:
        """Returns as soon as there is any record, with as many as are available."""
        with broker_errors(self._name):
            if asyncio.get_running_loop().time() - self._floor_at > _FLOOR_SECONDS:
                await self._update_floor()
            found = self._leftovers(limit) or await self._pull(limit, wait)
            await self._log_gaps(found)
        return [record_of(msg) for msg in found]

    async def ack(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"+ACK")

    async def release(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"-NAK")

    async def extend(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"+WPI")

    async def close(self) -> None:
        """Releases records that arrived too late to be fetched."""
        await self.release([record_of(msg) for msg in self._leftovers(sys.maxsize)])

    async def lag(self) -> Lag:
        with broker_errors(self._name):
            consumer = await self._connection.jetstream.consumer_info(self._stream, self._consumer)
        self._note_floor(consumer)
        return Lag(waiting=consumer.num_pending, unacknowledged=consumer.num_ack_pending)

    async def _update_floor(self) -> None:
        """Records up to which sequence everything is acknowledged; tries again later if the server does not answer."""
        self._floor_at = asyncio.get_running_loop().time()
        try:
            await self.lag()
        except BrokerUnavailable as error:
            log.debug("consumer info unavailable", source=self._name, error=str(error))

    async def _pull(self, limit: int, wait: float) -> list["Msg"]:
        """One batch. With `no_wait` and `expires` the server ends it after the last available record, or after `wait`."""
        loop, reply = asyncio.get_running_loop(), self._connection.new_reply_subject()
        until = loop.time() + wait
        request: dict[str, object] = {"batch": limit, "expires": int(wait * 1e9), "no_wait": True}
        has_heartbeat = wait > 2 * _HEARTBEAT_SECONDS
        if has_heartbeat:
            request["idle_heartbeat"] = int(_HEARTBEAT_SECONDS * 1e9)
        await self._connection.client.publish(self._pull_subject, orjson.dumps(request), reply)
        found: list[Msg] = []
        while len(found) < limit:
            silence = _TAIL_SECONDS if found else 2 * _HEARTBEAT_SECONDS if has_heartbeat else wait + ANSWER_SECONDS
            msg = await self._arrival(silence)
            if msg is None:
                if found:
                    break
                raise BrokerUnavailable(self._name, "the server does not respond")
            code = status(msg)
            if code is None:
                found.append(msg)
            elif code in ("404", "408"):
                if msg.subject == reply:
                    # Too early: the server still has an older request of ours. Let it end.
                    if not found and (left := until - loop.time()) > 0:
                        await asyncio.sleep(min(left, _TAIL_SECONDS))
                    break
            elif code != "100":
                raise self._unavailable(msg)
        return found

    def _leftovers(self, limit: int) -> list["Msg"]:
        """Records that arrived for a cancelled request."""
        found: list[Msg] = []
        while len(found) < limit and not self._connection.arrived.empty():
            msg = self._connection.arrived.get_nowait()
            if msg is None:
                raise BrokerUnavailable(self._name, "the connection ended")
            code = status(msg)
            if code is None:
                found.append(msg)
            elif code not in ("100", "404", "408"):
                raise self._unavailable(msg)
        return found

    async def _arrival(self, seconds: float) -> "Msg | None":
        if self._connection.arrived.empty():
            try:
                async with asyncio.timeout(seconds):
                    msg = await self._connection.arrived.get()
            except TimeoutError:
                return None
        else:
            msg = self._connection.arrived.get_nowait()
        if msg is None:
            raise BrokerUnavailable(self._name, "the connection ended")
        return msg

    def _unavailable(self, msg: "Msg") -> BrokerUnavailable:
        return BrokerUnavailable(self._name, f"consumer {self._consumer} of stream {self._stream}: {description(msg)}")

    async def _settle(self, records: Sequence[Record], word: bytes) -> None:
        """Raises if the consumer was deleted or has no leader now; the records are then redelivered."""
        with broker_errors(self._name):
            requests = [await self._connection.request(str(record.receipt), word) for record in records]
            for response in await self._connection.responses(requests):
                if status(response) is not None:
                    raise self._unavailable(response)

    async def _log_gaps(self, found: Sequence["Msg"]) -> None:
        """Logs how many records the stream dropped before they were delivered to this group.

        The consumer numbers its deliveries, so records are missing if the stream's sequence grows faster than the
        consumer's. With a filter that is normal.
        """
        if not self._is_unfiltered:
            return
        for msg in found:
            sequence, (count, last) = msg.metadata.sequence, self._last
            if msg.metadata.num_delivered > 1:
                self._last = (count + 1, last)
                continue
            missing = (sequence.stream - last) - (sequence.consumer - count)
            self._last = max(self._last, (sequence.consumer, sequence.stream), key=lambda pair: pair[1])
            if missing > 0:
                missing = min(missing, await self._dropped_after(last))
            if missing > 0:
                hint = "raise the limits of the stream"
                log.error("records lost", source=self._name, lost=missing, after=last, hint=hint)

    async def _dropped_after(self, sequence: int) -> int:
        """How many records after this one the stream has dropped; `sys.maxsize` if the server does not answer."""
        try:
            state = (await self._connection.jetstream.stream_info(self._stream)).state
        except (Error, OSError, TimeoutError) as error:
            # The check must not lose the records that were just fetched.
            log.debug("stream info unavailable", source=self._name, error=repr(error))
            return sys.maxsize
        return int(state.first_seq) - 1 - sequence

    def _note_floor(self, consumer: "ConsumerInfo") -> None:
        self._floor_at = asyncio.get_running_loop().time()
        if consumer.ack_floor is not None:
            self._floors[self._created] = max(consumer.ack_floor.stream_seq, self._floors.get(self._created, 0))
