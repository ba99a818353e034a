"""Runs of declared workflows, from start to end, on each database."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Cancel,
    Holdfast,
    KeyConflict,
    Limit,
    Rate,
    RetryPolicy,
    Router,
    Step,
    TerminalError,
    WorkflowFailed,
)
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import replay
from holdfast.stores.workflows.run import RunStatus
from tests.support.worker import all_of, drain, eventually, query, statuses, working

ONCE = RetryPolicy.none()


def diamond(hf: Holdfast, ran: list[str] | None = None) -> Any:
    """reserve, then charge and plan at the same time, then ship."""
    ran = [] if ran is None else ran
    order = hf.workflow("order")

    @order.step
    async def reserve(ctx: Step, sku: str, count: int = 1) -> int:
        ran.append("reserve")
        return count * 2

    @order.step(after=reserve)
    async def charge(ctx: Step, reserve: int) -> str:
        ran.append("charge")
        return f"paid {reserve}"

    @order.step(after=reserve)
    def plan(sku: str) -> dict[str, str]:
        ran.append("plan")
        return {"sku": sku}

    @order.step(after=[charge, plan])
    async def ship(ctx: Step, charge: str, plan: dict[str, str]) -> str:
        ran.append("ship")
        return f"{plan['sku']}: {charge}"

    return order


async def events(hf: Holdfast) -> list[str]:
    rows = await query(
        hf, "select type from {hf}message where type like 'workflow.%' and key is null order by position"
    )
    return [str(type) for (type,) in rows if not str(type).startswith(("workflow.start.", "workflow.signal"))]


async def test_steps_run_in_order_and_pass_their_results_by_name(hf: Holdfast) -> None:
    ran: list[str] = []
    order = diamond(hf, ran)
    run = await order.start("lamp", count=2)
    await drain(hf)
    assert await run.result() == "lamp: paid 4"
    assert ran[0] == "reserve"
    assert sorted(ran[1:3]) == ["charge", "plan"]
    assert ran[3:] == ["ship"]
    assert await run.status() is RunStatus.DONE
    assert await events(hf) == ["workflow.done"]


async def test_a_repeated_key_returns_the_same_run_and_a_different_payload_conflicts(hf: Holdfast) -> None:
    order = diamond(hf).using(key="order:1")
    first, second = await order.start("lamp"), await order.start("lamp")
    assert (first.id, first.created, second.created) == (second.id, True, False)
    with pytest.raises(KeyConflict):
        await order.start("desk")
    assert len(await query(hf, "select id from {hf}workflow_run")) == 1
    assert len(await all_of(hf)) == 1


async def test_many_concurrent_starts_with_one_key_make_one_run(hf: Holdfast) -> None:
    order = diamond(hf).using(key="order:1")
    runs = await asyncio.gather(*(order.start("lamp") for _ in range(30)))
    assert len({run.id for run in runs}) == 1
    assert sum(run.created for run in runs) == 1


def test_the_blocking_twins_start_signal_and_wait_for_a_result(sqlite_dsn: str) -> None:
    hf = Holdfast(sqlite_dsn)
    order = hf.workflow("order")

    @order.step
    def approve(ctx: Step, sku: str) -> str:
        by = ctx.sync.step("buyer", lambda: "ada")
        return f"{sku} by {by}: {ctx.sync.wait('approved', str)}"

    run = order.using(key="k").sync.start("lamp")
    run.sync.signal("approved", "yes", key="s")
    run.sync.signal("approved", "yes", key="s")
    hf.run(until_idle=True)
    assert run.sync.result(timeout="5s") == "lamp by ada: yes"
    asyncio.run(hf.close())


async def test_several_last_steps_give_a_result_by_name(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def left() -> int:
        return 1

    @flow.step
    async def right() -> int:
        return 2

    run = await flow.start()
    await drain(hf)
    assert await run.result() == {"left": 1, "right": 2}


async def test_a_failing_step_is_retried_and_the_others_are_not_repeated(hf: Holdfast) -> None:
    ran: list[str] = []
    flow = hf.workflow("flow")

    @flow.step
    async def first() -> None:
        ran.append("first")

    @flow.step(after=first, retry=RetryPolicy.fixed(0, attempts=3))
    async def second(ctx: Step) -> None:
        ran.append("second")
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    run = await flow.start()
    await drain(hf)
    assert ran == ["first", "second", "second", "second"]
    assert await run.status() is RunStatus.DONE


async def test_a_dead_step_fails_the_run_and_discards_what_waits(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(retry=ONCE)
    async def breaks() -> None:
        raise ValueError("no stock")

    @flow.step(queue="never")
    async def waits() -> None: ...

    run = await flow.start()
    await drain(hf, queues={"default": 5})
    with pytest.raises(WorkflowFailed, match="no stock") as failed:
        await run.result()
    assert failed.value.status == "failed"
    assert (await all_of(hf, "flow/waits"))[0].discarded_at is not None
    assert await events(hf) == ["workflow.step.dead", "workflow.failed"]


async def test_a_blocked_step_holds_the_run_until_it_is_replayed(hf: Holdfast) -> None:
    broken = True
    flow = hf.workflow("flow")

    @flow.step(retry=ONCE, exhausted="block")
    async def charge() -> str:
        if broken:
            raise ValueError("card service is down")
        return "paid"

    run = await flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.RUNNING
    assert await statuses(hf, "flow/charge") == [Status.FAILED]
    assert await events(hf) == ["workflow.step.blocked"]
    broken = False
    (dead,) = await all_of(hf, "flow/charge")
    await hf.store.run(replay([dead.id], "ada", "fixed"))
    await drain(hf)
    assert await run.result() == "paid"


async def test_a_step_that_cancels_ends_the_run_as_cancelled(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def check() -> None:
        raise Cancel("the order was withdrawn")

    @flow.step(after=check)
    async def ship() -> None: ...

    run = await flow.start()
    await drain(hf)
    with pytest.raises(WorkflowFailed, match="was cancelled: the order was withdrawn"):
        await run.result()
    assert await all_of(hf, "flow/ship") == []


async def test_a_manual_step_waits_for_its_trigger_and_for_the_steps_before_it(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def pack() -> None: ...

    @flow.step(after=pack, manual=True)
    async def ship() -> str:
        return "shipped"

    early, late = await flow.start(), await flow.start()
    await early.trigger("ship")
    await drain(hf)
    assert await early.result() == "shipped"
    assert await late.status() is RunStatus.RUNNING
    assert len(await all_of(hf, "flow/ship")) == 1
    await late.trigger("ship")
    await late.trigger("ship")
    await drain(hf)
    assert await late.result() == "shipped"
    assert len(await all_of(hf, "flow/ship")) == 2


async def test_a_trigger_of_a_step_that_has_none_is_a_dead_letter_that_says_so(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def pack() -> None: ...

    run = await flow.start()
    await run.trigger("pack")
    await drain(hf)
    (dead,) = await all_of(hf, "holdfast/workflows")
    assert dead.last_error is not None
    assert "not manual" in dead.last_error


async def test_cancelling_discards_what_waits_and_fences_what_runs(hf: Holdfast) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    flow = hf.workflow("flow")

    @flow.step
    async def slow() -> None:
        started.set()
        await go.wait()

    @flow.step(after=slow)
    async def never() -> None: ...

    async with working(hf):
        run = await flow.start()
        await asyncio.wait_for(started.wait(), 5)
        await run.cancel("not needed")
        await eventually(lambda: _ended(run))
        go.set()
        with pytest.raises(WorkflowFailed, match="not needed"):
            await run.result(timeout="5s")
    assert await all_of(hf, "flow/never") == []
    assert (await all_of(hf, "flow/slow"))[0].discarded_at is not None
    assert await events(hf) == ["workflow.cancel", "workflow.cancelled"]


async def _ended(run: Any) -> bool:
    return not (await run.status()).is_active


async def test_a_router_declares_a_workflow_before_the_app_exists(hf: Holdfast) -> None:
    router = Router()
    flow = router.workflow("flow")

    @flow.step
    async def first(n: int) -> int:
        return n

    hf.include(router)

    @flow.step(after=first)
    async def second(first: int) -> int:
        return first + 1

    run = await flow.start(4)
    await drain(hf)
    assert await run.result() == 5


async def test_a_large_result_reaches_the_next_step(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def produce() -> str:
        return "x" * 1_000_000

    @flow.step(after=produce)
    async def measure(produce: str) -> int:
        return len(produce)

    run = await flow.start()
    await drain(hf)
    assert await run.result() == 1_000_000


async def test_a_result_that_json_cannot_hold_is_a_dead_step_with_the_path(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(retry=ONCE)
    async def bad() -> object:
        return {"at": object()}

    run = await flow.start()
    await drain(hf)
    with pytest.raises(WorkflowFailed, match=r"\$\.at"):
        await run.result()


async def test_a_step_whose_code_is_terminal_uses_no_more_attempts(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(retry=RetryPolicy.fixed(0, attempts=9))
    async def bad() -> None:
        raise TerminalError("never")

    run = await flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.FAILED
    assert (await all_of(hf, "flow/bad"))[0].attempts == 1


async def test_steps_have_limits_and_rates_over_all_workers_also_by_a_value_of_the_start(hf: Holdfast) -> None:
    flow = hf.workflow("flow")
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def busy(what: str) -> None:
        running[what] += 1
        most[what] = max(most[what], running[what])
        await asyncio.sleep(0.01)
        running[what] -= 1

    @flow.step(limit=Limit(3))
    async def charge(tenant: str) -> None:
        await busy("charge")

    @flow.step(after=charge, limit=Limit(1, by="tenant"))
    async def ship(tenant: str) -> None:
        await busy(tenant)

    @flow.step(after=ship, rate=Rate("12/30s"))
    async def notify() -> None:
        running["notified"] += 1

    for tenant in ["acme", "globex"] * 6:
        await flow.start(tenant)
    await drain(hf)
    assert most == {"charge": 3, "acme": 1, "globex": 1}
    assert running["notified"] == 12
    await flow.start("acme")
    await drain(hf, idle_limit=timedelta(0))
    assert running["notified"] == 12


async def test_what_a_step_remembers_does_not_add_attempts(hf: Holdfast) -> None:
    flow, ran = hf.workflow("flow"), list[str]()

    @flow.step(retry=RetryPolicy.fixed(0, attempts=3))
    async def charge(ctx: Step) -> None:
        ran.append("charge")
        for n in range(len(ran)):
            await ctx.step(f"part{n}", str, n)
        raise ValueError("broken")

    run = await flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.FAILED
    assert len(ran) == 3
