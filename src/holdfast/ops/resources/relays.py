"""Relays: their targets, backlog and owners."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.event_log.log import EventFilter, behind
from holdfast.stores.event_log.position import Position, Reader, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayState:
    """A relay. `waiting` counts the events that are not relayed yet, up to 10,000 (`or_more`); `lag` is the age of the
    oldest. `relayed` counts the relayed events. `owner` is the worker with a valid lease. A `rewound` relay is stopped
    because the event store was restored onto another server."""

    name: str
    patterns: tuple[str, ...]
    to: str
    waiting: int
    or_more: bool
    lag: timedelta
    relayed: int
    owner: str | None
    moved_at: datetime
    rewound: bool


def relays() -> TaskSteps[list[RelayState]]:
    """All relays that ever ran, by name; `retire_consumer` removes one."""
    found = []
    for position in (yield from transact(positions(Reader.RELAY))):
        patterns = _texts(position.detail.get("events")) or ("*",)
        late = yield from transact(behind(position.cursor, EventFilter(patterns)))
        found.append(
            RelayState(
                name=position.name,
                patterns=patterns,
                to=str(position.detail.get("to", "")),
                waiting=late.waiting,
                or_more=late.or_more,
                lag=late.age,
                relayed=position.passed,
                owner=_owner(position),
                moved_at=position.updated_at,
                rewound=late.rewound,
            )
        )
    return found


def _owner(position: Position) -> str | None:
    return position.owner if position.held else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
