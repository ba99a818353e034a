"""Kafka and compatible brokers: `kafka.topic("payments", group="shop")`. Needs `holdfast[kafka]`.

With a group, a topic is a source: each consumer is a member of the group, and offsets are committed contiguously.
Every topic is a target: each record is confirmed by all in-sync replicas.
"""

from holdfast.brokers.kafka.topic import KafkaTopic, topic

__all__ = ["KafkaTopic", "topic"]
