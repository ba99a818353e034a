"""Schedules of run time: put by the app, fired by any number of schedulers, each occurrence once."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.schedule import next_occurrence, occurrences
from holdfast.engine.maintenance import cron
from holdfast.stores.admin.actions import audit
from holdfast.stores.messages.publish import publish
from holdfast.stores.messages.schedule import schedules
from holdfast.stores.queries.query import messages
from holdfast.stores.queries.time_travel import travel
from tests.engine.test_cron import cron_runner, scheduled
from tests.engine.ways import AWAITING, BLOCKING, Blocking, configure_django
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, eventually, logged, query, working


def declare(hf: Holdfast) -> list[Any]:
    """The job `report`, which records its calls."""
    ran: list[Any] = []

    @hf.job()
    async def report(ctx: Context, tenant: int, *, note: str = "") -> None:
        ran.append((tenant, note, ctx.headers["scheduled_for"]))

    @hf.command(key="order:{id}")
    async def order(id: int) -> None: ...

    return ran


async def tick(hf: Holdfast, worker: str = "w1") -> None:
    await hf._runtime.registration.prepare()
    await cron_runner(hf).perform(worker)


async def calls(hf: Holdfast, job: str = "report") -> list[Any]:
    """The payloads of the enqueued calls, oldest first."""
    return [json.loads(m.payload) for m in reversed(await hf.store.run(messages(type=f"job.{job}", limit=1000)))]


async def test_a_schedule_fires_with_its_arguments_and_without_a_restart(hf: Holdfast) -> None:
    ran = declare(hf)
    async with working(hf):
        state = await hf.schedules.put("report:7", every="1s", job="report", args={"tenant": 7})
        assert (state.job, state.args, state.expression) == ("report", {"tenant": 7, "note": ""}, "every 1s")
        assert state.next_at == state.last_at + timedelta(seconds=1)
        await hf.store.run(travel(timedelta(seconds=1)))
        await eventually(lambda: ran)
        await hf.schedules.remove("report:7")
    assert ran[0][:2] == (7, "")
    assert await hf.schedules.get("report:7") is None
    assert [(e.actor, e.action, e.target) for e in await hf.store.run(audit())] == [
        ("app:app", "remove", "report:7"),
        ("app:app", "put", "report:7"),
    ]


async def test_time_travel_makes_each_kind_of_schedule_due_by_the_clock_of_the_database(hf: Holdfast) -> None:
    declare(hf)
    now = datetime.now(UTC)
    await hf.schedules.put("at", at=now + timedelta(hours=30), job="report", args=(1,))
    await hf.schedules.put("every", every="7h", missed="all", job="report", args=(2,))
    await hf.schedules.put("cron", cron="30 2 * * *", missed="all", job="report", args=(3,))
    await hf.schedules.put("skip", every="7h", missed="skip", job="report", args=(4,))
    await tick(hf)
    assert await calls(hf) == []
    await hf.store.run(travel(timedelta(hours=50)))
    await tick(hf)
    await tick(hf)
    fired = [call["tenant"] for call in await calls(hf)]
    assert [fired.count(tenant) for tenant in (1, 2, 4)] == [1, 7, 0]
    assert fired.count(3) == len(occurrences("30 2 * * *", "UTC", now - timedelta(hours=50), datetime.now(UTC)))
    states = {one.name: one for one in await hf.schedules.list()}
    assert sorted(states) == ["cron", "every", "skip"]
    assert all(one.next_at is not None and one.next_at > now for one in states.values())


def test_an_interval_counts_from_its_last_occurrence_across_a_change_of_the_clock() -> None:
    last = datetime(2026, 3, 28, 23, tzinfo=UTC)
    until = last + timedelta(hours=7, minutes=1)
    assert occurrences("every 3h", "Europe/Berlin", last, until) == [last + timedelta(hours=h) for h in (3, 6)]
    assert next_occurrence("every 3h", "Europe/Berlin", last, until) == last + timedelta(hours=9)
    assert len(occurrences("every 1s", "UTC", last, last + timedelta(days=300))) == 1000
    # The hour of half past two does not exist on the 29th, and occurs twice on the 25th of October.
    spring = next_occurrence("30 2 * * *", "Europe/Berlin", last, last)
    assert spring == datetime(2026, 3, 29, 1, tzinfo=UTC)
    autumn = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_occurrence("30 2 * * *", "Europe/Berlin", autumn, autumn) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


async def test_many_schedulers_fire_each_occurrence_once(hf: Holdfast, make_app: MakeApp) -> None:
    """One of them read what is due, and writes after the others fired it."""
    apps = [hf, *(make_app(source=f"s{n}") for n in range(4))]
    for app in apps:
        declare(app)
        await app._runtime.registration.prepare()
    for n in range(30):
        await hf.schedules.put(f"t{n:02}", every="60s", job="report", args=(n,))
    await hf.store.run(travel(timedelta(seconds=61)))
    late = cron_runner(apps[4])
    due = await hf.store.run(schedules())
    firings = [late._firing(one) for one in due]
    await asyncio.gather(*(cron_runner(app).perform(f"w{n}") for n, app in enumerate(apps[:4])))
    assert await late._fire(firings, "late") == set()
    # Even a scheduler whose guard is gone finds the key of each occurrence.
    published = await hf.store.run(publish([m for one in firings for m in one.messages], late._fanout))
    assert not any(one.created for one in published)
    assert sorted(call["tenant"] for call in await calls(hf)) == list(range(30))


async def test_a_change_is_part_of_the_callers_transaction_on_each_kind_of_connection(hf: Holdfast) -> None:
    declare(hf)
    await hf._runtime.registration.prepare()
    database, mine = "sqlite" if "sqlite" in hf.dsn else "postgres18", hf.schedules.sync
    for name, way in AWAITING[database].items():
        await hf.schedules.put(f"{name}.kept", every="1h", job="report", args=(1,))
        with contextlib.suppress(ZeroDivisionError):
            async with way(hf.dsn) as (conn, _):
                await hf.schedules.put(f"{name}.undone", every="1h", job="report", args=(1,), conn=conn)
                await hf.schedules.remove(f"{name}.kept", conn=conn)
                assert [one.name for one in await hf.schedules.list(prefix=name, conn=conn)] == [f"{name}.undone"]
                raise ZeroDivisionError
        assert [one.name for one in await hf.schedules.list(prefix=name)] == [f"{name}.kept"]
        async with way(hf.dsn) as (conn, _):
            await hf.schedules.pause(f"{name}.kept", conn=conn)
            await hf.schedules.put(f"{name}.new", every="1h", job="report", args=(1,), conn=conn)
            assert not await hf.schedules.resume(f"{name}.new", conn=conn)
        states = await hf.schedules.list(prefix=name)
        assert [(one.name, one.paused_at is None) for one in states] == [(f"{name}.kept", False), (f"{name}.new", True)]
    for name, blocking in BLOCKING[database].items():
        if name == "django":
            continue
        await asyncio.to_thread(_change_blocking, hf, blocking, f"{name}-blocking")
    assert mine.get("none") is None


def _change_blocking(hf: Holdfast, way: Blocking, name: str) -> None:
    mine = hf.schedules.sync
    mine.put(f"{name}.kept", every="1h", job="report", args=(1,))
    with contextlib.suppress(ZeroDivisionError), way(hf.dsn) as (conn, _):
        mine.put(f"{name}.undone", every="1h", job="report", args=(1,), conn=conn)
        mine.remove(f"{name}.kept", conn=conn)
        raise ZeroDivisionError
    assert [one.name for one in mine.list(prefix=name)] == [f"{name}.kept"]
    with way(hf.dsn) as (conn, _):
        mine.pause(f"{name}.kept", conn=conn)
        mine.put(f"{name}.new", every="1h", job="report", args=(1,), conn=conn)
        assert not mine.resume(f"{name}.new", conn=conn)
    assert [(one.name, one.paused_at is None) for one in mine.list(prefix=name)] == [
        (f"{name}.kept", False),
        (f"{name}.new", True),
    ]


@pytest.mark.long
def test_a_change_joins_the_atomic_block_of_django(dsn: str) -> None:
    database = "sqlite" if "sqlite" in dsn else "postgres18"
    configure_django(dsn)
    hf = Holdfast(dsn)
    declare(hf)
    _change_blocking(hf, BLOCKING[database]["django"], "django")
    hf.store.close_sync()


async def test_bad_input_is_refused_with_the_remedy(hf: Holdfast) -> None:
    declare(hf)

    @hf.cron("0 7 * * *")
    async def daily() -> None: ...

    @hf.consumer("order.placed")
    async def bill(event: dict[str, Any]) -> None: ...

    good: dict[str, Any] = {"cron": "0 7 * * *", "job": "report", "args": {"tenant": 1}}
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    past = datetime(2020, 1, 1, tzinfo=UTC)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"cron": "0 7 * *"}, ConfigurationError, "has 4 fields; give minute"),
        ({"cron": "0 0 31 2 *"}, ConfigurationError, "cannot be read"),
        ({"tz": "Europe/Berln"}, ConfigurationError, "time zone 'Europe/Berln' is not known"),
        ({"cron": None, "every": "0.5s"}, ConfigurationError, "shortest interval is 1s"),
        ({"cron": None, "every": "1h", "tz": "Mars"}, ConfigurationError, "'Mars' is not known"),
        ({"every": "1h"}, ConfigurationError, "exactly one of cron, every and at"),
        ({"cron": None}, ConfigurationError, "exactly one"),
        ({"cron": None, "at": naive}, ConfigurationError, "datetime with a time zone"),
        ({"cron": None, "at": past}, ConfigurationError, "give a time in the future"),
        ({"missed": "never"}, ConfigurationError, "use one of last, all, skip"),
        ({"job": "reprot"}, ConfigurationError, "did you mean 'report'"),
        ({"job": "bill"}, ConfigurationError, "consumer bill cannot be scheduled"),
        ({"job": "order", "args": (1,)}, ConfigurationError, "command order cannot be scheduled"),
        ({"args": {"tenatn": 1}}, TypeError, "tenant"),
        ({"args": {"tenant": "seven"}}, Exception, "tenant"),
        ({"args": [1]}, ConfigurationError, "args is of type list"),
        ({"name": "daily"}, ConfigurationError, "declared with @hf.cron"),
        ({"name": "white space"}, Exception, "white space"),
    ]
    for change, error, text in wrong:
        given = good | change
        with pytest.raises(error, match=text):
            await hf.schedules.put(given.pop("name", "name"), **given)
    with pytest.raises(NotFound, match="no schedule 'nmae'"):
        await hf.schedules.pause("nmae")
    assert await hf.schedules.list() == []
    await tick(hf)
    await hf.schedules.pause("daily")
    with pytest.raises(Refused, match="cannot put schedule daily"):
        await _put_from_another_app(hf)


async def _put_from_another_app(hf: Holdfast) -> None:
    """An app that does not declare `daily`, on the same store."""
    other = Holdfast(hf.dsn)
    declare(other)
    try:
        await other.schedules.put("daily", every="1h", job="report", args=(1,))
    finally:
        await other.close()


async def test_a_schedule_whose_job_is_gone_waits_and_stops_nothing(hf: Holdfast, make_app: MakeApp) -> None:
    declare(hf)
    await hf.schedules.put("orphan", every="60s", job="report", args=(1,))
    await hf.store.run(travel(timedelta(minutes=5)))
    newer = make_app()

    @newer.job()
    async def other() -> None: ...

    await newer.schedules.put("fine", every="60s", job=other)
    await newer.store.run(travel(timedelta(minutes=1)))
    await tick(newer)
    assert (await calls(newer), await calls(newer, "other")) == ([], [{}])
    assert [(one.name, one.is_overdue) for one in await newer.schedules.list()] == [("fine", False), ("orphan", True)]
    (finding,) = [one for one in await newer.ops.doctor() if one.check == "schedules"]
    assert "schedule orphan is overdue for" in finding.message
    assert "no running worker has the job report" in finding.message
    await tick(hf)
    assert await calls(hf) == [{"tenant": 1, "note": ""}]


async def test_a_cron_function_whose_name_is_taken_is_reported_and_not_fired(
    hf: Holdfast, make_app: MakeApp, log: Log
) -> None:
    declare(hf)
    await hf.schedules.put("nightly", every="60s", job="report", args=(1,))
    newer = make_app()
    declare(newer)

    @newer.cron("* * * * *")
    async def nightly() -> None: ...

    await hf.store.run(travel(timedelta(minutes=3)))
    await tick(newer)
    assert [line["schedule"] for line in logged(log, "schedule name taken")] == ["nightly"]
    assert (len(await calls(newer)), await calls(newer, "nightly")) == (1, [])


async def test_schedules_that_cannot_fire_do_not_displace_others(
    hf: Holdfast, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time zone is not known here. One occurrence was fired with other arguments, before a backup was restored."""
    monkeypatch.setattr(cron, "BATCH", 2)
    declare(hf)
    for name in ("bad1", "bad2", "fine", "twice"):
        await hf.schedules.put(name, every="60s", job="report", args=(1,))
    await query(hf, "update {hf}schedule set tz = 'Mars', expression = '* * * * *' where name like 'bad%'")
    await hf.store.run(travel(timedelta(minutes=2)))
    (twice,) = await hf.store.run(schedules(prefix="twice"))
    (fired,) = cron_runner(hf)._firing(twice).messages
    changed = fired._replace(payload='{"tenant":2,"note":""}')
    await hf.store.run(publish([changed], cron_runner(hf)._fanout))
    runner = cron_runner(hf)
    await hf._runtime.registration.prepare()
    for _ in range(4):
        await runner.perform("w1")
    assert sorted(line["schedule"] for line in logged(log, "schedule failed")) == ["bad1", "bad2", "twice"]
    assert sorted(call["tenant"] for call in await calls(hf)) == [1, 2]
    states = {one.name: one for one in await hf.store.run(schedules())}
    assert all(one.next_at is not None and one.next_at > one.now for one in states.values())


async def test_a_restored_schedule_fires_no_occurrence_twice(hf: Holdfast) -> None:
    declare(hf)
    await hf.schedules.put("a", cron="30 2 * * *", missed="all", job="report", args=(1,))
    await hf.store.run(travel(timedelta(days=2)))
    (before,) = await hf.store.run(schedules())
    for _ in range(2):
        await tick(hf)
        stamp = round(before.last_at.timestamp() * 1000) if "sqlite" in hf.dsn else f"'{before.last_at.isoformat()}'"
        await query(hf, f"update {{hf}}schedule set last_at = {stamp}, next_at = {stamp}")
    assert len(await calls(hf)) == 2
    await drain(hf)
    assert await scheduled(hf) == []


@pytest.mark.long
def test_the_program_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md").read_text()
    ((program, printed),) = re.findall(r"```python\n# digest\.py\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    (tmp_path / "digest.py").write_text(program)
    done = subprocess.run([sys.executable, "digest.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
