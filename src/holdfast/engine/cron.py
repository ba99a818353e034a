"""Cron: which occurrences are due by the database's clock, and firing each of them once."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from cronsim import CronSim, CronSimError

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import NewMessage
from holdfast.stores.protocol import Store
from holdfast.stores.publish import Fanout
from holdfast.stores.schedule import StoredSchedule, fire, save_schedules, schedules

log = structlog.get_logger("holdfast.cron")

_MOST = 1000
_ON_TIME = timedelta(minutes=1)


class Missed(StrEnum):
    """What happens to occurrences that nobody was there for."""

    LAST = "last"
    ALL = "all"
    SKIP = "skip"

    @classmethod
    def parse(cls, value: str) -> "Missed":
        try:
            return cls(value)
        except ValueError:
            raise ConfigurationError(f"missed is {value!r}; use one of {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job that runs at every occurrence of an expression in a time zone."""

    name: str
    expression: str
    tz: str
    missed: Missed
    queue: str

    def __post_init__(self) -> None:
        occurrences(self.expression, self.tz, datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC))


def occurrences(expression: str, tz: str, after: datetime, until: datetime) -> list[datetime]:
    """The occurrences later than `after` and not later than `until`, oldest first; the newest thousand at most.

    A wall-clock time that a change to summer time skips, or that occurs twice in autumn, occurs once.
    """
    try:
        zone = ZoneInfo(tz)
        times = CronSim(expression, after.astimezone(zone))
    except ZoneInfoNotFoundError:
        raise ConfigurationError(
            f"time zone {tz!r} is not known; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None
    except (CronSimError, ValueError) as error:
        raise ConfigurationError(f"cron expression {expression!r} cannot be read: {error}") from None
    due = itertools.takewhile(lambda at: at <= until, (at.astimezone(UTC) for at in times))
    kept: list[datetime] = []
    for at in due:
        if at > after and (not kept or at > kept[-1]):
            kept.append(at)
        if len(kept) > _MOST:
            kept.pop(0)
    return kept


def to_fire(schedule: StoredSchedule) -> tuple[list[datetime], datetime | None]:
    """Which occurrences to fire now, and how far the schedule has got then."""
    due = occurrences(schedule.expression, schedule.tz, schedule.last_at, schedule.now)
    if not due or schedule.paused_at is not None:
        return [], None
    match Missed.parse(schedule.missed):
        case Missed.ALL:
            return due, due[-1]
        case Missed.LAST:
            return due[-1:], due[-1]
        case Missed.SKIP:
            return [at for at in due[-1:] if schedule.now - at <= _ON_TIME], due[-1]


class CronDuty:
    """Fires this app's schedules. Every worker may do so at once: an occurrence is a key, and a key is stored once."""

    interval = timedelta(seconds=1)

    def __init__(
        self, store: Store, declared: Mapping[str, Schedule], build: Callable[[Schedule, datetime], NewMessage]
    ) -> None:
        self._store, self._declared, self._build = store, declared, build
        self._fanout = Fanout()
        self._saved = False

    async def perform(self, worker: str) -> None:
        if not self._saved:
            rows = [(s.name, s.expression, s.tz, s.missed.value) for s in self._declared.values()]
            await self._store.run(save_schedules(rows))
            self._saved = True
        for stored in await self._store.run(schedules()):
            schedule = self._declared.get(stored.name)
            if schedule is None:
                continue
            due, reached = to_fire(stored)
            if reached is None:
                continue
            messages = [self._build(schedule, at) for at in due]
            new = await self._store.run(fire(stored, messages, reached, self._fanout))
            if new:
                log.info(
                    "schedule fired", schedule=stored.name, occurrences=[at.isoformat() for at in due], worker=worker
                )
