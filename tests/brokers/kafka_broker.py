"""Kafka as a broker under test: librdkafka's cluster in this process, or a real Apache Kafka."""

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, Message, Producer

from holdfast.brokers.kafka import KafkaTopic, topic
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.kafka import KafkaCluster

_DOWN_SECONDS = 1.0
_PARTITIONS = 4


def make_source(name: str, group: str) -> KafkaTopic:
    """A topic whose group finds out about a dead member within two seconds."""
    quick = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200, "max.poll.interval.ms": 10_000}
    return topic(name, group=group, timeout=5, options=quick)


def make_default_source(name: str, group: str) -> KafkaTopic:
    """A topic as a user names it, with the client's defaults."""
    return topic(name, group=group)


class KafkaBroker:
    """Three nodes. What goes down and comes back is one of them, each time another."""

    source = "tests.brokers.kafka_broker:make_source"

    def __init__(self, cluster: KafkaCluster | ApacheKafka) -> None:
        self.cluster = cluster
        self._producer = Producer({"bootstrap.servers": cluster.servers, "acks": "all", "log_level": 0})
        self._node = 0

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOLDFAST_KAFKA": self.cluster.servers}

    def prepare(self, stream: str, groups: Sequence[str]) -> None:
        self.cluster.create(stream, _PARTITIONS)

    def put(self, stream: str, bodies: Sequence[bytes]) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for number, body in enumerate(bodies):
            self._producer.produce(stream, body, partition=number % _PARTITIONS, on_delivery=delivered)
        assert self._producer.flush(30) == 0
        assert not failed

    def unsettled(self, stream: str, group: str) -> int:
        committed = self.cluster.committed(stream, group)
        return sum(end - committed.get(partition, 0) for partition, end in self.cluster.ends(stream).items())

    def restart(self) -> None:
        assert isinstance(self.cluster, KafkaCluster)
        self._node = self._node % 3 + 1
        self.cluster.down(self._node)
        time.sleep(_DOWN_SECONDS)
        self.cluster.up(self._node)


class ApacheBroker(KafkaBroker):
    """Real nodes, with the defaults of broker and client. Each time another one is killed and started again."""

    source = "tests.brokers.kafka_broker:make_default_source"

    def restart(self) -> None:
        assert isinstance(self.cluster, ApacheKafka)
        self._node = self._node % len(self.cluster.nodes) + 1
        self.cluster.kill(self._node)
        time.sleep(_DOWN_SECONDS)
        self.cluster.start()
