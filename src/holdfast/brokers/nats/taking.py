"""Records of a JetStream consumer: asked for one batch at a time, settled with the server's confirmation."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import orjson

from holdfast._log import get_logger
from holdfast.brokers.nats.line import ANSWER_SECONDS, SUBJECT, Line, description, reported, status
from holdfast.brokers.protocol import Lag, Record
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo

log = get_logger("holdfast.brokers")

_BEAT_SECONDS = 5.0
# How long the rest of a batch may take behind its first record.
_TAIL_SECONDS = 0.1
_LOOK_SECONDS = 10.0


class NatsSubscription:
    """What one process takes from the group's consumer. Nothing is handed over between fetches."""

    def __init__(self, name: str, line: Line, consumer: "ConsumerInfo", looked: Callable[[int], None]) -> None:
        self._name, self._line = name, line
        self._stream, self._consumer = consumer.stream_name, consumer.name
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._looked, self._looked_at = looked, asyncio.get_running_loop().time()
        self._whole = not consumer.config.filter_subject and not consumer.config.filter_subjects
        delivered = consumer.delivered
        self._last = (delivered.consumer_seq, delivered.stream_seq) if delivered else (0, 0)
        self._note(consumer)

    async def fetch(self, limit: int, wait: float) -> list[Record]:
        """Answers as soon as there is any record, with as many as there are."""
        with reported(self._name):
            if asyncio.get_running_loop().time() - self._looked_at > _LOOK_SECONDS:
                await self._look()
            found = self._left_over(limit) or await self._pull(limit, wait)
            await self._mind_gaps(found)
        return [self._record(msg) for msg in found]

    async def ack(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"+ACK")

    async def release(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"-NAK")

    async def extend(self, records: Sequence[Record]) -> None:
        await self._settle(records, b"+WPI")

    async def leave(self) -> None:
        """Gives back what came too late to be fetched."""
        await self.release([self._record(msg) for msg in self._left_over(sys.maxsize)])

    async def lag(self) -> Lag:
        with reported(self._name):
            consumer = await self._line.jetstream.consumer_info(self._stream, self._consumer)
        self._note(consumer)
        return Lag(waiting=consumer.num_pending, unacknowledged=consumer.num_ack_pending)

    async def _look(self) -> None:
        """Notes up to where everything is acknowledged; a server that does not answer is asked again later."""
        self._looked_at = asyncio.get_running_loop().time()
        try:
            await self.lag()
        except BrokerUnavailable as error:
            log.debug("consumer info unavailable", source=self._name, error=str(error))

    async def _pull(self, limit: int, wait: float) -> list["Msg"]:
        """One batch: with `no_wait` and `expires` the server ends it at the last record there is, or after `wait`."""
        loop, place = asyncio.get_running_loop(), self._line.address()
        until = loop.time() + wait
        request: dict[str, object] = {"batch": limit, "expires": int(wait * 1e9), "no_wait": True}
        beats = wait > 2 * _BEAT_SECONDS
        if beats:
            request["idle_heartbeat"] = int(_BEAT_SECONDS * 1e9)
        await self._line.client.publish(self._next, orjson.dumps(request), place)
        found: list[Msg] = []
        while len(found) < limit:
            silence = _TAIL_SECONDS if found else 2 * _BEAT_SECONDS if beats else wait + ANSWER_SECONDS
            msg = await self._arrival(silence)
            if msg is None:
                if found:
                    break
                raise BrokerUnavailable(self._name, "the server fell silent")
            code = status(msg)
            if code is None:
                found.append(msg)
            elif code in ("404", "408"):
                if msg.subject == place:
                    # Earlier than asked for: an older request of ours waits at the server. Let it end.
                    if not found and (left := until - loop.time()) > 0:
                        await asyncio.sleep(min(left, _TAIL_SECONDS))
                    break
            elif code != "100":
                raise self._refusal(msg)
        return found

    def _left_over(self, limit: int) -> list["Msg"]:
        """What came for a request that was given up on."""
        found: list[Msg] = []
        while len(found) < limit and not self._line.arrived.empty():
            msg = self._line.arrived.get_nowait()
            if msg is None:
                raise BrokerUnavailable(self._name, "the connection ended")
            code = status(msg)
            if code is None:
                found.append(msg)
            elif code not in ("100", "404", "408"):
                raise self._refusal(msg)
        return found

    async def _arrival(self, seconds: float) -> "Msg | None":
        if self._line.arrived.empty():
            try:
                async with asyncio.timeout(seconds):
                    msg = await self._line.arrived.get()
            except TimeoutError:
                return None
        else:
            msg = self._line.arrived.get_nowait()
        if msg is None:
            raise BrokerUnavailable(self._name, "the connection ended")
        return msg

    def _refusal(self, msg: "Msg") -> BrokerUnavailable:
        return BrokerUnavailable(self._name, f"consumer {self._consumer} of stream {self._stream}: {description(msg)}")

    async def _settle(self, records: Sequence[Record], word: bytes) -> None:
        """Raises if the consumer is gone, or has no leader just now: then nobody was told, and the records come again."""
        with reported(self._name):
            asked = [await self._line.ask(str(record.receipt), word) for record in records]
            for answer in await self._line.answers(asked):
                if status(answer) is not None:
                    raise self._refusal(answer)

    async def _mind_gaps(self, found: Sequence["Msg"]) -> None:
        """Says how many records the stream dropped before this group was handed them.

        The consumer counts what it hands over, so where the stream's sequence runs ahead of the consumer's, records
        are missing. Under a filter that is usual and says nothing.
        """
        if not self._whole:
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
                log.error(
                    "records lost",
                    source=self._name,
                    lost=missing,
                    after=last,
                    hint="raise the limits of the stream",
                )

    async def _dropped_after(self, sequence: int) -> int:
        """How many records after this one the stream no longer holds; any number if the server does not answer."""
        from nats.errors import Error

        try:
            state = (await self._line.jetstream.stream_info(self._stream)).state
        except (Error, OSError, TimeoutError) as error:
            # A diagnosis must not cost the records that were just handed over.
            log.debug("stream info unavailable", source=self._name, error=repr(error))
            return sys.maxsize
        return int(state.first_seq) - 1 - sequence

    def _note(self, consumer: "ConsumerInfo") -> None:
        self._looked_at = asyncio.get_running_loop().time()
        if consumer.ack_floor is not None:
            self._looked(consumer.ack_floor.stream_seq)

    def _record(self, msg: "Msg") -> Record:
        known = msg.metadata
        return Record(
            stream=known.stream,
            # With its time, because a stream that was deleted and made again counts from one again.
            id=f"{known.sequence.stream}-{int(known.timestamp.timestamp() * 1_000_000)}",
            body=msg.data,
            headers={**(msg.headers or {}), SUBJECT: msg.subject},
            at=known.timestamp,
            delivery_count=known.num_delivered,
            receipt=msg.reply,
        )
