"""Relay writes: the position that the broker has confirmed, with deliveries for the events that it refused."""

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
    """Moves a relay past the confirmed events; False if another owner took over, and nothing changed.

    A refused event becomes a delivery to the relay's consumer, which runs, fails and is replayed like any other. The
    relay continues.
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
    """Removes a relay and its position, audited; returns its event patterns, empty without such a relay."""
    for relay in (yield from positions(Reader.RELAY).start()):
        if relay.name == name:
            if not (yield Query("forget_position", {"kind": Reader.RELAY.value, "name": name})):
                remedy = "remove it from the app and stop its workers first"
                raise Refused(
                    "retire",
                    f"relay {name}",
                    f"run by {relay.owner}" if relay.owner else "registered by a live worker",
                    remedy,
                )
            yield audited(actor, "retire", "consumer", name, reason, {"cursor": str(relay.cursor), **relay.detail})
            events = relay.detail.get("events")
            return tuple(map(str, events)) if isinstance(events, list) else ("*",)
    return ()
