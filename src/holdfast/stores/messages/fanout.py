"""Subscribers by event pattern, as a producer caches them."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.events.pattern import candidates
from holdfast.core.flow import FlowSettings, stored_flow
from holdfast.stores.operation import Rows

_TYPES = 10_000


class SubscriptionRow(NamedTuple):
    """A row of `subscriptions`."""

    pattern: str
    consumer: str
    queue: str
    priority: int
    generation: int
    epoch: int
    active: bool
    tenant: str | None
    flow: str | None


class Subscriber(NamedTuple):
    """A consumer that gets events of a subscription."""

    consumer: str
    queue: str
    priority: int
    generation: int
    tenant: str | None = None
    flow: FlowSettings | None = None


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The subscribers by pattern, complete up to one epoch."""

    epoch: int
    targets: Mapping[str, tuple[Subscriber, ...]]
    has_flow: bool = False
    _known: dict[str, tuple[Subscriber, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def targets_of(self, type: str) -> tuple[Subscriber, ...]:
        """The subscribers of this type, each once even if several patterns match."""
        known = self._known.get(type)
        if known is None:
            found: dict[str, Subscriber] = {}
            for pattern in candidates(type):
                for target in self.targets.get(pattern, ()):
                    found.setdefault(target.consumer, target)
            if len(self._known) >= _TYPES:
                self._known.clear()
            known = self._known[type] = tuple(found.values())
        return known

    def names(self, consumers: Set[str]) -> bool:
        """Whether one of these consumers has a subscription."""
        return any(target.consumer in consumers for found in self.targets.values() for target in found)


@dataclass(slots=True)
class Fanout:
    """A producer's copy of the subscriptions; replaced when a publish finds that it is outdated.

    `uncommitted` are consumers that this process subscribed in a caller's transaction, which may still roll back.
    Subscriptions that include one of them are used once and not cached. `flows` are the flow settings that this app
    declares: they include functions, which the store cannot hold.
    """

    current: Subscriptions | None = field(default=None)
    uncommitted: set[str] = field(default_factory=set)
    flows: Mapping[str, FlowSettings] = field(default_factory=dict)

    def remember(self, found: Subscriptions) -> Subscriptions:
        """Caches subscriptions for later publishes, unless they may still roll back."""
        if not self.uncommitted or not found.names(self.uncommitted):
            self.current = found
        return found


def read_subscriptions(rows: Rows) -> Subscriptions:
    """Converts the rows of `subscriptions`."""
    targets: dict[str, list[Subscriber]] = {}
    epoch, has_flow = 0, False
    for row in map(SubscriptionRow._make, rows):
        epoch = max(epoch, row.epoch)
        if row.active:
            flow = None if row.flow is None else stored_flow(row.flow)
            has_flow = has_flow or flow is not None
            subscriber = Subscriber(row.consumer, row.queue, row.priority, row.generation, row.tenant, flow)
            targets.setdefault(row.pattern, []).append(subscriber)
    return Subscriptions(epoch, {pattern: tuple(found) for pattern, found in targets.items()}, has_flow)
