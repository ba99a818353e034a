"""Consumes a Kafka topic as a member of a group; commits contiguous offsets of the partitions that it owns.

The client's calls block, so two threads make them. One polls, which also runs the callbacks for rebalances and commits;
the other reads the lag. While the caller does not fetch, the first thread polls with the partitions paused. So the
member stays in the group no matter how long a handler runs, and a caller applies backpressure by not fetching.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
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
from holdfast.brokers.kafka.connection import REBALANCING, TRANSIENT, CallThread, connect, unavailable
from holdfast.brokers.kafka.record import record_of
from holdfast.brokers.offsets import Offsets, TrackedOffset
from holdfast.brokers.protocol import Lag, Record
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.kafka.topic import KafkaTopic

log = get_logger("holdfast.brokers")

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
"""How long one poll blocks at most, and so how long a commit or a close waits for it."""
_KEEPALIVE_SECONDS = 0.5
"""Time without a fetch after which the member polls with its partitions paused."""
_SILENCE_SECONDS = 10.0
"""Time without a record or an error after which the brokers are checked."""
_LAG_SECONDS = 2.0
"""Time limit of each request for the lag."""


@asynccontextmanager
async def open_subscription(topic: "KafkaTopic", consumer: str) -> AsyncIterator["KafkaSubscription"]:
    """A member of the topic's group. On close, finished records are committed; the group reassigns the partitions."""
    subscription = KafkaSubscription(topic, consumer)
    try:
        await subscription.start()
        yield subscription
    finally:
        # Also after a cancellation: a member that no longer polls would keep its partitions from the others.
        await asyncio.shield(subscription.close())


class KafkaSubscription:
    """One member of the group. The lock guards the state that the polling thread shares with the event loop."""

    def __init__(self, topic: "KafkaTopic", consumer: str) -> None:
        self._topic = topic
        self._poll_thread = CallThread("holdfast-kafka-poll")
        self._lag_thread = CallThread("holdfast-kafka-lag")
        self._lock = threading.Lock()
        self._offsets: dict[int, Offsets] = {}
        self._ready: deque[Record] = deque()
        self._failed: BrokerUnavailable | None = None
        self._refusal: KafkaError | None = None
        self._last_event_at = time.monotonic()
        self._check_due = self._is_paused = self._is_closing = False
        self._fetches = self._unconfirmed = 0
        # Since when the brokers have not confirmed a commit, or have not answered a check.
        self._unconfirmed_since: float | None = None
        self._unreachable_since: float | None = None
        self._fetched_at = time.monotonic()
        self._keepalive: asyncio.Task[None] | None = None
        self._consumer = connect(
            topic,
            Consumer,
            {
                "group.id": topic.group,
                "client.id": consumer,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Reported as an error, so that lost records are logged.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # With the consumer protocol (KIP-848) the broker assigns, always incrementally.
                **({} if topic.has_consumer_protocol else {"partition.assignment.strategy": "cooperative-sticky"}),
                "error_cb": self._on_error,
                "on_commit": self._on_commit,
            },
        )

    async def start(self) -> None:
        await self._call(self._poll_thread, self._subscribe)
        self._keepalive = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        self._is_closing = True
        if self._keepalive is not None:
            self._keepalive.cancel()
            await asyncio.wait([self._keepalive])
        await self._lag_thread.call(self._offsets.copy)  # waits for earlier lag requests
        try:
            await asyncio.wait_for(self._poll_thread.call(self._leave), self._topic.timeout)
        except TimeoutError:
            log.warning("consumer close timed out", source=self._topic.name)
        self._poll_thread.end()
        self._lag_thread.end()

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        self._fetches += 1
        try:
            # Into `_ready` first: a cancelled fetch loses no record.
            await self._call(self._poll_thread, self._fill, limit, wait)
        finally:
            self._fetches -= 1
            self._fetched_at = time.monotonic()
        if self._failed is not None:
            raise self._failed
        with self._lock:
            return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def ack(self, records: Sequence[Record]) -> None:
        """Sends the commit and does not wait. A fetch raises if no confirmation comes; the records are then redelivered."""
        with self._lock:
            for tracked in _tracked(records):
                if (offsets := self._offsets.get(tracked.partition)) is not None:
                    offsets.settle(tracked)
        if not self._is_closing:  # leaving the group commits
            self._poll_thread.submit(self._commit)

    async def release(self, records: Sequence[Record]) -> None:
        """Rewinds the partitions of these records; every later record of the same partition is redelivered too."""
        if not self._is_closing:  # the partitions are already revoked
            await self._call(self._poll_thread, self._rewind, list(_tracked(records)))

    async def extend(self, records: Sequence[Record]) -> None:
        """Does nothing: the subscription polls as long as it is open."""

    async def lag(self) -> Lag:
        return await self._call(self._lag_thread, self._lag)

    async def _call(self, thread: CallThread, call: Callable[..., _T], *args: object) -> _T:
        try:
            return await thread.call(call, *args)
        except KafkaException as error:
            raise unavailable(self._topic.name, error.args[0]) from error

    async def _keep_alive(self) -> None:
        """Polls while the caller does not fetch, commits what a rebalance delayed, and detects a stalled broker."""
        while True:
            await asyncio.sleep(_KEEPALIVE_SECONDS)
            try:
                if not self._fetches and time.monotonic() - self._fetched_at >= _KEEPALIVE_SECONDS:
                    await self._call(self._poll_thread, self._poll_paused)
            except BrokerUnavailable as error:
                self._failed = error  # for the next fetch to raise
            self._poll_thread.submit(self._commit)
            if self._has_expired(self._unconfirmed_since):
                cause = f"no commit was confirmed within {self._topic.expiry:g} s"
                self._failed = BrokerUnavailable(self._topic.name, cause)

    def _has_expired(self, since: float | None) -> bool:
        """Whether the group has reassigned our partitions by now.

        Until then this member waits for the brokers. If it left and joined again, its former membership would still own
        the partitions until that one expires.
        """
        return since is not None and time.monotonic() - since > self._topic.expiry

    # These run in the polling thread, including the callbacks: a partition stays owned during its commit.

    def _subscribe(self) -> None:
        self._check_topic()
        self._consumer.subscribe(
            [self._topic.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _leave(self) -> None:
        """Leaves the group, which revokes the partitions and commits their offsets, and closes the client.

        A client that is closed while it has partitions, or is getting some, may wait forever for one of its threads
        (librdkafka issue 4884). It does so in a callback that holds the interpreter's lock, which stops the whole process.
        """
        deadline = time.monotonic() + self._topic.timeout / 2
        # After a fatal error a client can only be closed.
        with suppress(KafkaException):
            self._consumer.unsubscribe()
            # The first poll runs a callback that was waiting; records that it returns are redelivered.
            self._consumer.poll(_POLL_SECONDS)
            while self._consumer.assignment() and time.monotonic() < deadline:
                self._consumer.poll(_POLL_SECONDS)
        self._consumer.close()

    def _check_topic(self) -> None:
        """Raises if no broker or no topic is available, with the reason if the brokers rejected the login."""
        try:
            found = self._consumer.list_topics(self._topic.topic, timeout=self._topic.timeout).topics[self._topic.topic]
        except KafkaException:
            if (message := self._consumer.poll(0)) is not None:  # runs the callbacks that report errors
                self._on_message(message)
            if self._refusal is not None:
                raise KafkaException(self._refusal) from None
            raise
        self._refusal = None
        if found.error is not None:
            raise KafkaException(found.error)

    def _fill(self, limit: int, wait: float) -> None:
        if self._is_paused:
            self._is_paused = False
            self._consumer.resume(self._consumer.assignment())
        deadline = time.monotonic() + wait
        while not (self._ready or self._is_closing or self._failed):
            left = deadline - time.monotonic()
            message = self._consumer.poll(max(0.0, min(left, _POLL_SECONDS)))
            while message is not None:
                self._on_message(message)
                message = self._consumer.poll(0) if len(self._ready) < limit else None
            self._commit()
            # The client reports a lost broker, but not one that it never reached.
            if not self._ready and (self._check_due or time.monotonic() - self._last_event_at > _SILENCE_SECONDS):
                self._check_reachable()
            if left <= 0:
                return

    def _check_reachable(self) -> None:
        """Raises when the brokers have not answered for so long that the group has reassigned our partitions."""
        began = time.monotonic()
        try:
            self._check_topic()
        except KafkaException as error:
            self._unreachable_since = self._unreachable_since or began
            if error.args[0].code() not in TRANSIENT or self._has_expired(self._unreachable_since):
                raise
            log.warning("broker not responding", source=self._topic.name, error=error.args[0].str())
        else:
            self._unreachable_since = None
        self._check_due, self._last_event_at = False, time.monotonic()

    def _poll_paused(self) -> None:
        self._is_paused = True
        self._consumer.pause(self._consumer.assignment())  # each time: some may be new
        if (message := self._consumer.poll(0)) is not None:
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        self._last_event_at = time.monotonic()
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

    def _reset(self, partition: int, requested: int | None) -> None:
        """Chooses where to continue if the group has no offset yet, or its offset is out of range."""
        if requested is None and self._topic.start == "beginning":
            self._restart(partition, OFFSET_BEGINNING)
            return
        low, high = self._consumer.get_watermark_offsets(self._at(partition), timeout=self._topic.timeout)
        fields = {"source": self._topic.name, "partition": partition, "wanted": requested, "first": low, "end": high}
        if requested is None:
            self._send_commit([self._at(partition, high)])
            low = high
        elif requested < low:
            log.error("records lost", lost=low - requested, **fields)
        else:
            log.error("offset out of range", **fields)
        self._restart(partition, low)

    def _restart(self, partition: int, offset: int) -> None:
        # Not a seek: the client rejects it after an error and before the first fetch.
        self._consumer.incremental_unassign([self._at(partition)])
        self._consumer.incremental_assign([self._at(partition, offset)])

    def _rewind(self, records: Sequence[TrackedOffset]) -> None:
        lowest: dict[int, int] = {}
        with self._lock:
            for tracked in records:
                if (offsets := self._offsets.get(tracked.partition)) is not None and tracked in offsets:
                    lowest[tracked.partition] = min(tracked.offset, lowest.get(tracked.partition, tracked.offset))
            for partition, offset in lowest.items():
                self._offsets[partition].rewind(offset)
            self._drop_ready(lowest)
        for partition, offset in lowest.items():
            self._restart(partition, offset)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            self._offsets.update({at.partition: Offsets(at.partition) for at in partitions})

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()  # librdkafka waits for it before it revokes the partitions
        self._on_lost(self._consumer, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:  # from here on no commit is sent for these
            for at in partitions:
                self._offsets.pop(at.partition, None)
            self._drop_ready({at.partition for at in partitions})

    def _drop_ready(self, partitions: Iterable[int]) -> None:
        """Drops records that were not returned by a fetch yet."""
        dropped = set(partitions)
        kept = zip(self._ready, _tracked(self._ready), strict=True)
        self._ready = deque(record for record, tracked in kept if tracked.partition not in dropped)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed = unavailable(self._topic.name, error)
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._refusal, self._check_due = error, True
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._check_due = True

    def _commit(self) -> None:
        with self._lock:
            due = {partition: offsets.due() for partition, offsets in self._offsets.items()}
            moved = [self._at(partition, offset) for partition, offset in due.items() if offset is not None]
            for at in moved:
                self._offsets[at.partition].committed(at.offset)
        if moved:
            self._send_commit(moved)

    def _send_commit(self, moved: list[TopicPartition]) -> None:
        # Without the lock: the client may wait for a running `_on_commit`.
        self._unconfirmed_since = self._unconfirmed_since or time.monotonic()
        self._unconfirmed += 1
        try:
            self._consumer.commit(offsets=moved, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], moved)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._unconfirmed -= 1
        errors = {at.partition: wrong for at in partitions if (wrong := at.error or error) is not None}
        if not any(wrong.code() in TRANSIENT for wrong in errors.values()):
            self._unconfirmed_since = time.monotonic() if self._unconfirmed else None
        with self._lock:
            for partition, wrong in errors.items():
                if partition in self._offsets:
                    self._offsets[partition].committed(None)  # so it is due again
                    if wrong.code() not in REBALANCING | TRANSIENT:
                        self._failed = unavailable(self._topic.name, wrong)

    # In the lag thread.

    def _lag(self) -> Lag:
        found = self._consumer.list_topics(self._topic.topic, timeout=_LAG_SECONDS).topics[self._topic.topic]
        first, end = (self._bounds(found.partitions, which) for which in (OFFSET_BEGINNING, OFFSET_END))
        reached = self._consumer.committed([self._at(partition) for partition in first], timeout=_LAG_SECONDS)
        with self._lock:
            # Records that are done here may not be committed yet.
            done = {partition: offsets.position or 0 for partition, offsets in self._offsets.items()}
            behind = sum(
                end[at.partition] - max(first[at.partition], at.offset, done.get(at.partition, 0)) for at in reached
            )
            unacknowledged = sum(len(offsets) for offsets in self._offsets.values()) - len(self._ready)
        return Lag(waiting=max(0, behind - unacknowledged), unacknowledged=unacknowledged)

    def _bounds(self, partitions: Iterable[int], which: int) -> dict[int, int]:
        requested = [self._at(partition, which) for partition in partitions]
        return {at.partition: at.offset for at in self._consumer.offsets_for_times(requested, timeout=_LAG_SECONDS)}

    def _at(self, partition: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic.topic, partition, offset)


def _tracked(records: Iterable[Record]) -> Iterator[TrackedOffset]:
    for record in records:
        assert isinstance(record.receipt, TrackedOffset)
        yield record.receipt
