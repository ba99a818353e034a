"""Cron: finds the schedules that are due by the database's clock, and fires each occurrence once."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast._log import get_logger
from holdfast.core.errors import KeyConflict, StoreUnavailable
from holdfast.core.flow import FlowSettings
from holdfast.core.message import NewMessage
from holdfast.core.schedule import AT, Missed, check_schedule, next_occurrence, occurrences_to_run
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import (
    Firing,
    StoredSchedule,
    due_schedules,
    fire,
    has_schedules,
    postpone_schedules,
    save_schedules,
)
from holdfast.stores.protocol import Store

log = get_logger("holdfast.cron")

BATCH = 500
_ROUNDS = 20
_IDLE_SECONDS = 5.0
_AFTER_FAILURE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A declared schedule: a job that runs at every occurrence of an expression in a time zone."""

    name: str
    expression: str
    tz: str
    missed: Missed
    queue: str

    def __post_init__(self) -> None:
        check_schedule(self.expression, self.tz)


def to_fire(schedule: StoredSchedule) -> tuple[list[datetime], datetime | None]:
    """The occurrences to fire now, and the time of the last one that is handled by that."""
    if schedule.paused_at is not None:
        return [], None
    return occurrences_to_run(
        schedule.expression,
        schedule.tz,
        Missed.parse(schedule.missed),
        schedule.last_at,
        schedule.now,
        schedule.next_at,
    )


class CronRunner:
    """Fires the schedules of this app's jobs. All workers may do so at once: an occurrence is a key, and a key is stored once.

    A tick is one query for the schedules that are due, so that its cost does not depend on how many are stored. They are
    fired in batches; what a tick does not reach, the next one does.
    """

    interval = timedelta(seconds=1)

    def __init__(
        self,
        store: Store,
        declared: Mapping[str, Schedule],
        handlers: Mapping[str, Handler],
        build: Callable[[StoredSchedule, datetime], NewMessage],
        flows: Mapping[str, FlowSettings] | None = None,
    ) -> None:
        self._store, self._declared, self._handlers, self._build = store, declared, handlers, build
        self._fanout = Fanout(flows=flows or {})
        self._saved = False
        self._idle_until = 0.0

    async def perform(self, worker: str) -> None:
        if not self._saved:
            await self._save(worker)
        if time.monotonic() < self._idle_until:
            return
        jobs = [name for name, handler in self._handlers.items() if handler.kind is Kind.JOB]
        # The jobs share a limit, so none of them may always be first.
        random.shuffle(jobs)
        for _ in range(_ROUNDS):
            due = await self._store.run(due_schedules(jobs, BATCH))
            if not due:
                break
            advanced = await self._fire_all(due, worker)
            if len(due) < BATCH or not advanced:
                return
        if not self._declared and not await self._store.run(has_schedules(jobs)):
            # Apps without schedules get fewer queries. The first schedule is noticed after this time.
            self._idle_until = time.monotonic() + _IDLE_SECONDS

    async def _save(self, worker: str) -> None:
        rows = [(s.name, s.expression, s.tz, s.missed.value) for s in self._declared.values()]
        for name in await self._store.run(save_schedules(rows)) if rows else ():
            log.error(
                "schedule name taken",
                schedule=name,
                worker=worker,
                hint=f"a run-time schedule has this name; rename the function, or `holdfast schedules remove {name}`",
            )
        self._saved = True

    async def _fire_all(self, due: Sequence[StoredSchedule], worker: str) -> set[str]:
        """Fires schedules in one transaction, or one by one if one of them cannot fire."""
        firings, failed = [], []
        for one in due:
            if one.declared and one.name not in self._declared:
                continue
            try:
                firings.append(self._firing(one))
            except Exception as error:  # noqa: BLE001
                # One schedule that cannot fire must not stop the others.
                log.error("schedule failed", schedule=one.name, worker=worker, **error_fields(error))
                failed.append(one.name)
        advanced: set[str] = set()
        try:
            advanced = await self._fire(firings, worker)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001
            for firing in firings:
                advanced |= await self._fire_one(firing, worker, failed)
        if failed:
            await self._store.run(postpone_schedules(failed, _AFTER_FAILURE))
        return advanced

    async def _fire_one(self, firing: Firing, worker: str, failed: list[str]) -> set[str]:
        name = firing.schedule.name
        try:
            return await self._fire([firing], worker)
        except StoreUnavailable:
            raise
        except KeyConflict as error:
            # The occurrence was fired before with other arguments, for example before a backup was restored.
            log.error("schedule failed", schedule=name, worker=worker, **error_fields(error))
            return await self._fire([firing._replace(messages=())], worker)
        except Exception as error:  # noqa: BLE001
            log.error("schedule failed", schedule=name, worker=worker, **error_fields(error))
            failed.append(name)
            return set()

    def _firing(self, stored: StoredSchedule) -> Firing:
        due, reached = to_fire(stored)
        last = stored.last_at if reached is None else reached
        following = None
        if stored.expression != AT:
            following = next_occurrence(stored.expression, stored.tz, last, stored.now)
        return Firing(stored, [self._build(stored, at) for at in due], last, following)

    async def _fire(self, firings: Sequence[Firing], worker: str) -> set[str]:
        if not firings:
            return set()
        advanced = await self._store.run(fire(firings, self._fanout))
        for one in firings:
            if one.messages and one.schedule.name in advanced:
                times = [message.headers["scheduled_for"] for message in one.messages]
                log.info("schedule fired", schedule=one.schedule.name, occurrences=times, worker=worker)
        return advanced
