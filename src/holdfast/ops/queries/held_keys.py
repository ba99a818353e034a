"""Keys that are held up, of all consumers with flow control: for `doctor` and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.flow import FlowSettings, effective_flow
from holdfast.ops.queries.flow_keys import Hold, KeyState, held_keys
from holdfast.ops.steps import TaskSteps
from holdfast.stores.messages.registry import Consumer

MAX_CONSUMERS = 50
"""Only the consumers with the most waiting deliveries are read."""
MAX_KEYS = 200


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """The keys of a consumer that are held up."""

    consumer: Consumer
    settings: FlowSettings
    keys: Sequence[KeyState]

    def waiting(self, hold: Hold) -> int:
        """The due deliveries that this reason holds up, of the keys that were read."""
        return sum(key.due for key in self.keys if key.hold is hold)


def held(consumers: Sequence[Consumer], pending: Mapping[str, int]) -> TaskSteps[list[HeldKeys]]:
    """The held keys of the consumers with flow control, those with the most waiting deliveries first."""
    with_flow = [one for one in consumers if one.flow is not None]
    with_flow.sort(key=lambda one: -pending.get(one.name, 0))
    found = []
    for one in with_flow[:MAX_CONSUMERS]:
        settings = effective_flow(str(one.flow), one.flow_override)
        found.append(HeldKeys(one, settings, (yield from held_keys(one, settings, MAX_KEYS))))
    return found
