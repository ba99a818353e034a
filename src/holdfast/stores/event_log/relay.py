"""What a relay writes: how far the broker has confirmed, and deliveries for what it refused, together."""

from collections.abc import Sequence
from datetime import timedelta

from holdfast.core.errors import Refused
from holdfast.core.identity import delivery_id
from holdfast.core.message import Message
from holdfast.stores.admin.actions import audited
from holdfast.stores.event_log.log import Cursor
from holdfast.stores.event_log.position import PositionLease, Reader, moved, positions
from holdfast.stores.messages.publish import insert_absent
from holdfast.stores.operation import Query, Steps, operation


@operation
def mark_relayed(
    held: PositionLease,
    cursor: Cursor,
    lease: timedelta,
    *,
    passed: int,
    refused: Sequence[Message],
    queue: str,
    priority: int,
    generation: int,
) -> Steps[bool]:
    """Moves a relay on behind what was confirmed; false when another owner has taken over: nothing changed.

    What the broker refused becomes a delivery of its own, for the consumer that the relay is too: it runs, fails and is
    replayed as any other, and the log goes on.
    """
    if not (yield from moved(held, cursor, lease, passed)):
        return False
    if refused:
        rows = sorted(
            (
                (delivery_id(m.id, held.name), m.id, held.name, queue, priority, max(m.generation, generation))
                for m in refused
            ),
            key=lambda row: str(row[0]),
        )
        yield insert_absent(rows)
    return True


def retire_relay(name: str, actor: str, reason: str | None) -> Steps[tuple[str, ...]]:
    """Forgets a relay and how far it had come, audited; which events it sent, none when there is no such relay."""
    for relay in (yield from positions(Reader.RELAY).start()):
        if relay.name == name:
            if not (yield Query("forget_position", {"kind": Reader.RELAY.value, "name": name})):
                remedy = "take it out of the app and stop the workers that have it first"
                raise Refused(
                    "retire",
                    f"relay {name}",
                    f"run by {relay.owner}" if relay.owner else "known to a worker that is alive",
                    remedy,
                )
            yield audited(actor, "retire", "consumer", name, reason, {"cursor": str(relay.cursor), **relay.detail})
            events = relay.detail.get("events")
            return tuple(map(str, events)) if isinstance(events, list) else ("*",)
    return ()
