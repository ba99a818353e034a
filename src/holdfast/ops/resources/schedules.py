"""Schedules: listing, adding, pausing, resuming and removing them, and running one now."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

import orjson

from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.events.payload import decode, encode
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, new_message
from holdfast.core.redaction.redact import Redactor
from holdfast.core.schedule import AT, Missed, next_occurrence, schedule_text
from holdfast.core.values.duration import Duration
from holdfast.core.values.names import check_name
from holdfast.ops.queries.messages import OPERATOR, publish_audited
from holdfast.ops.queries.redaction import redactor
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin.actions import live_generation
from holdfast.stores.messages import schedule
from holdfast.stores.messages.publish import Published
from holdfast.stores.messages.registry import consumers
from holdfast.stores.messages.schedule import NewSchedule, StoredSchedule
from holdfast.stores.queries.query import subscriptions

_GRACE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """A schedule, with its last and next time. A paused schedule has no next time.

    `last_at` is its newest occurrence that was enqueued or skipped. Before the first one, it is the time at which the
    schedule was created or got another timing.

    `args` are the arguments of its job by name. A schedule that is due and does not fire is overdue: no running worker
    has its job.
    """

    name: str
    job: str
    args: Mapping[str, Any]
    expression: str
    tz: str
    missed: str
    is_declared: bool
    last_at: datetime
    next_at: datetime | None
    paused_at: datetime | None
    is_overdue: bool


def schedules(
    *, job: str | None = None, prefix: str | None = None, after: str | None = None, limit: int = 1000
) -> TaskSteps[list[ScheduleState]]:
    """A page of schedules by name; pass the last name as `after` for the next. Declared secrets are removed from the arguments."""
    known = yield from redactor()
    found = yield from transact(schedule.schedules(job=job, prefix=prefix, after=after, limit=limit))
    return [schedule_state(one, known) for one in found]


def show_schedule(name: str) -> TaskSteps[ScheduleState]:
    """One schedule, its arguments without declared secrets."""
    known = yield from redactor()
    return schedule_state((yield from transact(schedule.known_schedule(name))), known)


def put_schedule(
    name: str,
    *,
    job: str,
    args: Mapping[str, object] | None = None,
    cron: str | None = None,
    every: Duration | None = None,
    at: datetime | str | None = None,
    tz: str | None = None,
    missed: str | None = None,
    actor: str,
    reason: str | None = None,
) -> TaskSteps[ScheduleState]:
    """Adds or changes a schedule of a registered job, audited; workers fire it from now on.

    The arguments are checked when the job runs: only the app's code knows its parameters. `hf.schedules.put` checks them.
    """
    if isinstance(at, str):
        at = _read_time(at)
    if args is not None and not isinstance(args, Mapping):
        raise ConfigurationError(f"args is {args!r}; give an object of named arguments")
    new = new_schedule(name, job, encode(dict(args or {})), cron, every, at, tz or "UTC", missed or "last")
    known = {one.name for one in (yield from transact(consumers()))}
    subscribed = {one.consumer for one in (yield from transact(subscriptions())) if one.active}
    if job in subscribed:
        raise Refused("schedule", job, "a consumer of events, not a job", "publish its event from a job")
    if job not in known:
        jobs = sorted(known - subscribed)
        near = get_close_matches(job, jobs, n=1)
        hint = f"did you mean {near[0]}?" if near else f"registered: {', '.join(jobs[:20]) or 'none yet'};"
        raise NotFound("job", job, f"{hint} start a worker that declares it first")
    stored = yield from transact(schedule.put_schedule(new, actor, reason))
    return schedule_state(stored, (yield from redactor()))


def pause_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[None]:
    """Pauses a schedule until it is resumed."""
    yield from transact(schedule.pause_schedule(name, actor, reason))


def resume_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes a schedule; false if it was not paused. Occurrences during the pause count as missed."""
    return (yield from transact(schedule.resume_schedule(name, actor, reason)))


def remove_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[None]:
    """Removes a schedule; jobs that it enqueued stay. A schedule that a running worker declares cannot be removed."""
    yield from transact(schedule.remove_schedule(name, actor, reason))


def run_schedule(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[Published]:
    """Enqueues one run now, in addition to the scheduled ones. Audited."""
    found = yield from transact(schedule.known_schedule(name))
    row = next((one for one in (yield from transact(consumers())) if one.name == found.job), None)
    address = (
        Address(consumer=found.job, queue=row.queue, priority=row.priority) if row else Address(consumer=found.job)
    )
    live = yield from transact(live_generation(found.job, address.queue))
    call = new_message(
        id=uuid7(int(found.now.timestamp() * 1000), secrets.randbits(74)),
        type=f"job.{found.job}",
        source=OPERATOR,
        payload={} if found.args is None else decode(found.args),
        headers={"scheduled_for": found.now.isoformat()},
        generation=live if live is not None else (row.generation if row else 0),
        addressed=[address],
    )
    published = yield from transact(publish_audited(call, actor, "run", reason))
    yield from call_store(lambda store: store.hint_sync())
    return published


def new_schedule(
    name: str,
    job: str,
    args: str,
    cron: str | None,
    every: Duration | None,
    at: datetime | None,
    tz: str,
    missed: str,
) -> NewSchedule:
    """A checked run-time schedule; `args` is the JSON of the arguments."""
    check_name("schedule", name)
    check_name("consumer", job)
    text = schedule_text(cron, every, at, tz)

    def first(now: datetime) -> datetime | None:
        return at if text == AT else next_occurrence(text, tz, now, now)

    return NewSchedule(name, job, args, text, tz, Missed.parse(missed).value, first)


def schedule_state(one: StoredSchedule, known: Redactor | None = None) -> ScheduleState:
    """A stored schedule as callers see it; a redactor removes declared secrets from its arguments."""
    args = "{}" if one.args is None else one.args
    is_active = one.paused_at is None and one.next_at is not None
    return ScheduleState(
        name=one.name,
        job=one.job,
        args=orjson.loads(args if known is None else known.payload(f"job.{one.job}", args)),
        expression=one.expression,
        tz=one.tz,
        missed=one.missed,
        is_declared=one.declared,
        last_at=one.last_at,
        next_at=_next(one) if is_active else None,
        paused_at=one.paused_at,
        is_overdue=is_active and one.next_at is not None and one.now - one.next_at > _GRACE,
    )


def _read_time(text: str) -> datetime:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"`at` is {text!r}; give a time such as 2026-12-24T18:00Z") from None
    if read.utcoffset() is None:
        raise ConfigurationError(f"`at` is {text!r}, without a time zone; add Z for UTC, or an offset such as +01:00")
    return read


def _next(one: StoredSchedule) -> datetime | None:
    if one.expression == AT or one.next_at is None or one.next_at > one.now:
        return one.next_at
    try:
        return next_occurrence(one.expression, one.tz, one.last_at, one.now)
    except ConfigurationError:
        # Another release, or a host with other time zones, may have stored an expression that this one cannot read.
        return None
