"""Reading around deliveries: queues, subscriptions, messages by id, and how much a pruning would remove."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.message import Message
from holdfast.stores.dialect import optional_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.query import read_message


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription as the store knows it; a retired one gets nothing new."""

    pattern: str
    consumer: str
    active: bool


@operation(reads=True)
def paused_queues() -> Steps[dict[str, datetime]]:
    """The queues that are paused, and since when."""
    rows = yield Query("queues")
    return {str(name): at for name, paused in rows if (at := optional_time(paused)) is not None}


@operation(reads=True)
def subscribed() -> Steps[list[Subscribed]]:
    """Every subscription ever made, by consumer and pattern."""
    rows = yield Query("subscriptions")
    found = [Subscribed(str(row[0]), str(row[1]), bool(row[6])) for row in rows]
    return sorted(found, key=lambda one: (one.consumer, one.pattern))


@operation(reads=True)
def messages_with(ids: Sequence[UUID]) -> Steps[dict[UUID, Message]]:
    """The messages with these ids; what is absent was pruned or never was."""
    found = [read_message(row) for row in (yield Query("find_messages", {"ids": list(ids)}))]
    return {message.id: message for message in found}


@operation(reads=True)
def prunable_messages(ceiling: UUID, older_than: timedelta, *, discarded: bool = False) -> Steps[int]:
    """How many messages a pruning would remove after it removed the deliveries."""
    slots = (("unless", ("unless_set_aside",) if discarded else ()),)
    rows = yield Query("prunable_messages", {"ceiling": ceiling, "older_than": older_than}, slots=slots)
    return int(rows[0][0])
