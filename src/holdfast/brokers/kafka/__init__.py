"""Kafka and whatever speaks its protocol: `kafka.topic("payments", group="shop")`. Needs `holdfast[kafka]`.

With a group it is a source: each consumer is a member of the group, and offsets are committed contiguously. With or
without one it is a target: records are confirmed by every replica in sync.
"""

from holdfast.brokers.kafka.place import Topic, topic

__all__ = ["Topic", "topic"]
