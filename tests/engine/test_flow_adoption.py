"""Deliveries without a key: published before the key was declared, or with the place of an order that was given up."""

import asyncio
import time
from datetime import timedelta
from typing import Any

from holdfast import Holdfast, Limit, Rate
from holdfast.engine.claims.flow_adoption import FlowAdoption
from holdfast.stores.admin.flow import change_flow
from holdfast.stores.deliveries.claim import lanes
from tests.support.apps import MakeApp
from tests.support.builders import sql
from tests.support.worker import drain, eventually, working


def declare(hf: Holdfast, **options: Any) -> list[int]:
    done: list[int] = []

    @hf.consumer("order.placed", name="ship", **options)
    async def ship(payload: Any) -> None:
        done.append(payload["n"])

    return done


async def publish(hf: Holdfast, keys: str) -> None:
    for number, key in enumerate(keys):
        await hf.publish("order.placed", {"k": key, "n": number}, conn=None)


async def published_before(make_app: MakeApp, keys: str, **options: Any) -> None:
    hf = make_app()
    declare(hf, **options)
    await publish(hf, keys)


def unblock(hf: Holdfast) -> None:
    """The consumer was blocked, and its pause is over: one delivery may be tried."""
    past = "now() - interval '1 second'" if hf.dsn.startswith("postgres") else "1"
    sql(hf.store, f"update {{hf}}consumer set blocked_until = {past} where name = 'ship'")


async def test_a_fair_consumer_adopts_what_was_published_before(make_app: MakeApp) -> None:
    await published_before(make_app, "abc")
    hf = make_app()
    done = declare(hf, fair_by="k")
    await drain(hf)
    assert sorted(done) == [0, 1, 2]


async def test_a_fair_consumer_adopts_what_arrives_later_without_a_key(make_app: MakeApp) -> None:
    hf = make_app()
    done = declare(hf, fair_by=lambda payload: payload["k"])
    await publish(hf, "a")
    async with working(hf):
        await eventually(lambda: done == [0])
        # This app does not declare the function, so it cannot find the key.
        await publish(make_app(), "b")
        await eventually(lambda: done == [0, 0])


async def test_fairness_replaces_an_order(make_app: MakeApp) -> None:
    await published_before(make_app, "abc", order_by="k")
    hf = make_app()
    done = declare(hf, fair_by="k")
    await drain(hf)
    assert sorted(done) == [0, 1, 2]


async def test_a_process_for_suspects_runs_only_suspects_of_a_fair_consumer(make_app: MakeApp) -> None:
    hf = make_app()
    done = declare(hf, fair_by="k")
    await publish(hf, "ab")
    sql(hf.store, "update {hf}delivery set suspect = not suspect where flow_key = 'a'")
    await drain(hf, suspects=True)
    assert done == [0]


async def test_a_trial_of_a_blocked_consumer_adopts(make_app: MakeApp) -> None:
    await published_before(make_app, "ab")
    hf = make_app()
    done = declare(hf, order_by="k")
    await hf.publish("other", {}, conn=None)
    unblock(hf)
    await drain(hf)
    assert sorted(done) == [0, 1]


async def test_a_trial_finds_a_key_behind_many_deliveries_of_a_paused_one(make_app: MakeApp) -> None:
    hf = make_app()
    done = declare(hf, limit=Limit(2, by="k"))
    await hf.publish_many([("order.placed", {"k": "p", "n": -1}) for _ in range(120)], conn=None)
    await publish(hf, "a")
    sql(hf.store, "insert into {hf}flow_pause (consumer, flow_key) values ('ship', 'p')")
    unblock(hf)
    async with working(hf):
        await eventually(lambda: done == [0])


async def test_an_earlier_job_of_another_priority_gets_its_place_first(make_app: MakeApp) -> None:
    before, hf, done = make_app(), make_app(), list[int]()

    @before.job(name="sync")
    async def unordered(k: str, n: int) -> None: ...

    await unordered.using(priority=2).enqueue("x", 0)

    @hf.job(name="sync", order_by="k")
    async def ordered(k: str, n: int) -> None:
        done.append(n)

    await ordered.using(priority=0).enqueue("x", 1)
    await drain(hf)
    assert done == [0, 1]


async def test_an_earlier_job_that_is_not_due_gets_its_place_first(make_app: MakeApp) -> None:
    before, hf, done = make_app(), make_app(), list[int]()

    @before.job(name="sync")
    async def unordered(k: str, n: int) -> None: ...

    await unordered.using(delay="1s").enqueue("x", 0)

    @hf.job(name="sync", order_by="k")
    async def ordered(k: str, n: int) -> None:
        done.append(n)

    await ordered.enqueue("x", 1)
    await drain(hf)
    assert done == [0, 1]


async def test_a_changed_limit_does_not_stop_an_ordered_consumer_until_its_backlog_was_read_again(
    make_app: MakeApp,
) -> None:
    hf = make_app()
    declare(hf, order_by="k", limit=Limit(3))
    # One batch reads 4,000.
    await hf.publish_many([("order.placed", {"k": "a", "n": n}) for n in range(4100)], conn=None)
    adoption = FlowAdoption(hf.store, hf._runtime.handlers, suspects=False)

    async def sweep(hf: Holdfast) -> set[str]:
        """The consumers that are not claimed from after one batch."""
        found = await hf.store.run(lanes(["ship"], 0))
        await adoption.sweep(found)
        return adoption.unordered(found)

    assert [await sweep(hf) for _ in range(2)] == [{"ship"}, set()]
    await hf.store.run(change_flow("consumer", "ship", "ada", None, limit=2, rate=None, reset=False))
    assert await sweep(hf) == set()
    other = make_app()
    declare(other, order_by="n")
    await other._runtime.registration.prepare()
    assert await sweep(other) == {"ship"}, "another key needs another sweep"


async def test_a_rate_with_a_long_wait_does_not_delay_another(make_app: MakeApp) -> None:
    hf, starts = make_app(), list[float]()

    @hf.job(rate=Rate("1/1h"))
    async def slow(n: int) -> None: ...

    @hf.job(rate=Rate("10/200ms"))
    async def fast(n: int) -> None:
        starts.append(time.monotonic())

    for n in range(3):
        await slow.enqueue(n)
    for n in range(40):
        await fast.enqueue(n)
    async with working(hf, poll=timedelta(seconds=30)):
        await eventually(lambda: len(starts) == 40)
        await asyncio.sleep(0)
    assert starts[-1] - starts[0] < 10


async def test_a_free_key_runs_behind_many_keys_that_are_held_up(make_app: MakeApp) -> None:
    hf = make_app()
    done = declare(hf, order_by="k")
    for number in (-1, -2):
        await hf.publish_many([("order.placed", {"k": f"k{n:05}", "n": number}) for n in range(2000)], conn=None)
        # Every key has a dead letter, then a delivery that waits behind it.
        sql(hf.store, "update {hf}delivery set status = 'failed'" if number == -1 else "select 1")
    async with working(hf, poll=timedelta(milliseconds=200)):
        await asyncio.sleep(0.5)
        started = time.monotonic()
        await hf.publish("order.placed", {"k": "z", "n": 1}, conn=None)
        await eventually(lambda: done == [1])
    assert time.monotonic() - started < 8


async def test_until_idle_waits_for_a_retry_after_the_order_was_given_up(make_app: MakeApp) -> None:
    await published_before(make_app, "aa", order_by="k")
    hf = make_app()
    done = declare(hf)
    sql(hf.store, "update {hf}delivery set status = 'failed' where flow_seq = (select min(flow_seq) from {hf}delivery)")
    later = "now() + interval '1 second'" if hf.dsn.startswith("postgres") else "run_at + 1000"
    sql(hf.store, f"update {{hf}}delivery set run_at = {later} where status = 'pending'")
    await drain(hf)
    assert done == [1]
