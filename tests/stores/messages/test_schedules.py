"""Schedules: declared repeatably, fired once per occurrence by any number of schedulers."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.errors import NotFound
from holdfast.core.message import NewMessage
from holdfast.stores.admin.actions import audit
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import (
    StoredSchedule,
    fire,
    pause_schedule,
    resume_schedule,
    save_schedules,
    schedules,
)
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import all_deliveries, job

DAILY = ("report", "0 7 * * *", "Europe/Berlin", "last")
SEVEN = datetime(2030, 1, 2, 6, 0, tzinfo=UTC)


async def only(store: Store) -> StoredSchedule:
    (found,) = await store.run(schedules())
    return found


def occurrence(at: datetime) -> NewMessage:
    return job("report", key=f"cron:report:{at.isoformat()}")


async def test_a_new_schedule_counts_from_now(store: Store) -> None:
    before = await store.run(clock())
    await store.run(save_schedules([DAILY]))
    found = await only(store)
    assert (found.name, found.expression, found.tz, found.missed) == DAILY
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
    assert await store.run(fire(seen, [occurrence(SEVEN)], SEVEN, Fanout())) == 1
    assert await store.run(fire(seen, [occurrence(SEVEN)], SEVEN, Fanout())) == 0
    assert len(await all_deliveries(store)) == 1
    assert (await only(store)).last_at == SEVEN


async def test_a_scheduler_that_wakes_late_does_not_move_it_back(store: Store) -> None:
    await store.run(save_schedules([DAILY]))
    asleep = await only(store)
    later = SEVEN + timedelta(days=1)
    await store.run(fire(asleep, [occurrence(SEVEN), occurrence(later)], later, Fanout()))
    await store.run(fire(asleep, [occurrence(SEVEN)], SEVEN, Fanout()))
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
