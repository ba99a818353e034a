"""A Kafka topic as a source and a target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.brokers.endpoint import BrokerEndpoint, check_start, check_texts
from holdfast.core.errors import ConfigurationError

# Holdfast's guarantees depend on these. All other settings, such as security, belong to the user.
_RESERVED_OPTIONS = frozenset(
    {
        *("acks", "request.required.acks", "enable.idempotence", "bootstrap.servers", "group.id", "isolation.level"),
        *("auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "partition.assignment.strategy"),
    }
)
_POLL_INTERVAL = "max.poll.interval.ms"
_POLL_INTERVAL_MS = 300_000
_SESSION_TIMEOUT = "session.timeout.ms"
_SESSION_TIMEOUT_MS = 45_000
"""The default of librdkafka, and of brokers for the consumer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic(BrokerEndpoint):
    """A topic. Created by `topic()`; it connects only when it is opened."""

    adapter = "kafka"
    client = "confluent_kafka"
    topic: str
    group: str | None
    servers: str | None
    start: str
    timeout: float
    options: Mapping[str, Any] = field(repr=False, hash=False)

    @property
    def name(self) -> str:
        return f"kafka:{self.topic}" if self.group is None else f"kafka:{self.topic}/{self.group}"

    @property
    def ack_timeout(self) -> float:
        """Seconds without a poll after which the group reassigns our partitions. A subscription polls in the background."""
        return float(self.options.get(_POLL_INTERVAL, _POLL_INTERVAL_MS)) / 1000

    @property
    def expiry(self) -> float:
        """Seconds without contact after which the group reassigns our partitions; at least `timeout`."""
        return max(self.timeout, float(self.options.get(_SESSION_TIMEOUT, _SESSION_TIMEOUT_MS)) / 1000)

    @property
    def has_consumer_protocol(self) -> bool:
        """Whether the group uses the consumer protocol (KIP-848), not the classic one."""
        return str(self.options.get("group.protocol", "classic")).lower() == "consumer"


def topic(
    name: str,
    *,
    group: str | None = None,
    servers: str | None = None,
    start: str = "beginning",
    timeout: float = 10.0,
    options: Mapping[str, str | int | float | bool] | None = None,
) -> KafkaTopic:
    """A Kafka topic: a source for the consumers of `group`, or a target.

    `servers` is `host:port`, or several separated by commas; the default is `HOLDFAST_KAFKA`. A new group starts at
    the first record, or with `start="now"` at the end. `options` are passed to librdkafka unchanged
    (`security.protocol`, `sasl.password` …) and never shown; options that would break a guarantee, such as
    `enable.auto.commit`, are rejected. `timeout` is in seconds.
    """
    check_texts("kafka.topic", name, group=group, servers=servers)
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"kafka.topic({name!r}): options is of type {type(options).__name__}; give a dict")
    check_start(f"kafka topic {name}", start)
    if reserved := sorted(_RESERVED_OPTIONS & (options or {}).keys()):
        raise ConfigurationError(
            f"kafka.topic({name!r}) sets {', '.join(reserved)}; leave that out of options, because Holdfast sets it"
        )
    return KafkaTopic(
        topic=name, group=group, servers=servers, start=start, timeout=timeout, options=dict(options or {})
    )
