"""Retry of a run from a step."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Refused, RetryPolicy, Step
from holdfast.core.workflows.state import StepState
from holdfast.engine.workflows.settler import new_events
from holdfast.engine.workflows.sweeper import RunSweeper
from holdfast.stores.queries.time_travel import travel
from holdfast.stores.workflows.advance import advance_completed, next_steps
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.retry import retry_run
from holdfast.stores.workflows.run import RunStatus
from tests.support.worker import all_of, drain, query

ONCE = RetryPolicy.none()


class Order:
    """first, then left and right, then join, then last; `broken` names the step that fails."""

    def __init__(self, hf: Holdfast, broken: str | None = None) -> None:
        self.hf, self.broken, self.ran = hf, broken, list[str]()
        self.flow = flow = hf.workflow("flow")

        @flow.step(retry=ONCE)
        async def first(ctx: Step) -> str:
            return await self.run(ctx)

        @flow.step(after=first, retry=ONCE)
        async def left(ctx: Step) -> str:
            return await self.run(ctx)

        @flow.step(after=first, retry=ONCE, exhausted="block")
        async def right(ctx: Step) -> str:
            return await self.run(ctx)

        @flow.step(after=[left, right], retry=ONCE)
        async def join(ctx: Step, left: str, right: str) -> str:
            return await self.run(ctx)

        @flow.step(after=join, retry=ONCE)
        async def last(ctx: Step) -> str:
            return await self.run(ctx)

    async def run(self, ctx: Step) -> str:
        await ctx.step("artifact", self.ran.append, f"{ctx.name} artifact")
        self.ran.append(ctx.name)
        if ctx.name == self.broken:
            raise ValueError("broken")
        return ctx.name

    async def retry(self, run: Any, step: str | None = None) -> list[str]:
        self.ran.clear()
        again = await self.hf.store.run(retry_run(run.id, step, new_events()))
        await drain(self.hf)
        return again


async def test_a_failed_run_continues_from_its_dead_step_and_makes_no_second_artifact(hf: Holdfast) -> None:
    order = Order(hf, "join")
    run = await order.flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.FAILED
    order.broken = None
    assert await order.retry(run) == ["join", "last"]
    assert order.ran == ["join", "last artifact", "last"]
    assert await run.result() == "last"


async def test_a_run_is_retried_from_a_step_that_was_done_with_its_join(hf: Holdfast) -> None:
    order = Order(hf)
    run = await order.flow.start()
    await drain(hf)
    assert await order.retry(run, "left") == ["left", "join", "last"]
    assert order.ran == ["left artifact", "left", "join artifact", "join", "last artifact", "last"]
    assert await run.status() is RunStatus.DONE
    for _ in range(2):
        assert len(await order.retry(run, "first")) == 5
        assert len(order.ran) == 10
        assert await run.status() is RunStatus.DONE
    shown = await hf.store.run(workflow_run(run.id))
    assert [(step.name, step.state) for step in shown.steps] == [
        (name, StepState.DONE) for name in ("first", "left", "right", "join", "last")
    ]


async def test_a_blocked_step_of_a_running_run_is_retried_alone(hf: Holdfast) -> None:
    order = Order(hf, "right")
    run = await order.flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.RUNNING
    order.broken = None
    assert await order.retry(run) == ["right", "join", "last"]
    assert order.ran == ["right", "join artifact", "join", "last artifact", "last"]
    assert await run.status() is RunStatus.DONE


async def test_a_compensated_run_starts_again_with_what_was_undone(hf: Holdfast) -> None:
    ran: list[str] = []
    broken = True
    flow = hf.workflow("flow")

    @flow.step(undo=lambda: ran.append("undo"))
    async def book() -> None:
        ran.append("book")

    @flow.step(after=book, retry=ONCE)
    async def pay() -> None:
        ran.append("pay")
        if broken:
            raise ValueError("declined")

    run = await flow.start()
    await drain(hf)
    assert ran == ["book", "pay", "undo"]
    for _ in range(2):
        await hf.store.run(retry_run(run.id, "pay", new_events()))
        await drain(hf)
    assert ran == ["book", "pay", "undo"] * 3
    broken = False
    await run.retry()
    await drain(hf)
    assert ran[9:] == ["book", "pay"]
    assert await run.status() is RunStatus.DONE


async def test_what_cannot_be_retried_is_refused_with_the_reason(hf: Holdfast) -> None:
    order = Order(hf)
    run = await order.flow.start()
    await drain(hf)
    for step, why in ((None, "without a failed step"), ("lst", "did you mean last")):
        with pytest.raises(Refused, match=why):
            await hf.store.run(retry_run(run.id, step, new_events()))


async def test_a_retry_after_the_deadline_is_not_ended_by_it_again(hf: Holdfast) -> None:
    order = Order(hf, "join")
    run = await order.flow.using(deadline="1h").start()
    await drain(hf)
    assert await run.status() is RunStatus.FAILED
    await query(hf, "update {hf}workflow_run set deadline = started_at")
    order.broken = None
    await order.retry(run)
    assert await run.status() is RunStatus.DONE
    assert await query(hf, "select deadline from {hf}workflow_run") == [(None,)]


async def test_a_retry_before_the_deadline_keeps_it(hf: Holdfast) -> None:
    order = Order(hf, "join")
    run = await order.flow.using(deadline="1h").start()
    await drain(hf)
    await order.retry(run)
    ((deadline,),) = await query(hf, "select deadline from {hf}workflow_run")
    assert deadline is not None


async def test_a_retry_counts_a_step_once_that_its_handler_completed_and_no_worker_advanced(hf: Holdfast) -> None:
    order = Order(hf, broken="right")
    run = await order.flow.start()
    await drain(hf)
    # As ctx.complete leaves `left`, before the worker advances the run.
    await query(hf, "delete from {hf}workflow_step where name = 'join'")
    await query(hf, "update {hf}workflow_step set unadvanced = true where name = 'left'")
    order.broken = None
    assert await hf.store.run(retry_run(run.id, None, new_events())) == ["right", "join", "last"]
    await hf.store.run(travel(timedelta(minutes=1)))
    await RunSweeper(hf.store).perform("w")
    assert await all_of(hf, "flow/join") == []
    await drain(hf)
    assert await run.result() == "last"
    assert len(await all_of(hf, "flow/join")) == 1


async def test_a_retry_from_the_step_after_one_that_was_not_advanced_yet_runs_it_once(hf: Holdfast) -> None:
    flow, ran = hf.workflow("flow"), list[str]()

    @flow.step
    async def first() -> None: ...

    @flow.step(after=first)
    async def second() -> None:
        ran.append("second")

    run = await flow.start()
    await drain(hf)
    await query(hf, "delete from {hf}delivery where consumer = 'flow/second'")
    await query(hf, "delete from {hf}workflow_step where name = 'second'")
    await query(hf, "update {hf}workflow_run set status = 'running', waiting = 1, ended_at = null")
    await query(hf, "update {hf}workflow_step set unadvanced = true where name = 'first'")
    ran.clear()
    assert await hf.store.run(retry_run(run.id, "second", new_events())) == ["second"]
    # The worker of `first` loaded the run before the retry.
    next = next_steps(run.id, flow.declaration.graph, "first", 0)
    await hf.store.run(advance_completed(run.id, "first", 0, next, "test", 0, new_events()))
    await drain(hf)
    assert ran == ["second"]
    assert await run.status() == "done"


async def test_the_items_of_a_step_that_was_done_run_again_and_no_others(hf: Holdfast) -> None:
    flow, ran = hf.workflow("flow"), list[int]()

    @flow.step(mapped=True)
    async def item(n: int) -> int:
        ran.append(n)
        return n

    @flow.step
    async def aXb(ctx: Step) -> list[int]:  # noqa: N802
        return await ctx.map(item, [1, 2])

    @flow.step
    async def a_b(ctx: Step) -> list[int]:
        return await ctx.map(item, [10, 20])

    run = await flow.start()
    await drain(hf)
    ran.clear()
    await hf.store.run(retry_run(run.id, "a_b", new_events()))
    await drain(hf)
    assert sorted(ran) == [10, 20]
    assert await run.result() == {"aXb": [1, 2], "a_b": [10, 20]}
    counted = await query(hf, "select count(*) from {hf}workflow_step where name = 'item@aXb#0'")
    assert [tuple(row) for row in counted] == [(2,)]


async def test_a_retried_run_whose_steps_all_wait_for_a_trigger_stays_active(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(manual=True)
    async def ship(ctx: Step) -> str:
        return "shipped"

    run = await flow.start()
    await run.cancel()
    await drain(hf)
    await run.retry()
    await drain(hf)
    assert await run.status() is RunStatus.RUNNING
    await run.trigger("ship")
    await drain(hf)
    assert await run.result() == "shipped"
