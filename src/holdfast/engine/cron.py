"""Cron: finds the occurrences that are due by the database's clock, and fires each once."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.core.message import NewMessage
from holdfast.engine.log_fields import error_fields
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import StoredSchedule, fire, save_schedules, schedules
from holdfast.stores.protocol import Store

log = get_logger("holdfast.cron")

_MOST = 1000
_WINDOW = timedelta(hours=1)
_ON_TIME = timedelta(minutes=1)


class Missed(StrEnum):
    """What happens to occurrences that were due while no scheduler ran."""

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
        check_schedule(self.expression, self.tz)


def check_schedule(expression: str, tz: str) -> None:
    """Raises `ConfigurationError` for an expression or a time zone that cannot be read, or that never occurs."""
    if not isinstance(expression, str):
        raise ConfigurationError(f"cron expression is {expression!r}; give five fields, such as '0 7 * * *'")
    if not isinstance(tz, str):
        raise ConfigurationError(f"tz is {tz!r}; give the name of a time zone, such as 'Europe/Berlin'")
    if next(_times(expression, tz, datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
        raise ConfigurationError(f"cron expression {expression!r} matches no date; check its day and month")


def occurrences(expression: str, tz: str, after: datetime, until: datetime, most: int = _MOST) -> list[datetime]:
    """The newest occurrences later than `after` and not later than `until`, oldest first.

    A time of day that the change to summer time skips, or that occurs twice in autumn, fires once. An expression with a
    star for minutes or hours follows elapsed time.
    """
    # Backwards from the end: a schedule that no worker served for a year may have missed half a million occurrences.
    window = _WINDOW
    while True:
        start = max(after, until - window)
        found = [at for at in itertools.takewhile(lambda at: at <= until, _times(expression, tz, start)) if at > after]
        if len(found) >= most or start == after:
            return sorted(set(found))[-most:]
        window *= 24


def _times(expression: str, tz: str, after: datetime) -> Iterator[datetime]:
    try:
        zone = ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"time zone {tz!r} is not known; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None
    try:
        times = CronSim(expression, after.astimezone(zone))
    except (CronSimError, ValueError) as error:
        raise ConfigurationError(
            f"cron expression {expression!r} cannot be read: {error}; give minute, hour, day, month and weekday, such as "
            "'0 7 * * *'"
        ) from None
    return (at.astimezone(UTC) for at in times)


def to_fire(schedule: StoredSchedule) -> tuple[list[datetime], datetime | None]:
    """The occurrences to fire now, and the time of the last one that is dealt with then."""
    if schedule.paused_at is not None:
        return [], None
    missed = Missed.parse(schedule.missed)
    most = _MOST if missed is Missed.ALL else 1
    due = occurrences(schedule.expression, schedule.tz, schedule.last_at, schedule.now, most)
    if not due:
        return [], None
    if missed is Missed.SKIP:
        return [at for at in due if schedule.now - at <= _ON_TIME], due[-1]
    return due, due[-1]


class CronRunner:
    """Fires this app's schedules. All workers may do so at once: an occurrence is a key, and a key is stored once."""

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
            if (schedule := self._declared.get(stored.name)) is None:
                continue
            try:
                await self._fire(stored, schedule, worker)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001
                # One schedule that cannot fire must not stop the others.
                log.error("schedule failed", schedule=stored.name, worker=worker, **error_fields(error))

    async def _fire(self, stored: StoredSchedule, schedule: Schedule, worker: str) -> None:
        due, reached = to_fire(stored)
        if reached is None:
            return
        messages = [self._build(schedule, at) for at in due]
        if await self._store.run(fire(stored, messages, reached, self._fanout)):
            times = [at.isoformat() for at in due]
            log.info("schedule fired", schedule=stored.name, occurrences=times, worker=worker)
