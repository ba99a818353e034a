"""What in a stream's or a consumer's settings can lose records that were confirmed."""

from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.core.duration import format_duration

if TYPE_CHECKING:
    from nats.js.api import ConsumerInfo, StreamInfo


def stream_doubts(info: "StreamInfo", *, clustered: bool, reading: bool) -> list[str]:
    """Each with what to set instead."""
    from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType

    config, found = info.config, []
    stream = f"stream {config.name}"
    if config.storage == StorageType.MEMORY:
        found.append(f"{stream} is kept in memory, and a restart loses it; make it anew with storage=file")
    if getattr(config, "persist_mode", None) == PersistMode.ASYNC:
        found.append(f"{stream} confirms before it writes; set persist_mode=default")
    if clustered and (config.num_replicas or 1) < 3:
        copies = "one copy" if (config.num_replicas or 1) == 1 else "two copies"
        found.append(f"{stream} has {copies} in a cluster, and the loss of one node can lose it; set replicas=3")
    if config.no_ack:
        found.append(f"{stream} confirms nothing it stores; set no_ack=false")
    if config.max_age:
        age = format_duration(timedelta(seconds=config.max_age))
        found.append(f"{stream} drops records after {age}, read or not; set max_age=0, or longer than any outage")
    if config.discard != DiscardPolicy.NEW:
        limits = [
            limit for limit in ("max_msgs", "max_bytes", "max_msgs_per_subject") if (getattr(config, limit) or 0) > 0
        ]
        if limits:
            found.append(f"{stream} drops its oldest records, read or not, at {' and '.join(limits)}; set discard=new")
    if config.retention == RetentionPolicy.INTEREST:
        found.append(f"{stream} drops records that no consumer waits for; set retention=limits")
    if config.retention == RetentionPolicy.WORK_QUEUE and not reading:
        found.append(f"{stream} drops records once one group has them; set retention=limits if more groups read it")
    return found


def consumer_doubts(consumer: "ConsumerInfo") -> list[str]:
    """Each with what to set instead; what an open subscription sets right by itself is left out."""
    found = []
    if consumer.config.mem_storage:
        found.append(f"consumer {consumer.name} keeps its place in memory; set mem_storage=false")
    if consumer.config.headers_only:
        found.append(f"consumer {consumer.name} hands over headers without bodies; set headers_only=false")
    return found
