"""Settings of a stream or a consumer that can lose confirmed records."""

from datetime import timedelta
from typing import TYPE_CHECKING

from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType

from holdfast.brokers.nats.connection import broker_errors, connect
from holdfast.core.values.duration import format_duration

if TYPE_CHECKING:
    from nats.js.api import ConsumerInfo, StreamInfo

    from holdfast.brokers.nats.stream import NatsStream


async def durability_warnings(stream: "NatsStream") -> list[str]:
    """Reads the settings of the stream and of the group's consumer, and checks them."""
    async with connect(stream, "doctor") as connection:
        with broker_errors(stream.name):
            info = await connection.stream_info(stream)
            is_source = stream.group is not None
            warnings = _check_stream(info, clustered=connection.clustered, is_source=is_source)
            if is_source and (consumer := await connection.consumer_info(stream, info)) is not None:
                warnings += _check_consumer(consumer)
            return warnings


def _check_stream(info: "StreamInfo", *, clustered: bool, is_source: bool) -> list[str]:
    config, warnings = info.config, []
    stream = f"stream {config.name}"
    if config.storage == StorageType.MEMORY:
        warnings.append(f"{stream} is stored in memory, and a restart loses it; create it again with storage=file")
    if getattr(config, "persist_mode", None) == PersistMode.ASYNC:
        warnings.append(f"{stream} confirms before it writes; set persist_mode=default")
    if clustered and (config.num_replicas or 1) < 3:
        copies = "one copy" if (config.num_replicas or 1) == 1 else "two copies"
        warnings.append(f"{stream} has {copies} in a cluster, and the loss of one node can lose it; set replicas=3")
    if config.no_ack:
        warnings.append(f"{stream} confirms nothing it stores; set no_ack=false")
    if config.max_age:
        age = format_duration(timedelta(seconds=config.max_age))
        warnings.append(f"{stream} drops records after {age}, read or not; set max_age=0, or longer than any outage")
    if config.discard != DiscardPolicy.NEW:
        limits = [
            limit for limit in ("max_msgs", "max_bytes", "max_msgs_per_subject") if (getattr(config, limit) or 0) > 0
        ]
        if limits:
            names = " and ".join(limits)
            warnings.append(f"{stream} drops its oldest records, read or not, at {names}; set discard=new")
    if config.retention == RetentionPolicy.INTEREST:
        warnings.append(f"{stream} drops records that no consumer waits for; set retention=limits")
    if config.retention == RetentionPolicy.WORK_QUEUE and not is_source:
        warnings.append(f"{stream} drops records once one group has them; set retention=limits if more groups read it")
    return warnings


def _check_consumer(consumer: "ConsumerInfo") -> list[str]:
    """Checks the settings that opening a subscription does not correct."""
    warnings = []
    if consumer.config.mem_storage:
        warnings.append(f"consumer {consumer.name} stores its position in memory; set mem_storage=false")
    if consumer.config.headers_only:
        warnings.append(f"consumer {consumer.name} delivers headers without bodies; set headers_only=false")
    return warnings
