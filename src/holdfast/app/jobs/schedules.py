"""`hf.schedules`: schedules that are added, changed and removed while the app runs."""

import difflib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from holdfast.app.jobs.job import Call, Job, Placement
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.arguments import checks_options
from holdfast.core.values.duration import Duration
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.engine.maintenance.cron import Schedule
from holdfast.ops.resources.schedules import ScheduleState, new_schedule, schedule_state
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages import schedule as stored
from holdfast.stores.messages.schedule import StoredSchedule
from holdfast.stores.operation import Operation

_EXAMPLE = "give a dict or a tuple of arguments, such as {'tenant': 7}"


class Schedules:
    """Run-time schedules. Running workers fire them from now on, each occurrence once, as they fire `@hf.cron`.

    `conn` is any connection that `publish` accepts: the change is part of its transaction. Without one it commits in a
    separate transaction; in a Django project it joins the open `atomic` block. Every change is audited with its `actor`, by default the app.
    """

    def __init__(self, runtime: Callable[[], Runtime], declared: Mapping[str, Schedule], source: str) -> None:
        self._runtime, self._declared, self._actor = runtime, declared, f"app:{source}"

    @property
    def sync(self) -> "SyncSchedules":
        """The same methods, blocking."""
        return SyncSchedules(self)

    @checks_options
    async def put(
        self,
        name: str,
        *,
        job: Job[..., Any] | str,
        args: Call | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: str = "last",
        conn: Any = AMBIENT,
        actor: str | None = None,
    ) -> ScheduleState:
        """Adds a schedule, or changes the one of this name; exactly one of `cron`, `every` and `at` says when the job runs.

        `await hf.schedules.put(f"report:{tenant}", cron="0 7 * * *", job=report, args={"tenant": tenant}, conn=session)`

        `every` counts from now. A schedule with `at` runs once and is then removed. `missed` is as for `@hf.cron`. The same
        values again change nothing, so a start-up may repeat its calls. A changed `cron`, `every`, `at` or `tz` starts now; other
        changes keep the next occurrence. A paused schedule stays paused.
        """
        change = self._put(name, job, args, cron, every, at, tz, missed, actor)
        return schedule_state(await self._runtime().run(change, conn, "hf.schedules.put"))

    async def get(self, name: str, *, conn: Any = AMBIENT) -> ScheduleState | None:
        """The schedule of this name, also a declared one; None if there is none."""
        return _state(await self._runtime().run(stored.schedule(name), conn, "hf.schedules.get"))

    async def list(
        self,
        *,
        job: Job[..., Any] | str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = 100,
        conn: Any = AMBIENT,
    ) -> "list[ScheduleState]":
        """A page of schedules by name, declared ones included; pass the last name as `after` for the next page.

        `job` selects the schedules of one job, `prefix` those whose names start with it, such as `"report:"`.
        """
        page = stored.schedules(job=_job_name(job), prefix=prefix, after=after, limit=limit)
        return [schedule_state(one) for one in await self._runtime().run(page, conn, "hf.schedules.list")]

    async def pause(
        self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None
    ) -> None:
        """Pauses a schedule until it is resumed; raises `NotFound` if there is none of this name."""
        await self._runtime().run(stored.pause_schedule(name, actor or self._actor, reason), conn, "hf.schedules.pause")

    async def resume(
        self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None
    ) -> bool:
        """Resumes a schedule; false if it was not paused. Occurrences during the pause count as missed."""
        change = stored.resume_schedule(name, actor or self._actor, reason)
        return await self._runtime().run(change, conn, "hf.schedules.resume")

    async def remove(
        self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None
    ) -> None:
        """Removes a schedule; jobs that it enqueued stay. Raises `Refused` for one that a running worker declares."""
        await self._runtime().run(
            stored.remove_schedule(name, actor or self._actor, reason), conn, "hf.schedules.remove"
        )

    def _put(
        self,
        name: str,
        job: Job[..., Any] | str,
        args: Call | None,
        cron: str | None,
        every: Duration | None,
        at: datetime | None,
        tz: str,
        missed: str,
        actor: str | None,
    ) -> Operation[StoredSchedule]:
        if name in self._declared:
            raise ConfigurationError(f"schedule {name} is declared with @hf.cron; choose another name")
        handler = self._handler(job)
        if isinstance(job, Job) and job._placement != Placement():
            raise ConfigurationError(
                f"schedule {name}: give the job itself, without using(...); each run has the queue and priority of {job.name}"
            )
        new = new_schedule(name, handler.name, self._arguments(name, handler, args), cron, every, at, tz, missed)
        return stored.put_schedule(new, actor or self._actor)

    def _handler(self, job: Job[..., Any] | str) -> Handler:
        if callable(job) and not isinstance(job, Job):
            raise ConfigurationError(
                f"job= is {getattr(job, '__name__', job)}, which is not a job; decorate it with @hf.job()"
            )
        name, handlers = _job_name(job), self._runtime().handlers
        jobs = sorted(one.name for one in handlers.values() if one.kind is Kind.JOB)
        handler = None if name is None else handlers.get(name)
        if name is None or handler is None:
            near = difflib.get_close_matches(str(name), jobs, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"declared: {', '.join(jobs[:20]) or 'none'}"
            raise ConfigurationError(f"job {name!r} is not declared in this app; {hint}")
        if handler.kind is not Kind.JOB:
            raise ConfigurationError(
                f"{handler.kind} {name} cannot be scheduled; schedule a job instead (jobs of this app: {', '.join(jobs[:3]) or 'none'})"
            )
        return handler

    def _arguments(self, name: str, handler: Handler, args: Call | None) -> str:
        """The JSON of the arguments; an error if the job's function would refuse them."""
        given: object = () if args is None else args
        if not isinstance(given, tuple | dict):
            raise ConfigurationError(f"schedule {name}: args is of type {type(given).__name__}; {_EXAMPLE}")
        assert handler.parameters is not None
        positional, named = (given, {}) if isinstance(given, tuple) else ((), given)
        arguments = handler.parameters.bind(positional, named)
        producer = self._runtime().producer
        message = producer.build(f"job.{handler.name}", arguments)
        if producer.validate and handler.parameters.typed:
            handler.parameters.read(message.payload)
        return message.payload


class SyncSchedules:
    """The blocking methods of `Schedules`."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    @checks_options
    def put(
        self,
        name: str,
        *,
        job: Job[..., Any] | str,
        args: Call | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: str = "last",
        conn: Any = AMBIENT,
        actor: str | None = None,
    ) -> ScheduleState:
        """`Schedules.put`, blocking."""
        change = self._schedules._put(name, job, args, cron, every, at, tz, missed, actor)
        return schedule_state(self._schedules._runtime().run_sync(change, conn, "hf.schedules.sync.put"))

    def get(self, name: str, *, conn: Any = AMBIENT) -> ScheduleState | None:
        """`Schedules.get`, blocking."""
        return _state(self._schedules._runtime().run_sync(stored.schedule(name), conn, "hf.schedules.sync.get"))

    def list(
        self,
        *,
        job: Job[..., Any] | str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = 100,
        conn: Any = AMBIENT,
    ) -> "list[ScheduleState]":
        """`Schedules.list`, blocking."""
        page = stored.schedules(job=_job_name(job), prefix=prefix, after=after, limit=limit)
        return [
            schedule_state(one) for one in self._schedules._runtime().run_sync(page, conn, "hf.schedules.sync.list")
        ]

    def pause(self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None) -> None:
        """`Schedules.pause`, blocking."""
        change = stored.pause_schedule(name, actor or self._schedules._actor, reason)
        self._schedules._runtime().run_sync(change, conn, "hf.schedules.sync.pause")

    def resume(self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None) -> bool:
        """`Schedules.resume`, blocking."""
        change = stored.resume_schedule(name, actor or self._schedules._actor, reason)
        return self._schedules._runtime().run_sync(change, conn, "hf.schedules.sync.resume")

    def remove(self, name: str, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None) -> None:
        """`Schedules.remove`, blocking."""
        change = stored.remove_schedule(name, actor or self._schedules._actor, reason)
        self._schedules._runtime().run_sync(change, conn, "hf.schedules.sync.remove")


def _state(found: StoredSchedule | None) -> ScheduleState | None:
    return None if found is None else schedule_state(found)


def _job_name(job: Job[..., Any] | str | None) -> str | None:
    return job.name if isinstance(job, Job) else job
