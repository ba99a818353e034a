"""Schedules: which occurrences there are, across both changes of the clock, and each of them fired once."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from holdfast import Context, Holdfast
from holdfast.app.worker.worker_runner import occurrence
from holdfast.core.delivery import Status
from holdfast.core.schedule import Missed, occurrences
from holdfast.engine.maintenance.cron import CronRunner, to_fire
from holdfast.stores.admin.actions import audit
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import Firing, StoredSchedule, fire, pause_schedule, resume_schedule, schedules
from holdfast.stores.queries.query import messages
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, eventually, logged, query, statuses, working

BERLIN = "Europe/Berlin"
SPRING = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 25, 12, tzinfo=UTC)


def local(expression: str, after: datetime, until: datetime) -> list[str]:
    return [
        at.astimezone(ZoneInfo(BERLIN)).strftime("%d %H:%M %z") for at in occurrences(expression, BERLIN, after, until)
    ]


@pytest.mark.parametrize(
    ("expression", "span", "expected"),
    [
        ("0 7 * * *", SPRING, ["29 07:00 +0200"]),
        ("0 7 * * *", AUTUMN, ["25 07:00 +0100"]),
        ("30 2 * * *", SPRING, ["29 03:00 +0200"]),  # there is no half past two: it occurs when the hour is over
        ("30 2 * * *", AUTUMN, ["25 02:30 +0200"]),  # there are two: it occurs at the first
        ("0 1,2,3 * * *", SPRING, ["29 01:00 +0100", "29 03:00 +0200"]),
        ("0 1,2,3 * * *", AUTUMN, ["25 01:00 +0200", "25 02:00 +0200", "25 03:00 +0100"]),
    ],
)
def test_a_time_of_day_occurs_once_when_clocks_change(
    expression: str, span: tuple[datetime, datetime], expected: list[str]
) -> None:
    assert local(expression, *span) == expected


@pytest.mark.parametrize("span", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_every_half_hour_follows_the_time_that_really_passes(span: tuple[datetime, datetime]) -> None:
    found = occurrences("*/30 * * * *", BERLIN, *span)
    assert len(found) == 48
    assert {b - a for a, b in pairwise(found)} == {timedelta(minutes=30)}


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 * * * *", "15 1-3 * * *", "0 */2 * * *", "59 1,2 * * *"])
@pytest.mark.parametrize("span", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_looking_often_finds_the_same_as_looking_once(expression: str, span: tuple[datetime, datetime]) -> None:
    after, until = span
    found: list[datetime] = []
    at = last = after
    while at < until:
        at = min(at + timedelta(minutes=7), until)
        found += occurrences(expression, BERLIN, last, at)
        last = found[-1] if found else last
    assert found == occurrences(expression, BERLIN, after, until)


def test_the_newest_are_found_quickly_among_many_missed_ones() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = occurrences("* * * * *", BERLIN, datetime(2000, 1, 1, tzinfo=UTC), now)
    assert (len(found), found[-1], found[0]) == (1000, now, now - timedelta(minutes=999))
    (newest,) = occurrences("0 0 29 2 *", "UTC", datetime(2000, 1, 1, tzinfo=UTC), now, most=1)
    assert newest == datetime(2024, 2, 29, tzinfo=UTC)


def stored_schedule(
    expression: str, missed: Missed, last_at: datetime, now: datetime, paused_at: datetime | None = None
) -> StoredSchedule:
    """The declared schedule `daily` as a scheduler read it at `now`."""
    return StoredSchedule(
        "daily", "daily", None, expression, BERLIN, missed.value, True, last_at, last_at, paused_at, 0, now
    )


def schedule(missed: Missed, now: datetime, last_at: datetime, paused: bool = False) -> StoredSchedule:
    return stored_schedule("0 7 * * *", missed, last_at, now, now if paused else None)


def test_what_was_missed_is_run_as_declared() -> None:
    now = datetime(2026, 5, 10, 12, tzinfo=UTC)
    last = now - timedelta(days=3)
    days = [datetime(2026, 5, day, 5, tzinfo=UTC) for day in (8, 9, 10)]
    assert to_fire(schedule(Missed.ALL, now, last)) == (days, days[-1])
    assert to_fire(schedule(Missed.LAST, now, last)) == (days[-1:], days[-1])
    assert to_fire(schedule(Missed.SKIP, now, last)) == ([], days[-1])
    on_time = days[-1] + timedelta(seconds=30)
    assert to_fire(schedule(Missed.SKIP, on_time, last)) == (days[-1:], days[-1])
    assert to_fire(schedule(Missed.ALL, now, last, paused=True)) == ([], None)
    assert to_fire(schedule(Missed.ALL, now, days[-1])) == ([], None)


async def set_last(hf: Holdfast, at: datetime) -> None:
    """As if the schedule had fired last at this time."""
    text = str(round(at.timestamp() * 1000)) if hf.store.dialect.name == "sqlite" else f"'{at.isoformat()}'"
    await query(hf, f"update {{hf}}schedule set last_at = {text}, next_at = {text}")


def cron_runner(hf: Holdfast) -> CronRunner:
    """What a worker does for the schedules of an app."""
    return CronRunner(hf.store, hf.cron_schedules, hf.handlers, partial(occurrence, hf._runtime))


async def scheduled(hf: Holdfast) -> list[str]:
    """The occurrences that were fired, oldest first."""
    return sorted(m.headers["scheduled_for"] for m in await hf.store.run(messages(type="job.daily", limit=1000)))


def declare(hf: Holdfast, missed: str = "all") -> list[str]:
    ran: list[str] = []

    @hf.cron("30 2 * * *", missed=missed)
    async def daily(ctx: Context) -> None:
        ran.append(ctx.headers["scheduled_for"])

    return ran


async def test_a_new_schedule_starts_from_now(hf: Holdfast) -> None:
    declare(hf)
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform("w1")
    assert await scheduled(hf) == []
    (stored,) = await hf.store.run(schedules())
    assert abs(stored.last_at - stored.now) < timedelta(seconds=10)


async def test_a_worker_fires_what_is_due_and_runs_it(hf: Holdfast) -> None:
    ran = declare(hf, "last")
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform("w1")
    (stored,) = await hf.store.run(schedules())
    await set_last(hf, stored.now - timedelta(days=3))
    async with working(hf):
        await eventually(lambda: _all(hf, 1))
    assert ran == await scheduled(hf)
    (after,) = await hf.store.run(schedules())
    assert after.last_at == datetime.fromisoformat(ran[0])


async def test_many_schedulers_at_once_fire_every_occurrence_once(hf: Holdfast, make_app: MakeApp) -> None:
    """Also under different sources, where a key alone would not tell."""
    apps = [hf, make_app(), make_app(source="elsewhere"), make_app(source="another")]
    for app in apps:
        declare(app)
        await app._runtime.registration.prepare()
    await cron_runner(hf).perform("w0")
    (stored,) = await hf.store.run(schedules())
    await set_last(hf, stored.now - timedelta(days=5))
    await asyncio.gather(*(cron_runner(app).perform(f"w{n}") for n, app in enumerate(apps)))
    fired = await scheduled(hf)
    assert len(fired) == len(set(fired)) == 5


@pytest.mark.parametrize("span", [SPRING, AUTUMN], ids=["spring", "autumn"])
async def test_two_schedulers_one_of_them_late_fire_once_across_a_change_of_the_clock(
    hf: Holdfast, span: tuple[datetime, datetime]
) -> None:
    """The late one read before the other fired, stood still, and writes what it had found."""
    declare(hf)
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform("w1")
    after, until = span
    await set_last(hf, after)
    seen_by_both = stored_schedule("30 2 * * *", Missed.ALL, after, until)
    for _ in range(2):
        due, reached = to_fire(seen_by_both)
        assert reached is not None
        built = [occurrence(hf._runtime, seen_by_both, at) for at in due]
        await hf.store.run(fire([Firing(seen_by_both, built, reached, until)], Fanout()))
    assert len(await scheduled(hf)) == 1
    await drain(hf)
    assert await statuses(hf) == [Status.DELIVERED]


async def test_an_occurrence_that_was_fired_before_is_not_fired_again_by_its_key(hf: Holdfast) -> None:
    """A restored backup has forgotten how far it got, but the message is there."""
    declare(hf)
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform("w1")
    (stored,) = await hf.store.run(schedules())
    for _ in range(2):
        await set_last(hf, stored.now - timedelta(days=2))
        await cron_runner(hf).perform("w1")
    assert len(await scheduled(hf)) == 2


async def test_a_paused_schedule_fires_nothing_and_counts_the_pause_as_missed(hf: Holdfast) -> None:
    declare(hf, "last")
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform("w1")
    (stored,) = await hf.store.run(schedules())
    await hf.store.run(pause_schedule("daily", "ada", "holidays"))
    await set_last(hf, stored.now - timedelta(days=4))
    await cron_runner(hf).perform("w1")
    assert await scheduled(hf) == []
    assert await hf.store.run(resume_schedule("daily", "ada", None))
    await cron_runner(hf).perform("w1")
    assert len(await scheduled(hf)) == 1
    assert [entry.action for entry in await hf.store.run(audit())] == ["resume", "pause"]


async def test_one_schedule_that_cannot_fire_does_not_stop_the_others(hf: Holdfast, log: Log) -> None:
    """Its row was changed by hand, or by a release that knows more."""
    declare(hf)

    @hf.cron("0 0 * * *", name="broken")
    async def broken() -> None: ...

    await hf._runtime.registration.prepare()
    cron = cron_runner(hf)
    await cron.perform("w1")
    (stored, _) = await hf.store.run(schedules())
    await set_last(hf, stored.now - timedelta(days=2))
    await query(hf, "update {hf}schedule set expression = 'whenever' where name = 'broken'")
    await cron.perform("w1")
    assert len(await scheduled(hf)) == 2
    assert logged(log, "schedule failed")[0]["schedule"] == "broken"


async def test_a_scheduled_job_can_also_be_enqueued_by_hand(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.cron("0 7 * * *")
    async def daily() -> None:
        ran.append(1)

    await daily.enqueue()
    await drain(hf)
    assert ran == [1]


async def _all(hf: Holdfast, number: int) -> bool:
    return await statuses(hf) == [Status.DELIVERED] * number
