"""A Kafka cluster inside librdkafka, from the shared object in the `confluent-kafka` wheel.

It speaks the real protocol on loopback ports, so clients in other processes reach it; its data is in memory and gone
with this process. Its nodes go down and up through librdkafka's own calls.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_NODES = 3
_REPLICAS = 3
_PRODUCER = 0


class KafkaCluster:
    """Three nodes that hold every partition three times."""

    def __init__(self) -> None:
        self.servers = ""
        self._client: int | None = None
        self._cluster: int | None = None

    def __enter__(self) -> Self:
        library = _library()
        reason = ctypes.create_string_buffer(512)
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", reason, len(reason))
        self._client = library.rd_kafka_new(_PRODUCER, settings, reason, len(reason))
        if not self._client:
            raise RuntimeError(f"librdkafka made no client: {reason.value.decode()}")
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, _NODES)
        self.servers = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 50)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _library().rd_kafka_mock_cluster_destroy(self._cluster)
        _library().rd_kafka_destroy(self._client)

    def create(self, topic: str, partitions: int = 2) -> None:
        self._do("topic_create", topic.encode(), partitions, _REPLICAS)

    def delete(self, topic: str) -> None:
        self._do("topic_delete", topic.encode())

    def lead(self, topic: str, partition: int, node: int) -> None:
        """Nodes are counted from one. A node that goes down keeps its partitions unless they are moved."""
        self._do("partition_set_leader", topic.encode(), partition, node)

    def coordinate(self, group: str, node: int) -> None:
        self._do("coordinator_set", b"group", group.encode(), node)

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records before this offset, as retention does."""
        self._do("partition_delete_records", topic.encode(), partition, before)

    def down(self, *nodes: int) -> None:
        for node in nodes or range(1, _NODES + 1):
            self._do("broker_set_down", node)

    def up(self, *nodes: int) -> None:
        for node in nodes or range(1, _NODES + 1):
            self._do("broker_set_up", node)

    def stall(self, seconds: float) -> None:
        """Every answer takes this long; 0 for at once. Connections stay open."""
        for node in range(1, _NODES + 1):
            self._do("broker_set_rtt", node, round(seconds * 1000))

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        """The group's offset in each partition where it has one, from the admin client."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        # This cluster answers for partitions by name only.
        partitions = [TopicPartition(topic, n) for n in admin.list_topics(topic, timeout=10).topics[topic].partitions]
        [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)]).values()
        return {at.partition: at.offset for at in asked.result(10).topic_partitions if at.offset >= 0}

    def ends(self, topic: str) -> Mapping[int, int]:
        """The offset after the last record of each partition."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
        asked = admin.list_offsets({TopicPartition(topic, n): OffsetSpec.latest() for n in partitions})
        return {at.partition: found.result(10).offset for at, found in asked.items()}

    def _do(self, call: str, *args: Any) -> None:
        code = getattr(_library(), f"rd_kafka_mock_{call}")(self._cluster, *args)
        if code:
            raise RuntimeError(f"librdkafka refused {call}{args}: error {code}")


@cache
def _library() -> ctypes.CDLL:
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    handle, text, number, offset = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
    room = ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "conf_new": (handle, []),
        "conf_set": (number, [handle, text, text, text, room]),
        "new": (handle, [number, handle, text, room]),
        "destroy": (None, [handle]),
        "mock_cluster_new": (handle, [handle, number]),
        "mock_cluster_destroy": (None, [handle]),
        "mock_cluster_bootstraps": (text, [handle]),
        "mock_group_initial_rebalance_delay_ms": (None, [handle, number]),
        "mock_topic_create": (number, [handle, text, number, number]),
        "mock_topic_delete": (number, [handle, text]),
        "mock_partition_set_leader": (number, [handle, text, number, number]),
        "mock_partition_delete_records": (number, [handle, text, number, offset]),
        "mock_coordinator_set": (number, [handle, text, text, number]),
        "mock_broker_set_rtt": (number, [handle, number, number]),
        "mock_broker_set_down": (number, [handle, number]),
        "mock_broker_set_up": (number, [handle, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
