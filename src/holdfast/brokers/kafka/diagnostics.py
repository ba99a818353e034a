"""Settings of a topic that can lose records."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from holdfast.brokers.kafka.connection import connect
from holdfast.core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from holdfast.brokers.kafka.topic import KafkaTopic

_WEEKEND_MS = 3 * 24 * 60 * 60 * 1000


async def durability_warnings(topic: "KafkaTopic") -> list[str]:
    """Reads the settings of a topic and checks them."""
    return await asyncio.to_thread(_read_and_check, topic)


def _read_and_check(topic: "KafkaTopic") -> list[str]:
    admin = connect(topic, AdminClient)
    try:
        found = admin.list_topics(topic.topic, timeout=topic.timeout).topics[topic.topic]
        if found.error is not None:
            raise BrokerUnavailable(topic.name, found.error.str())
    except KafkaException as error:
        raise BrokerUnavailable(topic.name, error.args[0].str()) from error
    copies = min((len(partition.replicas) for partition in found.partitions.values()), default=0)
    try:
        [answer] = admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic.topic)], request_timeout=topic.timeout
        ).values()
        settings = {name: entry.value for name, entry in answer.result(topic.timeout).items()}
    except (KafkaException, TimeoutError):  # the user is not authorized, or the cluster does not support the request
        settings = {}
    return check_settings(topic.name, copies, settings)


def check_settings(name: str, copies: int, settings: Mapping[str, str | None]) -> list[str]:
    """Settings that can lose a record after it was confirmed to its producer, or before it is read."""
    warnings: list[str] = []
    if copies == 1:
        warnings.append(f"{name} keeps one copy of each record: a lost disk loses them; set a replication factor of 3")
    if copies > 1 and settings.get("min.insync.replicas") == "1":
        warnings.append(
            f"{name} confirms with one copy in sync (min.insync.replicas=1): "
            "records are lost with that broker; set min.insync.replicas=2"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        warnings.append(
            f"{name} can elect a leader that is behind (unclean.leader.election.enable=true): "
            "confirmed records are dropped then; set it to false"
        )
    if "compact" in (settings.get("cleanup.policy") or ""):
        warnings.append(
            f"{name} is compacted: of records with the same key, all but the last can be deleted before they are read; "
            "set cleanup.policy=delete, unless only the last counts"
        )
    retention_ms = int(settings.get("retention.ms") or -1)
    if 0 <= retention_ms < _WEEKEND_MS:
        warnings.append(
            f"{name} keeps records for {retention_ms / 3_600_000:.1f} hours: records that are not read by then are "
            "lost; set retention.ms to more than the longest outage you want to survive, such as a week"
        )
    return warnings
