"""Schedules: declared repeatably, fired once per occurrence by any number of schedulers."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.message import NewMessage
from holdfast.stores.admin.actions import audit
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import (
    Firing,
    NewSchedule,
    StoredSchedule,
    due_schedules,
    fire,
    has_schedules,
    overdue_schedules,
    pause_schedule,
    postpone_schedules,
    put_schedule,
    remove_schedule,
    resume_schedule,
    save_schedules,
    schedules,
)
from holdfast.stores.operation import Steps, operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from holdfast.stores.queries.time_travel import travel
from tests.support.builders import all_deliveries, job

DAILY = ("report", "0 7 * * *", "Europe/Berlin", "last")
SEVEN = datetime(2030, 1, 2, 6, 0, tzinfo=UTC)


async def only(store: Store) -> StoredSchedule:
    (found,) = await store.run(schedules())
    return found


def occurrence(at: datetime, name: str = "report") -> NewMessage:
    return job("report", key=f"cron:{name}:{at.isoformat()}")


def firing(schedule: StoredSchedule, *times: datetime) -> Firing:
    """The firing of a schedule at these times."""
    messages = [occurrence(at, schedule.name) for at in times]
    return Firing(schedule, messages, times[-1], times[-1] + timedelta(days=1))


async def test_a_new_schedule_counts_from_now(store: Store) -> None:
    before = await store.run(clock())
    await store.run(save_schedules([DAILY]))
    found = await only(store)
    assert (found.name, found.expression, found.tz, found.missed) == DAILY
    assert (found.job, found.args, found.declared) == ("report", None, True)
    assert before <= found.last_at <= found.now
    assert found.paused_at is None


async def test_declaring_again_changes_what_it_says_and_not_how_far_it_got(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    before = await only(store)
    await store.run(save_schedules([("report", "0 8 * * *", "UTC", "all")]))
    after = await only(store)
    assert (after.expression, after.tz, after.missed) == ("0 8 * * *", "UTC", "all")
    assert after.last_at == before.last_at


async def test_an_occurrence_fires_once_for_many_schedulers(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    seen = await only(store)
    assert await store.run(fire([firing(seen, SEVEN)], Fanout())) == {"report"}
    assert await store.run(fire([firing(seen, SEVEN)], Fanout())) == set()
    assert len(await all_deliveries(store)) == 1
    assert (await only(store)).last_at == SEVEN


async def test_a_scheduler_that_wakes_late_does_not_move_it_back(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    asleep = await only(store)
    later = SEVEN + timedelta(days=1)
    await store.run(fire([firing(asleep, SEVEN, later)], Fanout()))
    await store.run(fire([firing(asleep, SEVEN)], Fanout()))
    assert (await only(store)).last_at == later


async def test_pausing_and_resuming_is_audited(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    await store.run(pause_schedule("report", "ada", "holiday"))
    first = (await only(store)).paused_at
    assert first is not None
    await store.run(pause_schedule("report", "bob", None))
    assert (await only(store)).paused_at == first
    assert await store.run(resume_schedule("report", "ada", None))
    assert not await store.run(resume_schedule("report", "ada", None))
    assert (await only(store)).paused_at is None
    acts = [(e.actor, e.action, e.kind, e.target) for e in reversed(await store.run(audit()))]
    assert acts == [
        ("ada", "pause", "schedule", "report"),
        ("bob", "pause", "schedule", "report"),
        ("ada", "resume", "schedule", "report"),
    ]


async def test_an_unknown_schedule_cannot_be_paused(store: Store) -> None:
    with pytest.raises(NotFound, match="nothing"):
        await store.run(pause_schedule("nothing", "ada", None))


def at_run_time(name: str, every: int = 60, **given: Any) -> NewSchedule:
    """A schedule of the job `report` with an interval in seconds."""
    values: dict[str, Any] = {
        "job": "report",
        "args": "{}",
        "expression": f"every {every}s",
        "tz": "UTC",
        "missed": "last",
    }
    return NewSchedule(name, **values | given, first=lambda now: now + timedelta(seconds=every))


async def put(store: Store, name: str, **given: Any) -> StoredSchedule:
    return await store.run(put_schedule(at_run_time(name, **given), "ada"))


async def due(store: Store, *jobs: str) -> list[str]:
    return sorted(one.name for one in await store.run(due_schedules(jobs or ("report",), 10)))


async def test_a_scheduler_that_read_an_older_version_fires_nothing(store: Store) -> None:
    """It was suspended between its query and its write. The paused one has the same last occurrence, and so has the changed one."""
    for name in ("changed", "paused", "gone", "same"):
        await put(store, name)
    read = {one.name: one for one in await store.run(schedules())}
    await put(store, "changed", args='{"n": 2}')
    await store.run(pause_schedule("paused", "ada", None))
    await store.run(remove_schedule("gone", "ada", None))
    firings = [firing(one, SEVEN) for one in read.values()]
    assert await store.run(fire(firings, Fanout())) == {"same"}
    assert [one.name for one in await store.run(schedules()) if one.last_at == SEVEN] == ["same"]
    assert len(await all_deliveries(store)) == 1


async def test_a_single_time_is_removed_with_its_firing_and_only_then(store: Store) -> None:
    soon = (await store.run(clock())) + timedelta(hours=1)
    for name in ("once", "moved"):
        await put(store, name, expression="at", every=3600)
    read = await store.run(schedules())
    later = NewSchedule("moved", "report", "{}", "at", "UTC", "last", lambda now: soon + timedelta(hours=1))
    await store.run(put_schedule(later, "ada"))
    assert await store.run(fire([firing(one, SEVEN) for one in read], Fanout())) == {"once"}
    assert [one.name for one in await store.run(schedules())] == ["moved"]
    assert await store.run(fire([firing(read[0], SEVEN)], Fanout())) == set()
    past = NewSchedule("late", "report", "{}", "at", "UTC", "last", lambda now: now)
    with pytest.raises(ConfigurationError, match="give a time in the future, or enqueue report now"):
        await store.run(put_schedule(past, "ada"))


async def test_due_are_those_of_the_given_jobs_whose_time_has_come(store: Store) -> None:
    assert not await store.run(has_schedules(["report"]))
    for name in ("b", "a", "paused", "later", "postponed"):
        await put(store, name, every=1)
    await put(store, "other", job="mail", every=1)
    await store.run(travel(timedelta(minutes=1)))
    await put(store, "later", every=100)
    await store.run(pause_schedule("paused", "ada", None))
    await store.run(postpone_schedules(["postponed"], timedelta(minutes=1)))
    assert await due(store) == ["a", "b"]
    assert await due(store, "mail", "report") == ["a", "b", "other"]
    assert await due(store, "unknown") == []
    assert len(await store.run(due_schedules(["mail", "report"], 2))) == 2
    assert await store.run(has_schedules(["mail"]))
    (one,) = await store.run(overdue_schedules(timedelta(seconds=50), limit=1))
    assert (one.job, one.count, one.name, one.declared, one.served) in {
        ("report", 2, "a", False, False),
        ("mail", 1, "other", False, False),
    }


async def test_the_same_again_changes_nothing_and_a_new_timing_starts_now(store: Store) -> None:
    first = await put(store, "tenant:1", every=60)
    await store.run(travel(timedelta(seconds=30)))
    same = await put(store, "tenant:1", every=60)
    assert same.revision == first.revision
    assert len(await store.run(audit())) == 1
    other = await put(store, "tenant:1", every=60, args='{"n": 2}', missed="all")
    assert (other.last_at, other.next_at, other.args) == (same.last_at, same.next_at, '{"n": 2}')
    restarted = await put(store, "tenant:1", every=90)
    assert restarted.last_at > same.last_at
    assert restarted.next_at == restarted.last_at + timedelta(seconds=90)
    await store.run(pause_schedule("tenant:1", "ada", None))
    assert (await put(store, "tenant:1", every=30)).paused_at is not None
    assert [entry.action for entry in await store.run(audit())] == ["put", "pause", "put", "put", "put"]


async def test_a_declared_name_and_a_run_time_name_do_not_replace_each_other(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    with pytest.raises(Refused, match="cannot put schedule report: it is declared in the code"):
        await put(store, "report")
    # Also in the transaction of a caller that catches the error and commits.
    await store.run(_put_and_catch(at_run_time("report")))
    assert ((await only(store)).expression, await store.run(audit())) == ("0 7 * * *", [])
    await put(store, "mine")
    assert await store.run(save_schedules([("mine", "0 7 * * *", "UTC", "last"), DAILY])) == ["mine"]
    assert {one.name: (one.declared, one.expression) for one in await store.run(schedules())} == {
        "mine": (False, "every 60s"),
        "report": (True, "0 7 * * *"),
    }
    await store.run(start_worker("w1", 0, [], ["report"], timedelta(seconds=30)))
    with pytest.raises(Refused, match="remove it from the code, or pause it"):
        await store.run(remove_schedule("report", "ada", None))
    await store.run(travel(timedelta(minutes=1)))
    with contextlib.suppress(Refused):
        await store.run(remove_schedule("report", "ada", "its code is gone"))
    await store.run(remove_schedule("mine", "ada", None))
    assert await store.run(schedules()) == []


@operation
def _put_and_catch(new: NewSchedule) -> Steps[None]:
    with contextlib.suppress(Refused):
        yield from put_schedule(new, "ada").start()


async def test_resuming_evaluates_a_schedule_at_once_and_keeps_a_single_time(store: Store) -> None:
    await put(store, "often", every=60)
    once = await put(store, "once", every=3600, expression="at")
    for name in ("often", "once"):
        await store.run(pause_schedule(name, "ada", None))
        await store.run(resume_schedule(name, "ada", None))
    assert await due(store) == ["often"]
    await store.run(postpone_schedules(["once"], timedelta(0)))
    assert (await store.run(schedules(prefix="once")))[0].next_at == once.next_at


async def test_lists_are_pages_by_name_of_a_job_or_a_prefix(store: Store) -> None:
    for name in ("a:1", "a:2", "b:1", "b:2", "a-1"):
        await put(store, name, job="mail" if name.startswith("b") else "report")
    names = [one.name for one in await store.run(schedules())]
    assert sorted(names) == ["a-1", "a:1", "a:2", "b:1", "b:2"]
    paged: list[str] = []
    while page := await store.run(schedules(after=paged[-1] if paged else None, limit=2)):
        paged += [one.name for one in page]
    assert paged == names
    assert [one.name for one in await store.run(schedules(prefix="a:"))] == ["a:1", "a:2"]
    assert [one.name for one in await store.run(schedules(job="mail", after="b:1"))] == ["b:2"]
