"""Schedules in the store: the declared ones and the run-time ones, with their last occurrence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.message import NewMessage
from holdfast.core.schedule import AT
from holdfast.stores.admin.actions import audited
from holdfast.stores.dialect import aware_time
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.queries.query import page_size
from holdfast.stores.row import row_reader

_KIND = "schedule"
_SHOWN = 20
_READ = ("name", "revision", "last_at")


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule and its last occurrence, read at the database's time `now`.

    `args` is the JSON of the arguments of its job; a declared schedule has none, and its job has its name. `next_at` is when
    it is evaluated next; for a single time (`at`) it is that time.
    """

    name: str
    job: str
    args: str | None
    expression: str
    tz: str
    missed: str
    declared: bool
    last_at: datetime
    next_at: datetime | None
    paused_at: datetime | None
    revision: int
    now: datetime


class NewSchedule(NamedTuple):
    """A run-time schedule as its caller describes it; `first` returns its first occurrence after a time."""

    name: str
    job: str
    args: str
    expression: str
    tz: str
    missed: str
    first: Callable[[datetime], datetime | None]


class Firing(NamedTuple):
    """The jobs to enqueue for a schedule, the newest occurrence that they cover, and the next one."""

    schedule: StoredSchedule
    messages: Sequence[NewMessage]
    reached: datetime
    following: datetime | None


@dataclass(frozen=True, slots=True)
class OverdueJob:
    """The schedules of a job that are due and do not fire; `name` is one of them."""

    job: str
    count: int
    since: datetime
    name: str
    declared: bool
    served: bool


@operation
def save_schedules(declared: Sequence[tuple[str, str, str, str]]) -> Steps[list[str]]:
    """Declares schedules as (name, expression, tz, missed); a new one starts now.

    Returns the names that run-time schedules have taken; these are not stored.
    """
    taken = []
    for name, expression, tz, missed in declared:
        values = {"name": name, "expression": expression, "tz": tz, "missed": missed}
        if not (yield Query("save_schedule", values)):
            taken.append(name)
    return taken


@operation
def put_schedule(new: NewSchedule, actor: str, reason: str | None = None) -> Steps[StoredSchedule]:
    """Adds or changes a run-time schedule, audited; nothing is written if nothing changed.

    A changed timing starts now; otherwise its next occurrence stays. A paused schedule stays paused. `ConfigurationError`
    for a time in the past, by the database's clock; `Refused` if the name is declared.
    """
    ((clock,),) = yield Query("clock")
    now = aware_time(clock)
    first = new.first(now)
    if new.expression == AT and (first is None or first <= now):
        raise ConfigurationError(
            f"schedule {new.name}: `at` is {first}, and the database's time is {now}; give a time in the future, or "
            f"enqueue {new.job} now"
        )
    values: dict[str, object] = new._asdict() | {"last_at": now, "next_at": first}
    del values["first"]
    changed = yield Query("put_schedule", values)
    if changed:
        detail = {"job": new.job, "expression": new.expression, "tz": new.tz, "missed": new.missed}
        yield audited(actor, "put", _KIND, new.name, reason, detail)
    stored = yield from _one(new.name)
    if stored.declared:
        raise _declared("put", new.name, "choose another name")
    return stored


@operation(reads=True)
def schedule(name: str) -> Steps[StoredSchedule | None]:
    """One schedule; None if there is none of that name."""
    return next(map(_read_schedule, (yield Query("schedule", {"name": name}))), None)


@operation(reads=True)
def known_schedule(name: str) -> Steps[StoredSchedule]:
    """One schedule; `NotFound` with other names if there is none of that name."""
    return (yield from _one(name))


@operation(reads=True)
def schedules(
    *, job: str | None = None, prefix: str | None = None, after: str | None = None, limit: int = 100
) -> Steps[list[StoredSchedule]]:
    """A page of schedules by name: those of a job, or whose names start with a text; `after` is the last name before it."""
    given = {"job": job, "prefix": prefix}
    values = {name: value for name, value in given.items() if value is not None}
    where = tuple(f"where_schedule_{name}" for name in values)
    rows = yield Query("schedules", {"after": after or "", **values}, slots=(("where", where),), limit=page_size(limit))
    return [_read_schedule(row) for row in rows]


@operation(reads=True, hot=True)
def due_schedules(jobs: Sequence[str], limit: int) -> Steps[list[StoredSchedule]]:
    """The schedules of these jobs to be evaluated now. The cost depends on the number of jobs, not of schedules."""
    return [_read_schedule(row) for row in (yield Query("due_schedules", {"jobs": list(jobs)}, limit=limit))]


@operation(reads=True, hot=True)
def has_schedules(jobs: Sequence[str]) -> Steps[bool]:
    """Whether one of these jobs has a schedule that is not paused."""
    ((found,),) = yield Query("has_schedules", {"jobs": list(jobs)})
    return bool(found)


@operation
def fire(firings: Sequence[Firing], fanout: Fanout) -> Steps[set[str]]:
    """Enqueues occurrences and advances their schedules; returns the names of those that no other scheduler advanced.

    The key of each message is its occurrence, so a scheduler that was suspended does not fire an occurrence twice.
    """
    advanced: set[str] = set()
    single, repeated = (
        sorted((one for one in firings if (one.schedule.expression == AT) is kind), key=lambda one: one.schedule.name)
        for kind in (True, False)
    )
    if repeated:
        rows = [(*_read_at(one.schedule), one.reached, one.following) for one in repeated]
        batch = columns((*_READ, "reached", "following"), rows)
        advanced.update(row[0] for row in (yield Query("advance_schedules", batches={"schedules": batch})))
    if single:
        batch = columns(_READ, [_read_at(one.schedule) for one in single])
        advanced.update(row[0] for row in (yield Query("end_schedules", batches={"schedules": batch})))
    messages = [message for one in firings if one.schedule.name in advanced for message in one.messages]
    if messages:
        yield from publish(messages, fanout).start()
    return advanced


@operation(single=True)
def postpone_schedules(names: Sequence[str], delay: timedelta) -> Steps[None]:
    """Evaluates schedules again after a delay; their occurrences stay due."""
    yield Query("postpone_schedules", {"names": list(names), "delay": delay})


@operation
def pause_schedule(name: str, actor: str, reason: str | None) -> Steps[None]:
    """Pauses a schedule until it is resumed."""
    if not (yield Query("pause_schedule", {"name": name})):
        yield from _one(name)
    yield audited(actor, "pause", _KIND, name, reason)


@operation
def resume_schedule(name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Resumes a schedule; False if it was not paused."""
    if not (yield Query("resume_schedule", {"name": name})):
        yield from _one(name)
        return False
    yield audited(actor, "resume", _KIND, name, reason)
    return True


@operation
def remove_schedule(name: str, actor: str, reason: str | None) -> Steps[None]:
    """Removes a schedule; jobs that it enqueued stay. Raises `Refused` for one that a running worker declares."""
    if not (yield Query("remove_schedule", {"name": name})):
        yield from _one(name)
        raise _declared("remove", name, "remove it from the code, or pause it")
    yield audited(actor, "remove", _KIND, name, reason)


@operation(reads=True)
def overdue_schedules(grace: timedelta, limit: int = _SHOWN) -> Steps[list[OverdueJob]]:
    """Jobs with schedules that have been due for longer than `grace`, the oldest first."""
    return [_read_overdue(row) for row in (yield Query("overdue_schedules", {"grace": grace}, limit=limit))]


def _one(name: str) -> Steps[StoredSchedule]:
    found = yield Query("schedule", {"name": name})
    if not found:
        rows = yield Query("schedules", {"after": ""}, slots=(("where", ()),), limit=_SHOWN)
        raise NotFound(_KIND, name, f"known: {', '.join(row[0] for row in rows) or 'none yet'}")
    return _read_schedule(found[0])


def _read_at(one: StoredSchedule) -> tuple[object, ...]:
    """The version of a schedule that was read; a write is refused if it has changed since."""
    return one.name, one.revision, one.last_at


def _declared(action: str, name: str, remedy: str) -> Refused:
    return Refused(action, f"schedule {name}", "declared in the code with @hf.cron", remedy)


_read_schedule = row_reader(StoredSchedule)
_read_overdue = row_reader(OverdueJob)
