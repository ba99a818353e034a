"""Schedules in the store, with their last occurrence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.errors import NotFound
from holdfast.core.message import NewMessage
from holdfast.stores.admin.actions import audited
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import row_reader


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule and its last occurrence, read at the database's time `now`."""

    name: str
    expression: str
    tz: str
    missed: str
    last_at: datetime
    paused_at: datetime | None
    now: datetime


@operation
def save_schedules(declared: Sequence[tuple[str, str, str, str]]) -> Steps[None]:
    """Declares schedules as (name, expression, tz, missed); a new one starts now."""
    for name, expression, tz, missed in declared:
        yield Query("save_schedule", {"name": name, "expression": expression, "tz": tz, "missed": missed})


@operation(reads=True)
def schedules() -> Steps[list[StoredSchedule]]:
    """All schedules, by name."""
    return [_read_schedule(row) for row in (yield Query("schedules"))]


_read_schedule = row_reader(StoredSchedule)


@operation
def fire(schedule: StoredSchedule, messages: Sequence[NewMessage], occurrence: datetime, fanout: Fanout) -> Steps[int]:
    """Publishes occurrences and advances the schedule; returns the number of new ones, 0 if another scheduler was first.

    The key of each message is its occurrence, so a scheduler that was suspended does not fire an occurrence twice.
    """
    values = {"name": schedule.name, "last_at": schedule.last_at, "occurrence": occurrence}
    if not (yield Query("advance_schedule", values)):
        return 0
    published = yield from publish(messages, fanout).start()
    return sum(one.created for one in published)


@operation
def pause_schedule(name: str, actor: str, reason: str | None) -> Steps[None]:
    """Pauses a schedule until it is resumed."""
    if not (yield Query("pause_schedule", {"name": name})):
        raise NotFound("schedule", name)
    yield audited(actor, "pause", "schedule", name, reason)


@operation
def resume_schedule(name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Resumes a schedule; False if it was not paused."""
    if not (yield Query("resume_schedule", {"name": name})):
        return False
    yield audited(actor, "resume", "schedule", name, reason)
    return True
