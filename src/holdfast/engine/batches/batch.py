"""A claimed batch: deliveries that run in one call and take one slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from holdfast.core.message import RAW_TYPE
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.log_fields import delivery_fields
from holdfast.stores.deliveries.claim import Claimed


@dataclass(frozen=True, slots=True, eq=False)
class ClaimedBatch:
    """Deliveries of one consumer, at least one, in the order in which they are due."""

    items: tuple[Claimed, ...]

    @property
    def consumer(self) -> str:
        return self.items[0].consumer

    @property
    def queue(self) -> str:
        return self.items[0].queue

    @property
    def priority(self) -> int:
        return self.items[0].priority

    @property
    def run_at(self) -> datetime:
        return self.items[0].run_at

    @property
    def id(self) -> UUID:
        """The id of its first delivery."""
        return self.items[0].id

    @property
    def fields(self) -> dict[str, object]:
        """The fields of log lines about the batch."""
        return {"consumer": self.consumer, "queue": self.queue, "size": len(self.items)}


Work = Claimed | ClaimedBatch
"""What a slot runs."""


def deliveries_of(work: Work) -> Sequence[Claimed]:
    """The deliveries of a slot's work."""
    return work.items if isinstance(work, ClaimedBatch) else (work,)


def fields_of(work: Work) -> dict[str, object]:
    """The fields of log lines about a slot's work."""
    return work.fields if isinstance(work, ClaimedBatch) else delivery_fields(work)


def as_batches(claims: Sequence[Claimed], handlers: Mapping[str, Handler]) -> list[Work]:
    """Deliveries that were claimed one by one (suspects, trials): those of batch handlers become batches of one."""
    return [
        ClaimedBatch((claimed,))
        if handlers[claimed.consumer].batch is not None and claimed.type != RAW_TYPE
        else claimed
        for claimed in claims
    ]


def as_batch(claims: Sequence[Claimed]) -> list[Work]:
    """Deliveries that were claimed as a batch. A raw broker record runs alone: it is decoded again, not handled."""
    ordered = sorted(claims, key=lambda claimed: (claimed.run_at, claimed.id.int))
    raw: list[Work] = [claimed for claimed in ordered if claimed.type == RAW_TYPE]
    items = tuple(claimed for claimed in ordered if claimed.type != RAW_TYPE)
    return [*raw, ClaimedBatch(items)] if items else raw
