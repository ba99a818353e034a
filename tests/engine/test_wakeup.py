"""Finding work: at once where a hint comes through, by polling where none does, and a lost hint loses nothing."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.engine.claims import idle, lane_queries
from holdfast.engine.claims.scheduler import ClaimScheduler
from holdfast.engine.worker import session
from holdfast.stores.deliveries.claim import claim, discover_and_claim, list_lanes
from holdfast.stores.queries.query import next_due_in
from tests.support.apps import MakeApp
from tests.support.worker import drain, eventually, query, statuses, working

NEVER = timedelta(hours=1)
NEVER_DUE = float("inf")
on_postgres = pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)


@pytest.fixture
def app(hf: Holdfast) -> Holdfast:
    @hf.consumer("order.placed")
    async def billing(payload: object) -> None: ...

    return hf


def publish_elsewhere(dsn: str, hf: Holdfast) -> None:
    """Publishes on a connection whose commit is not visible."""
    if dsn.startswith("sqlite"):
        with closing(sqlite3.connect(dsn.removeprefix("sqlite:///"), timeout=10)) as db, db:
            hf.sync.publish("order.placed", {}, conn=db)
    else:
        with psycopg.connect(dsn) as conn:
            hf.sync.publish("order.placed", {}, conn=conn)


async def publish_without_a_hint(dsn: str, hf: Holdfast) -> None:
    await asyncio.to_thread(publish_elsewhere, dsn, hf)


async def test_an_app_wakes_its_own_worker(app: Holdfast) -> None:
    """Again and again, without any poll: a wake-up that comes between looking and waiting is not lost."""
    await app._runtime.registration.prepare()
    async with working(app, poll=NEVER):
        for n in range(1, 31):
            await app.publish("order.placed", {"n": n}, conn=None)
            await eventually(partial(_delivered, app, n))


async def test_another_process_wakes_a_worker(app: Holdfast, make_app: MakeApp) -> None:
    """By LISTEN and NOTIFY on PostgreSQL, by the counter of commits on SQLite."""
    producer = make_app()
    await app._runtime.registration.prepare()
    async with working(app, poll=NEVER):
        for n in range(1, 6):
            await producer.publish("order.placed", {"n": n}, conn=None)
            await eventually(partial(_delivered, app, n))


async def test_what_comes_without_a_hint_is_found_by_polling(app: Holdfast, dsn: str) -> None:
    await app._runtime.registration.prepare()
    async with working(app, poll=timedelta(milliseconds=50)):
        for n in range(1, 4):
            await publish_without_a_hint(dsn, app)
            await eventually(partial(_delivered, app, n))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a worker asks the store when it looks for work."""
    asked: list[str] = []

    def noted(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asking(*args: Any, **options: Any) -> Any:
            asked.append(ask.__name__)
            return ask(*args, **options)

        return asking

    for module, ask in ((session, claim), (lane_queries, discover_and_claim), (lane_queries, list_lanes)):
        monkeypatch.setattr(module, ask.__name__, noted(ask))
    return asked


async def test_what_an_idle_worker_finds_starts_before_it_asks_for_more(
    hf: Holdfast, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task waits for it; and one that scanned every lane knows that there is no more."""
    delay_full_scans(monkeypatch, 0)  # on a slow machine a scan counts as expensive, and lanes are read instead
    before: list[list[str]] = []

    @hf.consumer("order.placed")
    async def billing(payload: object) -> None:
        before.append(asked.copy())
        await asyncio.sleep(0.1)
        before.append(asked.copy())

    await hf._runtime.registration.prepare()
    async with working(hf, poll=NEVER):
        await hf.publish("order.placed", {}, conn=None)
        await eventually(partial(_delivered, hf, 1))
        await asyncio.sleep(0.1)
        asked.clear()
        await hf.publish("order.placed", {}, conn=None)
        await eventually(partial(_delivered, hf, 2))
    assert before[2] == ["discover_and_claim"]
    assert set(before[3]) == {"discover_and_claim"}, "its own hint may have returned to it by then"


def delay_full_scans(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A full scan is followed by another one after so many seconds, for any cost."""

    def delay(self: ClaimScheduler, started: float, ended: float) -> None:
        self._full_scan_due = ended + seconds

    monkeypatch.setattr(ClaimScheduler, "_limit_full_scans", delay)


async def test_after_an_expensive_full_scan_a_worker_claims_from_the_known_lanes(
    app: Holdfast, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_full_scans(monkeypatch, 3600)
    await app._runtime.registration.prepare()
    async with working(app, poll=NEVER):
        for n in range(1, 4):
            await app.publish("order.placed", {}, conn=None)
            await eventually(partial(_delivered, app, n))
    assert asked.count("discover_and_claim") == 1
    assert asked.count("claim") >= 2


async def test_work_that_arrives_while_a_full_scan_is_delayed_is_found_when_the_scan_is_due(
    hf: Holdfast, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lanes that are known do not lead to it, and no hint comes twice."""
    delay_full_scans(monkeypatch, 0.3)
    monkeypatch.setattr(ClaimScheduler, "refreshed", lambda self, found, *_: setattr(self, "_refresh_due", NEVER_DUE))
    names = ("first", "second", "third")
    for name in names:

        async def handler(payload: object) -> None: ...

        hf.consumer(f"order.{name}", name=name)(handler)
    await hf._runtime.registration.prepare()
    async with working(hf, poll=NEVER):
        # The first look takes no lanes in here (see above), so a hint that came before it would be used up.
        await eventually(lambda: "list_lanes" in asked)
        for n, name in enumerate(names, start=1):
            await hf.publish(f"order.{name}", {}, conn=None)
            await eventually(partial(_delivered, hf, n))
    assert "claim" not in asked


async def test_what_a_settlement_makes_due_at_once_is_claimed_at_once(hf: Holdfast) -> None:
    """The end of the run came before: then it was still in flight."""

    @hf.consumer("order.placed", retry=RetryPolicy.schedule([0, 0, 0]))
    async def billing(payload: object) -> None:
        runs.append(1)
        if len(runs) < 4:
            raise ValueError

    runs: list[int] = []
    await hf._runtime.registration.prepare()
    async with working(hf, poll=NEVER):
        await hf.publish("order.placed", {}, conn=None)
        await eventually(partial(_delivered, hf, 1))
    assert len(runs) == 4


async def test_who_waited_for_settlements_claims_when_they_are_written(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.settlement.settler._MOST_UNWRITTEN", 0)
    await app._runtime.registration.prepare()
    await app.publish_many([("order.placed", {"n": n}) for n in range(40)], conn=None)
    async with working(app, poll=NEVER, concurrency=1):
        await eventually(partial(_delivered, app, 40))


async def test_a_worker_that_would_end_looks_again_for_what_came_after_its_claim(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has claimed nothing, asks when the next is due, and that is now."""
    came: list[int] = []

    def asked_too_late(*args: Any) -> Any:
        if not came:
            came.append(1)
            app.sync.publish("order.placed", {}, conn=None)
        return next_due_in(*args)

    monkeypatch.setattr(idle, "next_due_in", asked_too_late)
    await app._runtime.registration.prepare()
    await drain(app, idle_limit=timedelta(0))
    assert await _delivered(app, 1)


async def test_a_worker_that_would_end_scans_lanes_that_it_does_not_know(
    app: Holdfast, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes without a hint after the last scan is in no known lane."""
    came: list[int] = []

    def asked_too_late(*args: Any) -> Any:
        if not came:
            came.append(1)
            publish_elsewhere(dsn, app)
        return next_due_in(*args)

    monkeypatch.setattr(idle, "next_due_in", asked_too_late)
    await app._runtime.registration.prepare()
    await drain(app, idle_limit=timedelta(0))
    assert await _delivered(app, 1)


@on_postgres
async def test_a_hint_survives_the_loop_it_was_sent_from(app: Holdfast, make_app: MakeApp, dsn: str) -> None:
    """A publish is the last act of a script: its hint waits its turn when the loop ends."""
    await app._runtime.registration.prepare()
    producer = make_app()

    async def publish() -> None:
        for pause in (0.05, 0.0, 0.0):
            await producer.publish("order.placed", {}, conn=None)
            await asyncio.sleep(pause)

    def script() -> None:
        asyncio.run(publish())
        producer.store.close_sync()

    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute(f'listen "{app.store.channel}"'.encode())  # type: ignore[attr-defined]
        await asyncio.to_thread(script)
        assert len(list(listener.notifies(timeout=0.5))) >= 3


@on_postgres
async def test_after_its_listening_was_cut_a_worker_listens_again_and_then_looks(
    app: Holdfast, make_app: MakeApp, dsn: str
) -> None:
    producer = make_app()
    await app._runtime.registration.prepare()
    async with working(app, poll=NEVER):
        await eventually(lambda: _listening(app))
        await publish_without_a_hint(dsn, app)
        assert await query(app, f"select pg_terminate_backend(pid) from pg_stat_activity {_LISTENING}")
        await eventually(lambda: _delivered(app, 1))
        await producer.publish("order.placed", {}, conn=None)
        await eventually(lambda: _delivered(app, 2))


@on_postgres
async def test_a_thousand_hints_are_as_good_as_one(app: Holdfast, dsn: str) -> None:
    await app._runtime.registration.prepare()
    async with working(app, poll=NEVER):
        await eventually(lambda: _listening(app))
        await publish_without_a_hint(dsn, app)
        await query(app, f"select count(pg_notify('{app.store.channel}', n::text)) from generate_series(1, 1000) n")  # type: ignore[attr-defined]
        await eventually(lambda: _delivered(app, 1))


async def test_work_that_falls_due_later_is_found_without_a_hint(hf: Holdfast) -> None:
    @hf.job()
    async def later() -> None: ...

    await later.using(delay=0.3).enqueue()
    async with working(hf):
        await eventually(lambda: _delivered(hf, 1))


_LISTENING = "where query like 'listen%' and datname = current_database()"


async def _listening(hf: Holdfast) -> bool:
    return bool(await query(hf, f"select 1 from pg_stat_activity {_LISTENING}"))


async def _delivered(hf: Holdfast, number: int) -> bool:
    return await statuses(hf) == [Status.DELIVERED] * number
