"""Faults of time: clocks that are wrong, jump or stand still, and schedulers that sleep through an occurrence."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from zoneinfo import ZoneInfo

import pytest

from tests.engine.programs import shop
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.servers.postgres import PostgresServer
from tests.servers.process import server_directory

pytestmark = pytest.mark.long

LEASE = 2.0
NIGHTLY = "30 2 * * *"


@pytest.fixture
def place(postgres18: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(postgres18, tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


@pytest.fixture
def faketime() -> str:
    """Where libfaketime is, for LD_PRELOAD."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed; on Debian: apt-get install libfaketime")
    return str(found[0])


def start(place: Place, **options: object) -> Process:
    worker = place.worker("lab", **{"lease": LEASE, **options})  # type: ignore[arg-type]
    worker.says("worker started")
    return worker


# Clocks: FAULTS 34. Only PostgreSQL has a separate clock; SQLite's is the machine's.


@pytest.mark.parametrize(
    ("clock", "ahead"),
    [("+1h", 3600), ("-1h", -3600), ("2020-02-29 12:00:00", -(10**8))],
    ids=["ahead", "behind", "standing still"],
)
def test_a_worker_whose_clock_is_wrong_claims_nothing_early_and_loses_no_lease(
    place: Place, faketime: str, clock: str, ahead: int
) -> None:
    worker = start(place, environment=_clock(faketime, FAKETIME=clock))
    place.publish_later("visit", timedelta(minutes=30), n=0)
    place.publish("nap", n=1, seconds=2 * LEASE)  # outlasts its lease, which is renewed
    place.publish_many("twice", [{"n": n} for n in range(10)])
    place.delivered(10, "twice")
    place.delivered(1, "nap")
    assert place.one("select attempts from {hf}delivery where consumer = 'nap'") == 1
    assert place.one("select status from {hf}delivery where consumer = 'visit'") == "pending"
    assert "lease" not in worker.log
    believed = [int(text.split()[-1]) for _, text in place.notes() if text.startswith("twice")]
    assert all((at - time.time()) / ahead > 0.9 for at in believed), "its clock was not wrong at all"


def test_a_worker_whose_clock_jumps_claims_nothing_early_and_loses_no_lease(place: Place, faketime: str) -> None:
    clock = place.directory / "clock"
    clock.write_text("+0")
    environment = _clock(faketime, FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1")
    worker = start(place, environment=environment)
    place.publish_later("visit", timedelta(minutes=30), n=0)
    place.publish("nap", n=1, seconds=2 * LEASE)
    place.noted("nap 1 started")
    for jumps, hours in enumerate((2, -2, 0), start=1):
        clock.write_text(f"{hours:+}h")
        place.publish_many("twice", [{"n": n} for n in range(5)])
        place.delivered(5 * jumps, "twice")
        believed = [int(text.split()[-1]) for _, text in place.notes() if text.startswith("twice")][-5:]
        assert all(abs(at - time.time() - 3600 * hours) < 600 for at in believed), "its clock did not jump"
    place.delivered(1, "nap")
    assert place.one("select attempts from {hf}delivery where consumer = 'nap'") == 1
    assert place.one("select status from {hf}delivery where consumer = 'visit'") == "pending"
    assert "lease" not in worker.log


def test_a_worker_whose_clock_is_ahead_takes_no_living_workers_work(place: Place, faketime: str) -> None:
    start(place, concurrency=1)
    place.publish("nap", n=1, seconds=2 * LEASE)
    place.noted("nap 1 started")
    start(place, environment=_clock(faketime, FAKETIME="+1d"))
    place.drained()
    assert place.times("nap 1 started") == 1
    assert place.one("select attempts from {hf}delivery") == 1


def test_when_the_clock_of_the_database_steps_back_work_waits_and_none_runs_twice(
    faketime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 35: what was due waits until the clock is there again; a lease that is held stays held."""
    clock = server_directory("clock") / "clock"
    clock.write_text("+0")
    clock.chmod(0o644)
    settings = _clock(faketime, FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, clock.parent, ignore_errors=True)
        with monkeypatch.context() as environment:
            for name, value in settings.items():
                environment.setenv(name, value)
            server = stack.enter_context(PostgresServer(18))
        place = stack.enter_context(postgres_place(server, tmp_path))
        worker = start(place)
        place.publish("nap", n=1, seconds=2 * LEASE)
        place.noted("nap 1 started")
        place.publish_many("visit", [{"n": n} for n in range(100, 110)])
        clock.write_text("-3s")
        place.publish_many("visit", [{"n": n} for n in range(110, 120)])
        place.drained()
        behind = datetime.now(UTC) - place.one("select clock_timestamp()")
        assert behind > timedelta(seconds=2), "its clock did not step back"
        assert place.statuses() == {"delivered": 21}
        assert [place.times(f"visit {n} ") for n in range(100, 120)] == [1] * 20
        assert place.times("nap 1 started") == 1
        assert "lease" not in worker.log


def _clock(library: str, **settings: str) -> dict[str, str]:
    # Waiting goes by the monotonic clock, which no administrator can set.
    return {"LD_PRELOAD": library, "FAKETIME_DONT_FAKE_MONOTONIC": "1", **settings}


# Schedulers: FAULTS 36.


@pytest.mark.parametrize("store", ["sqlite", "postgres18"])
def test_a_scheduler_that_slept_through_its_occurrences_fires_none_of_them_again(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Across both changes of the clocks of a year: a night that has no half past two, and one that has two."""
    with (
        sqlite_place(tmp_path) if store == "sqlite" else postgres_place(request.getfixturevalue(store), tmp_path)
    ) as place:
        cron = {"HOLDFAST_TEST_CRON": NIGHTLY}
        family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"} if place.on_sqlite else {}
        last = datetime.now(UTC) - timedelta(days=400)
        _declare(place, last)
        # It has read that four hundred nights are due, and is stopped before it fires them.
        sleeper = start(place, environment=cron, crash="hold:schedules.committed")
        place.reached("schedules.committed")
        place.stop(sleeper)
        awake = start(place, environment={**cron, **family})
        until(lambda: place.times("tick") >= len(_nights(last)), "not fired", 60, place.logs)
        place.drained()
        awake.kill()
        place.allow("schedules.committed")
        sleeper.resumed()
        # Once it fires one that is new, it is past those that it had read before it slept.
        earlier = last - timedelta(days=1)
        _set_back(place, earlier)
        wanted = _nights(earlier)
        until(lambda: place.times("tick") >= len(wanted), "the sleeper never woke", 60, place.logs)
        place.drained()
        fired = [text.split()[1] for _, text in place.notes() if text.startswith("tick")]
        assert sorted(map(_local_day, fired)) == sorted(wanted)
        assert place.one("select count(*) from {hf}message where type = 'job.tick'") == len(wanted)


@pytest.mark.parametrize("point", ["fire.uncommitted", "fire.committed"])
def test_a_scheduler_killed_around_a_firing_leaves_one_firing(place: Place, point: str) -> None:
    cron = {"HOLDFAST_TEST_CRON": NIGHTLY}
    last = datetime.now(UTC) - timedelta(days=3)
    _declare(place, last)
    worker = place.worker("lab", lease=LEASE, environment=cron, crash=point)
    assert worker.ended() == -SIGKILL
    start(place, environment=cron)
    wanted = _nights(last)
    until(lambda: place.times("tick") >= len(wanted), "not fired", 30, place.logs)
    assert place.one("select count(*) from {hf}message where type = 'job.tick'") == len(wanted)


@pytest.mark.parametrize("store", ["sqlite", "postgres18"])
def test_run_time_schedules_fire_once_with_five_schedulers_of_which_one_is_stopped_and_one_killed(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """One has read what is due and is stopped for longer than its lease; one dies in the transaction that fires."""
    with (
        sqlite_place(tmp_path) if store == "sqlite" else postgres_place(request.getfixturevalue(store), tmp_path)
    ) as place:
        beats = {"HOLDFAST_TEST_SCHEDULES": "1"}
        family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"} if place.on_sqlite else {}
        began = datetime.now(UTC) - timedelta(hours=20)
        for n in range(20):
            _put_beat(place, f"s{n:02}", began)
        sleeper = start(place, environment=beats, crash="hold:schedules.committed")
        place.reached("schedules.committed")
        place.stop(sleeper)
        stopped = time.monotonic()
        dying = place.worker("lab", lease=LEASE, environment={**beats, **family}, crash="fire.uncommitted")
        assert dying.ended() == -SIGKILL
        others = [start(place, environment={**beats, **family}) for _ in range(4)]
        until(lambda: place.times("beat") >= 400, "not fired", 60, place.logs)
        time.sleep(max(0.0, stopped + LEASE + 1 - time.monotonic()))
        place.allow("schedules.committed")
        sleeper.resumed()
        time.sleep(2)  # it continues with what it had read, with or without its lease
        place.drained()
        for worker in others:
            worker.kill()
        fired = sorted(text for _, text in place.notes() if text.startswith("beat"))
        assert len(fired) == len(set(fired)) == 400
        assert place.one("select count(*) from {hf}message where type = 'job.beat'") == 400


def _put_beat(place: Place, name: str, began: datetime) -> None:
    """A run-time schedule with an interval of an hour that has missed twenty occurrences."""
    columns = "name, job, args, expression, tz, missed, declared, last_at, next_at"
    off = 0 if place.on_sqlite else False
    values = (name, "beat", f'{{"name": "{name}"}}', "every 1h", off, _stored(place, began), _stored(place, began))
    place.sql(f"insert into {{hf}}schedule ({columns}) values (?, ?, ?, ?, 'UTC', 'all', ?, ?, ?)", *values)


def _declare(place: Place, last: datetime) -> None:
    """A schedule that has fired until then."""
    columns, values = "name, expression, tz, missed, last_at", "?, ?, 'Europe/Berlin', 'all', ?"
    place.sql(f"insert into {{hf}}schedule ({columns}) values ({values})", "tick", NIGHTLY, _stored(place, last))


def _set_back(place: Place, last: datetime) -> None:
    place.sql("update {hf}schedule set last_at = ?, next_at = ?", _stored(place, last), _stored(place, last))


def _stored(place: Place, at: datetime) -> object:
    return round(at.timestamp() * 1000) if place.on_sqlite else at


def _nights(last: datetime) -> set[date]:
    """Every local date whose half past two lies between then and now, counted without the cron library."""
    zone, now = ZoneInfo("Europe/Berlin"), datetime.now(UTC)
    day, found = last.astimezone(zone).date(), set()
    while day <= now.astimezone(zone).date():
        at = datetime(day.year, day.month, day.day, 2, 30, tzinfo=zone).astimezone(UTC)
        if last < at <= now:
            found.add(day)
        day += timedelta(days=1)
    return found


def _local_day(text: str) -> date:
    return datetime.fromisoformat(text).astimezone(ZoneInfo("Europe/Berlin")).date()
