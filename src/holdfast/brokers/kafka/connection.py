"""Clients of a Kafka cluster, the thread for their blocking calls, and their errors."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from holdfast.brokers.endpoint import broker_address
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.brokers.kafka.topic import KafkaTopic

_T = TypeVar("_T")

# The group is rebalancing. Uncommitted offsets are committed on revocation, or the next owner reads the records again.
REBALANCING = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
# The cluster moves the group to another coordinator, or a connection broke. The client finds the new one.
TRANSIENT = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
_SAME_INSTANCE = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID})


def connect(topic: "KafkaTopic", make: Callable[[dict[str, Any]], _T], settings: Mapping[str, Any] | None = None) -> _T:
    """A client of the topic's cluster; it connects in the background."""
    servers = broker_address(topic.name, topic.servers, "HOLDFAST_KAFKA", "kafka.topic(…, servers='host:port,…')")
    try:
        return make(
            {
                "bootstrap.servers": servers,
                # A stalled broker is detected after this time.
                "socket.timeout.ms": round(topic.timeout * 1000),
                # Errors are raised; librdkafka would write them to stderr, several times a second.
                "log_level": 2,
                **(settings or {}),
                **topic.options,
            }
        )
    except KafkaException as error:
        raise ConfigurationError(f"{topic.name} cannot be opened: {error.args[0].str()}") from error


def unavailable(source: str, error: KafkaError) -> BrokerUnavailable:
    """The error that ends a subscription."""
    cause = error.str()
    if error.code() in _SAME_INSTANCE or "nstance ID" in cause:
        # A fatal error has a separate code and names the cause in its text.
        cause = f"two workers use the same group.instance.id; give each a different one. {cause}"
    return BrokerUnavailable(source, cause)


class CallThread:
    """Runs blocking calls in one thread, in order.

    The thread is a daemon, unlike an executor's: a call that a stalled broker never answers does not block the exit of
    the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[object, ...]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., _T], *args: object) -> _T:
        """The result of the call. Cancelling the wait does not stop a call that has started."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def submit(self, function: Callable[..., _T], *args: object) -> "Future[_T]":
        """Queues a call and does not wait for it."""
        future: Future[_T] = Future()
        self._calls.put((future, function, args))
        return future

    def end(self) -> None:
        """Ends the thread after the calls that are queued."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)
