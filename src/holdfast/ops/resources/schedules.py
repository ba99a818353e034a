"""Schedules: listing, pausing and resuming them, and running one now."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.core.errors import NotFound
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, new_message
from holdfast.ops.queries.messages import OPERATOR, publish_audited
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin.actions import live_generation
from holdfast.stores.messages import schedule
from holdfast.stores.messages.publish import Published
from holdfast.stores.messages.registry import consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """A schedule, with its last and next time. A paused schedule has no next time."""

    name: str
    expression: str
    tz: str
    missed: str
    last_at: datetime
    next_at: datetime | None
    paused_at: datetime | None


def schedules() -> TaskSteps[list[ScheduleState]]:
    """All schedules, by name."""
    return [
        ScheduleState(
            name=one.name,
            expression=one.expression,
            tz=one.tz,
            missed=one.missed,
            last_at=one.last_at,
            next_at=None if one.paused_at is not None else _next(one.expression, one.tz, one.now),
            paused_at=one.paused_at,
        )
        for one in (yield from transact(schedule.schedules()))
    ]


def pause_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[None]:
    """Pauses a schedule until it is resumed."""
    yield from _known(name)
    yield from transact(schedule.pause_schedule(name, actor, reason))


def resume_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes a schedule; false if it was not paused. Occurrences during the pause count as missed."""
    yield from _known(name)
    return (yield from transact(schedule.resume_schedule(name, actor, reason)))


def run_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[Published]:
    """Enqueues one run now, in addition to the scheduled ones. Audited."""
    found = yield from _known(name)
    row = next((one for one in (yield from transact(consumers())) if one.name == name), None)
    address = Address(consumer=name, queue=row.queue, priority=row.priority) if row else Address(consumer=name)
    live = yield from transact(live_generation(name, address.queue))
    call = new_message(
        id=uuid7(int(found.now.timestamp() * 1000), secrets.randbits(74)),
        type=f"job.{name}",
        source=OPERATOR,
        payload={},
        headers={"scheduled_for": found.now.isoformat()},
        generation=live if live is not None else (row.generation if row else 0),
        addressed=[address],
    )
    published = yield from transact(publish_audited(call, actor, "run", reason))
    yield from call_store(lambda store: store.hint_sync())
    return published


def _known(name: str) -> TaskSteps[schedule.StoredSchedule]:
    found = yield from transact(schedule.schedules())
    for one in found:
        if one.name == name:
            return one
    raise NotFound("schedule", name, f"known: {', '.join(one.name for one in found[:20]) or 'none yet'}")


def _next(expression: str, tz: str, now: datetime) -> datetime | None:
    try:
        return next(CronSim(expression, now.astimezone(ZoneInfo(tz)))).astimezone(UTC)
    except (CronSimError, ZoneInfoNotFoundError, ValueError, StopIteration):
        # Another release, or a host with other time zones, may have stored an expression that this one cannot read.
        return None
