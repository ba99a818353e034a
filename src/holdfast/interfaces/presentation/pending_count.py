"""The number of pending deliveries of a queue, as JSON."""

from dataclasses import dataclass

from holdfast.core.values.bounded_count import BoundedCount


@dataclass(frozen=True, slots=True)
class QueuePending:
    """What was counted, and how many there are."""

    queue: str
    consumer: str | None
    pending: BoundedCount
