"""Workers and flow control: limits, rates, order and fairness as a user declares them."""

import asyncio
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, cast

import pytest

from holdfast import Holdfast, Limit, Queue, Rate, RetryPolicy, Router, WorkerOptions
from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.delivery import Status
from holdfast.engine.claims.flow_claimer import FlowClaimer
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.stores.deliveries.claim import Claimed, Lane, LaneFlow, LaneList
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from tests.engine.test_concurrency import Gauge
from tests.stores.concurrency.query_hook import before_each_query
from tests.support.apps import MakeApp
from tests.support.builders import sql
from tests.support.worker import all_of, drain, eventually, statuses, working


class QueryLog:
    """A store that remembers the names of its queries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.names: list[str] = []

    async def run(self, operation: Operation[Any]) -> Any:
        return await self._store.run(before_each_query(operation, lambda query: self.names.append(query.name)))


async def publish(hf: Holdfast, keys: str | list[str], type: str = "order.placed") -> None:
    for number, key in enumerate(keys):
        await hf.publish(type, {"k": key, "n": number}, conn=None)


async def test_a_global_limit_holds_and_is_reached(hf: Holdfast) -> None:
    gauge = Gauge()

    @hf.consumer("order.placed", limit=Limit(3))
    async def ship(payload: Any) -> None:
        with gauge:
            await asyncio.sleep(0.01)

    await publish(hf, "abcdefghijklmnopqrst")
    await drain(hf)
    assert (gauge.most, gauge.total) == (3, 20)


async def test_a_limit_by_key_applies_and_other_work_continues(hf: Holdfast) -> None:
    gauges: defaultdict[str, Gauge] = defaultdict(Gauge)
    plain = Gauge()

    @hf.consumer("order.placed", limit=Limit(2, by="k"))
    async def ship(payload: Any) -> None:
        with gauges[payload["k"]]:
            await asyncio.sleep(0.005)

    @hf.consumer("order.placed")
    async def note(payload: Any) -> None:
        with plain:
            await asyncio.sleep(0.001)

    await publish(hf, "aaaaaaaabbbbc")
    await drain(hf)
    assert {key: (gauge.most, gauge.total) for key, gauge in gauges.items()} == {"a": (2, 8), "b": (2, 4), "c": (1, 1)}
    assert plain.total == 13


async def test_an_ordered_key_runs_in_order_through_retries(hf: Holdfast) -> None:
    done: defaultdict[str, list[int]] = defaultdict(list)
    failed: set[int] = set()

    @hf.consumer("order.placed", order_by="k", retry=RetryPolicy.fixed(attempts=3, delay="20ms"))
    async def ship(payload: Any) -> None:
        if payload["n"] % 3 == 0 and payload["n"] not in failed:
            failed.add(payload["n"])
            raise RuntimeError("again")
        done[payload["k"]].append(payload["n"])

    await publish(hf, "abcabcabcabcaaaa")
    await drain(hf)
    assert all(numbers == sorted(numbers) for numbers in done.values())
    assert sum(map(len, done.values())) == 16


async def test_a_dead_letter_blocks_its_key_and_the_worker_still_becomes_idle(hf: Holdfast) -> None:
    done: list[int] = []

    @hf.consumer("order.placed", order_by="k", on_dead="block", dead_on=(ValueError,))
    async def ship(payload: Any) -> None:
        if payload["n"] == 0 and not done:
            raise ValueError("never")
        done.append(payload["n"])

    await publish(hf, "aab")
    started = time.monotonic()
    await drain(hf)
    assert time.monotonic() - started < 10
    assert (done, await statuses(hf)) == ([2], [Status.FAILED, Status.PENDING, Status.DELIVERED])
    (dead,) = [one for one in await all_of(hf) if one.status is Status.FAILED]
    await hf.ops.replay([dead.id], actor="test")
    await drain(hf)
    assert done == [2, 0, 1]


async def test_a_rate_spreads_claims_over_time(hf: Holdfast) -> None:
    started: list[float] = []

    @hf.job(rate=Rate("4/500ms"))
    async def call(n: int) -> None:
        started.append(time.monotonic())

    for n in range(10):
        await call.enqueue(n)
    await drain(hf)
    assert len(started) == 10
    assert started[4] - started[0] >= 0.45
    assert started[8] - started[4] >= 0.45
    assert started[9] - started[0] < 5


async def test_a_heavy_key_does_not_delay_the_others_with_fairness(hf: Holdfast) -> None:
    order: list[str] = []

    @hf.consumer("order.placed", fair_by="k")
    async def ship(payload: Any) -> None:
        order.append(payload["k"])
        await asyncio.sleep(0.001)

    await hf.publish_many([("order.placed", {"k": "heavy"}) for _ in range(300)], conn=None)
    await publish(hf, ["a", "b", "c"])
    await drain(hf, concurrency=4)
    assert len(order) == 303
    assert max(order.index(key) for key in "abc") < 60


async def test_a_queue_has_one_limit_for_all_its_consumers(make_app: MakeApp) -> None:
    hf, gauge = make_app(queues=[Queue("mail", limit=Limit(2))]), Gauge()

    @hf.job(queue="mail")
    async def one(n: int) -> None:
        with gauge:
            await asyncio.sleep(0.005)

    @hf.job(queue="mail")
    async def two(n: int) -> None:
        with gauge:
            await asyncio.sleep(0.005)

    for n in range(6):
        await one.enqueue(n)
        await two.enqueue(n)
    await drain(hf)
    assert (gauge.most, gauge.total) == (2, 12)


async def test_deliveries_from_before_the_declaration_are_adopted(make_app: MakeApp, dsn: str) -> None:
    before = make_app()

    @before.consumer("order.placed")
    async def ship(payload: Any) -> None: ...

    await publish(before, "aabab")
    after, done = make_app(), list[int]()

    @after.consumer("order.placed", name="ship", order_by=lambda payload: payload["k"])
    async def ordered(payload: Any) -> None:
        done.append(payload["n"])

    await drain(after)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert [n for n in done if n in (0, 1, 3)] == [0, 1, 3]
    assert set(sql(after.store, "select flow_key from {hf}delivery")) == {("a",), ("b",)}


async def test_a_failing_key_function_is_an_error_of_the_publisher(hf: Holdfast) -> None:
    @hf.consumer("order.placed", fair_by=lambda payload: payload["missing"])
    async def ship(payload: Any) -> None: ...

    with pytest.raises(
        Exception, match=r"consumer ship: the key function .* failed for a order.placed message: KeyError"
    ):
        await publish(hf, "a")


async def test_options_work_on_routers_jobs_and_commands(hf: Holdfast) -> None:
    router, seen = Router(), list[str]()

    @router.job(limit=Limit(1, by="tenant"))
    async def mail(tenant: str) -> None:
        seen.append(tenant)

    @router.command(key="pay:{order}", order_by="order")
    async def pay(order: str) -> None:
        seen.append(order)

    hf.include(router)
    await mail.enqueue("t1")
    await mail.using(unique="u").enqueue("t2")
    await pay.enqueue("o1")
    await drain(hf)
    assert sorted(seen) == ["o1", "t1", "t2"]
    rows = sql(hf.store, "select flow_key, flow_seq is not null from {hf}delivery order by flow_key")
    assert [(key, bool(ordered)) for key, ordered in rows] == [("o1", True), ("t1", False), ("t2", False)]


async def test_a_freed_slot_is_used_at_once(hf: Holdfast) -> None:
    count = 0

    @hf.job(limit=Limit(1, by="n"))
    async def work(n: int) -> None:
        nonlocal count
        count += 1

    for _ in range(30):
        await work.enqueue(1)
    async with working(hf, poll=timedelta(seconds=5)):
        started = time.monotonic()
        await eventually(lambda: count == 30)
        assert time.monotonic() - started < 5


async def test_lanes_with_nothing_due_cost_one_query_a_round(hf: Holdfast) -> None:
    async def handle(n: int) -> None: ...

    jobs = [hf.job(name=f"job{n}", limit=Limit(1))(handle) for n in range(5)]
    for job in jobs:
        await job.using(delay="1h").enqueue(1)
    log, pool = QueryLog(hf.store), SlotPool(None, 10)
    accepted: list[Claimed] = []

    def accept(pool: SlotPool, claims: list[Claimed], *, first: bool) -> None:
        accepted.extend(claims)

    claimer = FlowClaimer(cast(Store, log), "w1", WorkerOptions(), hf.handlers, [pool], accept)
    flow = LaneFlow(flow_settings({"limit": Limit(1)}), None)
    pool.scheduler.refreshed(LaneList([Lane("default", f"job{n}", 0, 1, flow=flow) for n in range(5)]), 0.0, 0.0)
    for _ in range(3):
        assert not await claimer.claim(Counter(), lambda: None)
    assert log.names == ["due_lanes"] * 3
    await jobs[3].enqueue(2)
    assert await claimer.claim(Counter(), lambda: None)
    assert (log.names[3:5], [claim.consumer for claim in accepted]) == (["due_lanes", "flow_floor"], ["job3"])
    # Its limit is reached now: after one claim that finds no room, the same query finds that out.
    await jobs[3].enqueue(3)
    await claimer.claim(Counter(), lambda: None)
    log.names.clear()
    for _ in range(3):
        assert not await claimer.claim(Counter(), lambda: None)
    assert log.names == ["due_lanes"] * 3
