"""Reading a Kafka topic as one of a group: offsets are committed contiguously, of partitions that are owned now.

The client's calls block, so two threads make them: one polls, and hears of rebalances and commits with that; the other
asks how far the group is. While nothing is fetched, for however long a handler takes, the first polls on with its partitions
paused. So the group keeps us, and back-pressure needs no more than not to fetch.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from holdfast._log import get_logger
from holdfast.brokers.kafka.errors import REBALANCING, TRANSIENT, unavailable
from holdfast.brokers.kafka.record import record_of
from holdfast.brokers.kafka.thread import CallThread
from holdfast.brokers.offsets import Offsets, TrackedOffset
from holdfast.brokers.protocol import Lag, Record
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.kafka.place import Topic

log = get_logger("holdfast.brokers")

_T = TypeVar("_T")
_SLICE = 0.1
"""Seconds that one poll blocks; commits and closing wait no longer."""
_TICK = 0.5
"""Seconds without a fetch after which we poll with our partitions paused."""
_SILENCE = 10.0
"""Seconds without a record or an error after which we ask whether the brokers are there."""
_LAG_SECONDS = 2.0
"""Time limit of each request for the lag."""


@asynccontextmanager
async def opened(topic: "Topic", consumer: str) -> AsyncIterator["Reading"]:
    """A member of the topic's group. On leaving, what is done is committed and the rest falls to the others."""
    reading = Reading(topic, consumer)
    try:
        await reading.start()
        yield reading
    finally:
        # Also when we are cancelled: a member that nobody polls for would keep its partitions from the others.
        await asyncio.shield(reading.close())


class Reading:
    """One consumer. The lock guards what the polling thread shares with the event loop."""

    def __init__(self, topic: "Topic", consumer: str) -> None:
        self._topic = topic
        self._polling = CallThread("holdfast-kafka-poll")
        self._asking = CallThread("holdfast-kafka-ask")
        self._lock = threading.Lock()
        self._offsets: dict[int, Offsets] = {}
        self._ready: deque[Record] = deque()
        self._failed: BrokerUnavailable | None = None
        self._refusal: KafkaError | None = None
        self._heard_at = time.monotonic()
        self._doubtful = self._paused = self._closing = False
        self._fetching = self._unanswered = 0
        # Since when the brokers have not confirmed a commit, or have not answered whether they are there.
        self._unconfirmed_since: float | None = None
        self._unreachable_since: float | None = None
        self._fetched_at = time.monotonic()
        self._keeper: asyncio.Task[None] | None = None
        self._consumer = topic.client(
            Consumer,
            {
                "group.id": topic.group,
                "client.id": consumer,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Reported to us, so that records which are gone do not go unnoticed.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # With the consumer protocol (KIP-848) the broker assigns, always incrementally.
                **({} if topic.has_consumer_protocol else {"partition.assignment.strategy": "cooperative-sticky"}),
                "error_cb": self._hears,
                "on_commit": self._answered,
            },
        )

    async def start(self) -> None:
        await self._in(self._polling, self._subscribe)
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._asking.call(self._offsets.copy)  # whatever was asked before is answered
        try:
            # Revokes, and with that commits, whatever is owned.
            await asyncio.wait_for(self._polling.call(self._consumer.close), self._topic.timeout)
        except TimeoutError:
            log.warning("consumer close timed out", source=self._topic.name)
        self._polling.end()
        self._asking.end()

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        self._fetching += 1
        try:
            # Into `_ready` first: a caller who stops waiting loses nothing.
            await self._in(self._polling, self._fill, limit, wait)
        finally:
            self._fetching -= 1
            self._fetched_at = time.monotonic()
        if self._failed is not None:
            raise self._failed
        with self._lock:
            return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def ack(self, records: Sequence[Record]) -> None:
        """Sends the commit and does not wait: a fetch raises if no answer comes, and what is lost so comes again."""
        with self._lock:
            for handed in _handed(records):
                if (offsets := self._offsets.get(handed.partition)) is not None:
                    offsets.settle(handed)
        if not self._closing:  # leaving the group commits it
            self._polling.tell(self._commit)

    async def release(self, records: Sequence[Record]) -> None:
        """Gives back; what came after in the same partition is handed over again too, once more or for the first time."""
        if not self._closing:  # nothing is ours any more
            await self._in(self._polling, self._give_back, list(_handed(records)))

    async def extend(self, records: Sequence[Record]) -> None:
        """Nothing to do: we poll for as long as the subscription is open."""

    async def lag(self) -> Lag:
        return await self._in(self._asking, self._lag)

    async def _in(self, thread: CallThread, call: Callable[..., _T], *args: object) -> _T:
        try:
            return await thread.call(call, *args)
        except KafkaException as error:
            raise unavailable(self._topic.name, error.args[0]) from error

    async def _keep(self) -> None:
        """Polls while nobody fetches, commits what a change of hands had held up, and finds out about a stall."""
        while True:
            await asyncio.sleep(_TICK)
            try:
                if not self._fetching and time.monotonic() - self._fetched_at >= _TICK:
                    await self._in(self._polling, self._stay)
            except BrokerUnavailable as error:
                self._failed = error  # for the next fetch to raise
            self._polling.tell(self._commit)
            if self._has_expired(self._unconfirmed_since):
                cause = f"no commit was confirmed within {self._topic.expiry:g} s"
                self._failed = BrokerUnavailable(self._topic.name, cause)

    def _has_expired(self, since: float | None) -> bool:
        """Whether the group has given our partitions away by now.

        Until then this member waits for the brokers. One that left and joined again would find its former self in the
        group, and get nothing until that one expires.
        """
        return since is not None and time.monotonic() - since > self._topic.expiry

    # In the polling thread, also when the client calls back: what it commits is owned for as long as that takes.

    def _subscribe(self) -> None:
        self._look()
        self._consumer.subscribe([self._topic.topic], on_assign=self._win, on_revoke=self._give_up, on_lost=self._lose)

    def _look(self) -> None:
        """Raises if neither broker nor topic is there, with the brokers' reason if they let nobody in."""
        try:
            found = self._consumer.list_topics(self._topic.topic, timeout=self._topic.timeout).topics[self._topic.topic]
        except KafkaException:
            if (message := self._consumer.poll(0)) is not None:  # with it the client reports its errors
                self._take(message)
            if self._refusal is not None:
                raise KafkaException(self._refusal) from None
            raise
        self._refusal = None
        if found.error is not None:
            raise KafkaException(found.error)

    def _fill(self, limit: int, wait: float) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(self._consumer.assignment())
        deadline = time.monotonic() + wait
        while not (self._ready or self._closing or self._failed):
            left = deadline - time.monotonic()
            message = self._consumer.poll(max(0.0, min(left, _SLICE)))
            while message is not None:
                self._take(message)
                message = self._consumer.poll(0) if len(self._ready) < limit else None
            self._commit()
            # The client tells of brokers that it was connected to, not of one that it never reached: after a silence
            # we ask.
            if not self._ready and (self._doubtful or time.monotonic() - self._heard_at > _SILENCE):
                self._look_again()
            if left <= 0:
                return

    def _look_again(self) -> None:
        """Raises once the brokers have not answered for so long that the group has given our partitions away."""
        began = time.monotonic()
        try:
            self._look()
        except KafkaException as error:
            self._unreachable_since = self._unreachable_since or began
            if error.args[0].code() not in TRANSIENT or self._has_expired(self._unreachable_since):
                raise
            log.warning("broker not responding", source=self._topic.name, error=error.args[0].str())
        else:
            self._unreachable_since = None
        self._doubtful, self._heard_at = False, time.monotonic()

    def _stay(self) -> None:
        self._paused = True
        self._consumer.pause(self._consumer.assignment())  # each time: some may be new
        if (message := self._consumer.poll(0)) is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        self._heard_at = time.monotonic()
        partition, offset, error = message.partition(), message.offset(), message.error()
        assert partition is not None
        if error is None:
            assert offset is not None
            with self._lock:
                if (offsets := self._offsets.get(partition)) is not None:
                    self._ready.append(record_of(message, offsets.track(offset)))
        elif error.code() == KafkaError._PARTITION_EOF:
            assert offset is not None
            with self._lock:
                if (offsets := self._offsets.get(partition)) is not None:
                    offsets.reach(offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._reset(partition, offset)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            log.warning("partitions lost", source=self._topic.name, reason="max.poll.interval.ms exceeded")
        else:
            self._failed = unavailable(self._topic.name, error)

    def _reset(self, partition: int, wanted: int | None) -> None:
        """Decides where to read on: the group has no offset yet, or its offset is not there."""
        if wanted is None and self._topic.start == "beginning":
            self._restart(partition, OFFSET_BEGINNING)
            return
        low, high = self._consumer.get_watermark_offsets(self._at(partition), timeout=self._topic.timeout)
        known = {"source": self._topic.name, "partition": partition, "wanted": wanted, "first": low, "end": high}
        if wanted is None:
            self._send([self._at(partition, high)])
            low = high
        elif wanted < low:
            log.error("records lost", lost=low - wanted, **known)
        else:
            log.error("offset out of range", **known)
        self._restart(partition, low)

    def _restart(self, partition: int, offset: int) -> None:
        # Not a seek, which is refused after an error and before the first fetch.
        self._consumer.incremental_unassign([self._at(partition)])
        self._consumer.incremental_assign([self._at(partition, offset)])

    def _give_back(self, several: Sequence[TrackedOffset]) -> None:
        lowest: dict[int, int] = {}
        with self._lock:
            for handed in several:
                if (offsets := self._offsets.get(handed.partition)) is not None and handed in offsets:
                    lowest[handed.partition] = min(handed.offset, lowest.get(handed.partition, handed.offset))
            for partition, offset in lowest.items():
                self._offsets[partition].rewind(offset)
            self._forget(lowest)
        for partition, offset in lowest.items():
            self._restart(partition, offset)

    def _win(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            self._offsets.update({at.partition: Offsets(at.partition) for at in partitions})

    def _give_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()  # which librdkafka waits for before it gives anything up
        self._lose(self._consumer, partitions)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:  # from here on no commit is sent for these
            for at in partitions:
                self._offsets.pop(at.partition, None)
            self._forget({at.partition for at in partitions})

    def _forget(self, partitions: Iterable[int]) -> None:
        """Drops what the caller was not given yet."""
        gone = set(partitions)
        kept = zip(self._ready, _handed(self._ready), strict=True)
        self._ready = deque(record for record, handed in kept if handed.partition not in gone)

    def _hears(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed = unavailable(self._topic.name, error)
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._refusal, self._doubtful = error, True
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._doubtful = True

    def _commit(self) -> None:
        with self._lock:
            due = {partition: offsets.due() for partition, offsets in self._offsets.items()}
            moved = [self._at(partition, offset) for partition, offset in due.items() if offset is not None]
            for at in moved:
                self._offsets[at.partition].committed(at.offset)
        if moved:
            self._send(moved)

    def _send(self, moved: list[TopicPartition]) -> None:
        # Without the lock: the client may have to wait until a call to `_answered` ends.
        self._unconfirmed_since = self._unconfirmed_since or time.monotonic()
        self._unanswered += 1
        try:
            self._consumer.commit(offsets=moved, asynchronous=True)
        except KafkaException as error:
            self._answered(error.args[0], moved)

    def _answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._unanswered -= 1
        errors = {at.partition: wrong for at in partitions if (wrong := at.error or error) is not None}
        if not any(wrong.code() in TRANSIENT for wrong in errors.values()):
            self._unconfirmed_since = time.monotonic() if self._unanswered else None
        with self._lock:
            for partition, wrong in errors.items():
                if partition in self._offsets:
                    self._offsets[partition].committed(None)  # so it is due again
                    if wrong.code() not in REBALANCING | TRANSIENT:
                        self._failed = unavailable(self._topic.name, wrong)

    # In the asking thread.

    def _lag(self) -> Lag:
        found = self._consumer.list_topics(self._topic.topic, timeout=_LAG_SECONDS).topics[self._topic.topic]
        first, end = (self._bounds(found.partitions, which) for which in (OFFSET_BEGINNING, OFFSET_END))
        reached = self._consumer.committed([self._at(partition) for partition in first], timeout=_LAG_SECONDS)
        with self._lock:
            # What is done here may be committed a moment later.
            done = {partition: offsets.position or 0 for partition, offsets in self._offsets.items()}
            behind = sum(
                end[at.partition] - max(first[at.partition], at.offset, done.get(at.partition, 0)) for at in reached
            )
            held = sum(len(offsets) for offsets in self._offsets.values()) - len(self._ready)
        return Lag(waiting=max(0, behind - held), unacknowledged=held)

    def _bounds(self, partitions: Iterable[int], which: int) -> dict[int, int]:
        asked = [self._at(partition, which) for partition in partitions]
        return {at.partition: at.offset for at in self._consumer.offsets_for_times(asked, timeout=_LAG_SECONDS)}

    def _at(self, partition: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic.topic, partition, offset)


def _handed(records: Iterable[Record]) -> Iterator[TrackedOffset]:
    for record in records:
        assert isinstance(record.receipt, TrackedOffset)
        yield record.receipt
