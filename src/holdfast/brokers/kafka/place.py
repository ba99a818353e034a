"""A topic as a value, and what in its settings can lose records."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from holdfast.brokers.protocol import Sender, Subscription, check_texts
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

_T = TypeVar("_T")
# What the promises rest on. The rest, such as security, is the user's to set.
_OURS = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "group.id",
        "isolation.level",
        "partition.assignment.strategy",
        "request.required.acks",
    }
)
_POLL_INTERVAL = "max.poll.interval.ms"
_POLL_INTERVAL_MS = 300_000
_SESSION_TIMEOUT = "session.timeout.ms"
_SESSION_TIMEOUT_MS = 45_000
"""The default of librdkafka, and of brokers for the consumer protocol."""
_WEEKEND_MS = 3 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. Made by `topic()`; nothing is connected until it is opened."""

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
        """Seconds without a poll after which the group gives our partitions away. A subscription polls by itself."""
        return float(self.options.get(_POLL_INTERVAL, _POLL_INTERVAL_MS)) / 1000

    @property
    def expiry(self) -> float:
        """Seconds without contact after which the group gives our partitions away; at least `timeout`."""
        return max(self.timeout, float(self.options.get(_SESSION_TIMEOUT, _SESSION_TIMEOUT_MS)) / 1000)

    @property
    def has_consumer_protocol(self) -> bool:
        """Whether the group uses the consumer protocol (KIP-848), not the classic one."""
        return str(self.options.get("group.protocol", "classic")).lower() == "consumer"

    @overload
    def open(self) -> AbstractAsyncContextManager[Sender]: ...
    @overload
    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]: ...
    def open(
        self, consumer: str | None = None
    ) -> AbstractAsyncContextManager[Sender] | AbstractAsyncContextManager[Subscription]:
        """With the name of a consumer: records from the topic, as one of its group. Without: a sender to the topic."""
        self._driver()
        from holdfast.brokers.kafka import reading, sending

        if consumer is None:
            return sending.opened(self)
        if self.group is None:
            raise ConfigurationError(f"{self.name} has no group to read it for; give kafka.topic(…, group=…)")
        return reading.opened(self, consumer)

    async def durability_warnings(self) -> list[str]:
        """Settings of the topic that can lose acknowledged records. What the cluster does not tell is left out."""
        self._driver()
        return await asyncio.to_thread(self._doubts)

    def client(self, make: Callable[[dict[str, Any]], _T], ours: Mapping[str, Any] | None = None) -> _T:
        """A client of this topic's cluster; it connects by itself, later."""
        from confluent_kafka import KafkaException

        try:
            return make(self._settings(ours or {}))
        except KafkaException as error:
            raise ConfigurationError(f"{self.name} cannot be opened: {error.args[0].str()}") from error

    def _settings(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        servers = self.servers or os.environ.get("HOLDFAST_KAFKA")
        if not servers:
            raise ConfigurationError(
                f"{self.name} has no address; give kafka.topic(…, servers='host:port,…') or set HOLDFAST_KAFKA"
            )
        return {
            "bootstrap.servers": servers,
            # A stalled broker is found out after this long.
            "socket.timeout.ms": round(self.timeout * 1000),
            # What fails is raised; librdkafka would write it to stderr, several times a second.
            "log_level": 2,
            **ours,
            **self.options,
        }

    def _driver(self) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError as error:
            raise ConfigurationError("Kafka needs a client; pip install holdfast[kafka]") from error

    def _doubts(self) -> list[str]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

        admin = self.client(AdminClient)
        try:
            found = admin.list_topics(self.topic, timeout=self.timeout).topics[self.topic]
            if found.error is not None:
                raise BrokerUnavailable(self.name, found.error.str())
        except KafkaException as error:
            raise BrokerUnavailable(self.name, error.args[0].str()) from error
        copies = min((len(partition.replicas) for partition in found.partitions.values()), default=0)
        try:
            [asked] = admin.describe_configs(
                [ConfigResource(ConfigResource.Type.TOPIC, self.topic)], request_timeout=self.timeout
            ).values()
            settings = {name: entry.value for name, entry in asked.result(self.timeout).items()}
        except (KafkaException, TimeoutError):  # not allowed to ask, or a cluster that does not answer this
            settings = {}
        return durability_warnings(self.name, copies, settings)


def topic(
    name: str,
    *,
    group: str | None = None,
    servers: str | None = None,
    start: str = "beginning",
    timeout: float = 10.0,
    options: Mapping[str, str | int | float | bool] | None = None,
) -> Topic:
    """A Kafka topic: a source for the consumers of `group`, or a target.

    `servers` are `host:port`, parted by commas, else `HOLDFAST_KAFKA` names them. A new group starts with the
    first record, or with `start="now"`. `options` go to librdkafka as they are (`security.protocol`, `sasl.password` …) and are
    shown nowhere; those that would break a promise, such as `enable.auto.commit`, are refused. `timeout` is in seconds.
    """
    check_texts("kafka.topic", name, group=group, servers=servers)
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"kafka.topic({name!r}): options is a {type(options).__name__}; give a dict")
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"kafka topic {name}: start is {start!r}; use 'beginning' or 'now'")
    if refused := sorted(_OURS & (options or {}).keys()):
        raise ConfigurationError(
            f"kafka.topic({name!r}) sets {', '.join(refused)}, which Holdfast decides; leave it out"
        )
    return Topic(topic=name, group=group, servers=servers, start=start, timeout=timeout, options=dict(options or {}))


def durability_warnings(name: str, copies: int, settings: Mapping[str, str | None]) -> list[str]:
    """What of a topic can lose records that were acknowledged to their producer, or before they are read."""
    found: list[str] = []
    if copies == 1:
        found.append(f"{name} keeps one copy of each record: a lost disk loses them; set a replication factor of 3")
    if copies > 1 and settings.get("min.insync.replicas") == "1":
        found.append(
            f"{name} confirms with one copy in sync (min.insync.replicas=1): "
            "records are lost with that broker; set min.insync.replicas=2"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        found.append(
            f"{name} lets a replica lead that is behind (unclean.leader.election.enable=true): "
            "confirmed records are dropped then; set it to false"
        )
    if "compact" in (settings.get("cleanup.policy") or ""):
        found.append(
            f"{name} is compacted: of records with one key all but the last may be gone before they are read; "
            "set cleanup.policy=delete, unless only the last counts"
        )
    kept = int(settings.get("retention.ms") or -1)
    if 0 <= kept < _WEEKEND_MS:
        found.append(
            f"{name} keeps records for {kept / 3_600_000:.1f} hours: what is not read by then is gone; "
            "set retention.ms to more than the longest outage you want to survive, such as a week"
        )
    return found
