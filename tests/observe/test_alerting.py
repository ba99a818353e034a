"""Alerts with many failures, many workers and restarts: sent, and not too often."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.alerts import DeadLetterAlert
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.maintenance.pruner import Pruner
from holdfast.engine.telemetry.alert import Alerts
from holdfast.stores.admin.alert import AlertDecision, decide_alert
from holdfast.stores.protocol import Store
from tests.support.apps import MakeApp
from tests.support.worker import eventually, pass_time, query

QUIET = 300.0


def letter(number: int = 1, fingerprint: str = "abc") -> DeadLetterAlert:
    return DeadLetterAlert(
        event_id=UUID(int=1),
        delivery_id=UUID(int=number),
        event_type="order.placed",
        source="shop",
        target="billing",
        queue="payments",
        handler="billing",
        last_error="card declined",
        error_type="CardDeclined",
        fingerprint=fingerprint,
        attempts=5,
        max_attempts=5,
    )


@pytest.fixture
async def store(make_app: MakeApp) -> Store:
    hf = make_app()
    await hf._runtime.registration.prepare()
    return hf.store


def worker(store: Store, sent: list[int], quiet: float = QUIET) -> Alerts:
    async def ask(consumer: str, fingerprint: str, alike: int, quiet: timedelta) -> AlertDecision:
        return await store.run(decide_alert(consumer, fingerprint, alike, quiet))

    async def tell(alert: DeadLetterAlert) -> None:
        sent.append(alert.alike)

    return Alerts((tell,), quiet, ask)


async def test_ten_workers_with_ten_thousand_failures_tell_once_and_then_how_many(make_app: MakeApp) -> None:
    hf = make_app()
    await hf._runtime.registration.prepare()
    sent: list[int] = []
    workers = [worker(hf.store, sent) for _ in range(10)]
    for number in range(10_000):
        workers[number % 10].dead(letter(number))
    for one in workers:
        await one.sent()
    assert sent == [1]
    # The quiet period ends, for all of them at once.
    await pass_time(hf, timedelta(seconds=QUIET), "alert")
    for one in workers:
        for group in one._groups.values():
            group.quiet_until = 0.0
            one._report_if_due(group)
        await one.sent()
    assert len(sent) == 2
    await pass_time(hf, timedelta(seconds=QUIET), "alert")
    for one in workers:
        for group in one._groups.values():
            group.quiet_until = 0.0
            one._report_if_due(group, owed=True)
        await one.sent()
    assert len(sent) == 3
    assert sum(sent) == 10_000


async def test_what_came_while_it_was_quiet_is_reported_without_another_failure(store: Store) -> None:
    sent: list[int] = []
    first, second = worker(store, sent, quiet=0.3), worker(store, sent, quiet=0.3)
    first.dead(letter())
    await first.sent()
    for one in (first, second):
        for _ in range(3):
            one.dead(letter())
    await eventually(lambda: sum(sent) == 7)
    assert len(sent) <= 3


async def test_a_worker_that_restarts_keeps_quiet_and_another_group_is_reported_at_once(store: Store) -> None:
    sent: list[int] = []
    before = worker(store, sent)
    before.dead(letter())
    await before.sent()
    after = worker(store, sent)
    after.dead(letter())
    await after.sent()
    assert sent == [1]
    after.dead(letter(fingerprint="another"))
    await after.sent()
    assert sent == [1, 1]


async def test_an_unavailable_store_prevents_no_alert() -> None:
    sent: list[int] = []

    async def ask(*_: object) -> AlertDecision:
        raise StoreUnavailable("db")

    alerts = Alerts((lambda alert: sent.append(alert.alike),), QUIET, ask)
    for _ in range(50):
        alerts.dead(letter())
    await alerts.sent()
    assert sent == [1]


async def test_groups_that_are_long_quiet_are_forgotten(make_app: MakeApp, dsn: str) -> None:
    hf = make_app()
    await hf._runtime.registration.prepare()
    assert (await hf.store.run(decide_alert("billing", "abc", 1, timedelta(minutes=5)))).tell
    await pass_time(hf, timedelta(days=2), "alert")
    await Pruner(hf.store, timedelta(days=30)).perform("w")
    table = "holdfast.alert" if dsn.startswith("postgresql") else "holdfast_alert"
    assert await query(hf, f"select count(*) from {table}") == [(0,)]


def test_the_text_says_what_failed_how_many_and_what_to_do() -> None:
    text = letter(7).text
    assert text.splitlines() == [
        "billing: a dead letter, the latest order.placed from shop at attempt 5 of 5: CardDeclined: card declined",
        "look: holdfast dlq show 00000000-0000-0000-0000-000000000007",
    ]


async def test_two_that_ask_at_the_same_time_get_one_turn(store: Store) -> None:
    turns = await asyncio.gather(
        *(store.run(decide_alert("billing", "abc", 1, timedelta(minutes=5))) for _ in range(8))
    )
    assert [turn.tell for turn in turns].count(True) == 1
    assert all(timedelta(minutes=4) < turn.quiet <= timedelta(minutes=5) for turn in turns)
