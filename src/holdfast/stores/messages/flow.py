"""Flow keys of deliveries.

They are evaluated when a message is published, or later by a worker that declares the consumer.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.flow import FlowSettings
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.stores.messages.fanout import Fanout, Subscriptions
from holdfast.stores.operation import Query, columns

_ADOPTED = ("delivery_id", "flow_key", "ordered")


class DeliveryKey(NamedTuple):
    """The key of one delivery, and whether its consumer has an order."""

    delivery_id: UUID
    flow_key: str
    ordered: bool
    delay: timedelta | None = None
    """The quiet time of a consumer with debounce."""


class FlowKeys:
    """Finds the flow settings of each delivery of a message. A function as a key is known only to an app that declares it."""

    def __init__(self, local: Mapping[str, FlowSettings], subscriptions: Subscriptions) -> None:
        self._local, self._subscriptions = local, subscriptions

    def applies(self, message: NewMessage) -> bool:
        """Whether a delivery of this message gets a key."""
        return any(settings is not None and settings.key is not None for _, settings in self._targets(message))

    def of(self, message: NewMessage, id: UUID | None = None) -> list[DeliveryKey]:
        """The keys of a message's deliveries, as far as this process can find them; `id` is that of a stored message."""
        return [
            DeliveryKey(
                delivery_id(id or message.id, consumer),
                key_of(consumer, settings, message),
                settings.is_sequenced,
                settings.debounce,
            )
            for consumer, settings in self._targets(message)
            if settings is not None and settings.key is not None and settings.key.is_known
        ]

    def _targets(self, message: NewMessage) -> Iterable[tuple[str, FlowSettings | None]]:
        if message.addressed:
            return ((to.consumer, self._local.get(to.consumer)) for to in message.addressed)
        targets = self._subscriptions.targets_of(message.type)
        return ((to.consumer, self._local.get(to.consumer) or to.flow) for to in targets)


def flow_keys(fanout: Fanout, subscriptions: Subscriptions) -> FlowKeys | None:
    """The keys for a publish; None if no known consumer has flow control."""
    return FlowKeys(fanout.flows, subscriptions) if fanout.flows or subscriptions.has_flow else None


def key_of(consumer: str, settings: FlowSettings, message: NewMessage) -> str:
    """The key of a message for a consumer; raises `ConfigurationError` if the app's function fails."""
    assert settings.key is not None
    try:
        return settings.key.key(message.payload, message.headers)
    except Exception as error:
        raise ConfigurationError(
            f"consumer {consumer}: the key function {settings.key.name} failed for a {message.type} message: "
            f"{type(error).__name__}: {error}; correct the function"
        ) from error


def adopt(keys: Sequence[DeliveryKey]) -> Query:
    """Gives keys to pending deliveries that have none; returns the deliveries that got one."""
    return Query("adopt_deliveries", batches={"deliveries": columns(_ADOPTED, [key[: len(_ADOPTED)] for key in keys])})
