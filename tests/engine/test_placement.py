"""Where and when a job runs: queue, priority, delay, a set time, unique while unfinished, separate budgets."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import ConfigurationError, Context, Holdfast, RetryPolicy
from holdfast.core.delivery import Status
from tests.support.apps import MakeApp
from tests.support.worker import all_of, drain, only, pass_time, query, statuses, wait_for, working


async def test_urgent_work_runs_first(hf: Holdfast) -> None:
    order: list[int] = []

    @hf.job()
    async def work(priority: int) -> None:
        order.append(priority)

    for priority in (3, 1, 2, 0, 1):
        await work.using(priority=priority).enqueue(priority)
    await drain(hf, concurrency=1)
    assert order == [0, 1, 1, 2, 3]


async def test_what_is_less_urgent_gets_a_share_while_urgent_work_never_ends(hf: Holdfast) -> None:
    """Every urgent run adds another to many that wait, so that a strict order would never come to the low one."""
    low_ran = asyncio.Event()
    urgent: list[int] = []

    @hf.job(priority=0)
    async def pressing() -> None:
        urgent.append(1)
        if not low_ran.is_set():
            await pressing.enqueue()

    @hf.job(priority=3)
    async def low() -> None:
        low_ran.set()

    await hf._runtime.publish([pressing._message((), {})[1] for _ in range(40)], None)
    await low.enqueue()
    async with working(hf, concurrency=2):
        await wait_for(low_ran)
    assert len(urgent) > 1


async def test_a_delayed_job_waits_and_one_for_a_set_time_too(hf: Holdfast) -> None:
    ran: list[str] = []

    @hf.job()
    async def work(name: str) -> None:
        ran.append(name)

    before = datetime.now(UTC)
    await work.using(delay="10m").enqueue("delayed")
    await work.using(run_at=before + timedelta(minutes=20)).enqueue("set")
    await work.using(run_at=before - timedelta(minutes=20)).enqueue("past")
    await drain(hf)
    assert ran == ["past"]
    _, delayed, set_for = sorted(await all_of(hf), key=lambda one: one.run_at)
    assert timedelta(minutes=9) < delayed.run_at - before < timedelta(minutes=11)
    assert set_for.run_at == (before + timedelta(minutes=20)).replace(microsecond=set_for.run_at.microsecond)
    await pass_time(hf, timedelta(minutes=12), "delivery")
    await drain(hf)
    assert ran == ["past", "delayed"]
    await pass_time(hf, timedelta(minutes=10), "delivery")
    await drain(hf)
    assert ran == ["past", "delayed", "set"]


async def test_a_delay_and_a_set_time_are_one_too_many(hf: Holdfast) -> None:
    @hf.job()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="both delay and run_at"):
        await work.using(delay=1, run_at=datetime.now(UTC)).enqueue()


async def test_a_unique_job_is_stored_once_while_it_is_unfinished(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.job()
    async def sync_account(account: int) -> None:
        ran.append(account)

    first = await sync_account.using(unique="account:1").enqueue(1)
    second = await sync_account.using(unique="account:1").enqueue(1)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    await drain(hf)
    assert (await sync_account.using(unique="account:1").enqueue(1)).created
    await drain(hf)
    assert ran == [1, 1]


async def test_a_message_may_bring_its_own_budget_and_policy(hf: Holdfast) -> None:
    seen: dict[str, list[tuple[int, int]]] = {"budget": [], "policy": [], "both": []}

    @hf.job(retry=RetryPolicy.fixed("1h", attempts=2))
    async def flaky(ctx: Context, name: str) -> None:
        seen[name].append((ctx.attempt, ctx.max_attempts))
        raise OSError("away")

    at_once = RetryPolicy.fixed(0, attempts=3)
    await flaky.using(max_attempts=1).enqueue("budget")
    await flaky.using(retry=at_once).enqueue("policy")
    await flaky.using(retry=at_once, max_attempts=4).enqueue("both")
    await drain(hf)
    assert seen == {
        "budget": [(1, 1)],
        "policy": [(n, 3) for n in (1, 2, 3)],
        "both": [(n, 4) for n in (1, 2, 3, 4)],
    }
    assert await statuses(hf) == [Status.FAILED] * 3
    # What operators see is what the worker went by.
    assert sorted(found.max_attempts or 0 for found in await all_of(hf)) == [1, 3, 4]
    assert sorted(await query(hf, "select max_attempts from {hf}delivery_view")) == [(1,), (3,), (4,)]


async def test_an_event_may_bring_a_policy_for_all_its_consumers(hf: Holdfast) -> None:
    seen: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}

    def flaky(name: str) -> Callable[[Context, object], Awaitable[None]]:
        async def fail(ctx: Context, payload: object) -> None:
            seen[name].append((ctx.attempt, ctx.max_attempts))
            raise OSError("away")

        return fail

    for name in seen:
        hf.consumer("a", name=name, retry=RetryPolicy.fixed("1h", attempts=2))(flaky(name))
    at_once = RetryPolicy.fixed(0, attempts=3)
    await hf.publish("a", {}, conn=None, retry=at_once)
    await hf.publish_many([("a", {}), ("a", {})], conn=None, retry=at_once)
    await asyncio.to_thread(hf.sync.publish, "a", {}, conn=None, retry=RetryPolicy.none(), key="k")
    await asyncio.to_thread(hf.sync.publish_many, [("a", {"n": n}) for n in range(150)], conn=None, retry=at_once)
    await drain(hf)
    for runs in seen.values():
        assert sorted(set(runs)) == [(1, 1), (1, 3), (2, 3), (3, 3)]
    found = await all_of(hf)
    assert len(found) == 2 * 154
    assert {(one.status, one.attempts == one.max_attempts) for one in found} == {(Status.FAILED, True)}


async def test_a_consumer_that_subscribes_later_keeps_its_own_policy(hf: Holdfast) -> None:
    await hf.publish("a", {}, conn=None, retry=RetryPolicy.none())
    runs: list[tuple[int, int | None]] = []

    @hf.consumer("a", name="late", retry=RetryPolicy.fixed(0, attempts=2))
    async def late(ctx: Context, payload: object) -> None:
        runs.append((ctx.attempt, ctx.max_attempts))
        raise OSError("away")

    await drain(hf)
    assert runs == [(1, 2), (2, 2)]


async def test_an_event_with_a_policy_that_is_none_is_not_published(hf: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match=r"retry is 5; for 5 runs give RetryPolicy.exponential\(attempts=5\)"):
        await hf.publish("a", {}, conn=None, retry=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="retry is 5"):
        await hf.publish_many([("a", {})], conn=None, retry=5)  # type: ignore[arg-type]


async def test_a_queue_may_have_a_policy_for_all_its_handlers(make_app: MakeApp) -> None:
    hf = make_app(queues={"mail": RetryPolicy.fixed(0, attempts=4)})

    @hf.job(queue="mail")
    async def send() -> None:
        raise OSError("away")

    @hf.job(queue="mail", retry=RetryPolicy.none())
    async def send_once() -> None:
        raise OSError("away")

    await send.enqueue()
    await send_once.enqueue()
    await drain(hf)
    assert ((await only(hf, "send")).attempts, (await only(hf, "send_once")).attempts) == (4, 1)


async def test_a_call_may_be_sent_to_another_queue(hf: Holdfast) -> None:
    ran: list[str] = []

    @hf.job(queue="mail")
    async def send(ctx: Context) -> None:
        ran.append(ctx.queue)

    await send.using(queue="bulk").enqueue()
    await send.enqueue()
    await drain(hf, queues={"bulk": 1})
    assert ran == ["bulk"]
    await drain(hf)
    assert ran == ["bulk", "mail"]


async def test_a_worker_for_some_queues_is_idle_although_work_waits_in_others(hf: Holdfast) -> None:
    @hf.job(queue="mail")
    async def send() -> None: ...

    await send.enqueue()
    await drain(hf, queues={"bulk": 1})
    assert await statuses(hf) == [Status.PENDING]
