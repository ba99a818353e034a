"""Deadlines of steps: the time from the first start in which a step must be done, over all attempts and waits."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, RetryPolicy, Step, WorkflowFailed
from holdfast.core.workflows.state import StepState
from holdfast.stores.admin.actions import replay
from holdfast.stores.queries.time_travel import travel
from holdfast.stores.workflows.query import workflow_run
from tests.support.worker import all_of, drain, only, query
from tests.workflows.test_runs import events

PATIENT = RetryPolicy.fixed("5h", attempts=9)
BRIEF = timedelta(seconds=1)


class Order:
    """Three workflows in one database, each with a step that is not done within two hours."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf, self.ran, self.undone = hf, list[str](), list[str]()
        waits, fails, again = (hf.workflow(name) for name in ("waits", "fails", "again"))
        self.workflows = (waits, fails, again)

        async def undo(ctx: Step) -> None:
            self.undone.append(ctx.name)

        @waits.step(deadline="2h", exhausted="block")
        async def approve(ctx: Step) -> str:
            self.ran.append("approve")
            return f"approved by {await ctx.wait('approved', str, timeout='3d')}"

        @fails.step(deadline="2h", retry=PATIENT, undo=undo)
        async def charge(ctx: Step) -> None:
            self.ran.append(f"charge {ctx.attempt}")
            raise ConnectionError("no answer")

        @again.step(deadline="2h")
        async def poll(ctx: Step) -> int:
            await ctx.sleep("90m")
            return len(await ctx.map(item, [1, 2]))

        @again.step(mapped=True)
        async def item(n: int) -> int:
            return n

    async def drain(self) -> None:
        await drain(self.hf, idle_limit=BRIEF)

    async def step(self, run: Any) -> Any:
        return (await self.hf.store.run(workflow_run(run.id))).steps[0]


async def test_a_step_past_its_deadline_is_blocked_or_dead_and_a_replay_starts_another_one(hf: Holdfast) -> None:
    order = Order(hf)
    waits, fails, again = [await one.start() for one in order.workflows]
    await order.drain()
    assert sorted(order.ran) == ["approve", "charge 1"]
    # Its retry and its wait would be later.
    await hf.store.run(travel(timedelta(minutes=110)))
    await order.drain()
    assert await again.result(timeout="5s") == 2
    assert ((await order.step(waits)).state, (await order.step(fails)).state) == (
        StepState.WAITING,
        StepState.RETRY_WAIT,
    )
    await hf.store.run(travel(timedelta(minutes=11)))
    await order.drain()
    assert sorted(order.ran) == ["approve", "charge 1"]
    approve = await order.step(waits)
    assert (approve.state, approve.last_error) == (
        StepState.BLOCKED,
        "step approve was not done within its deadline of 2h",
    )
    with pytest.raises(WorkflowFailed, match=r"step charge is dead: .* was not done within its deadline of 2h"):
        await fails.result(timeout="5s")
    assert order.undone == ["charge:undo"]
    assert sorted(await events(hf)) == [
        "workflow.done",
        "workflow.failed",
        "workflow.step.blocked",
        "workflow.step.dead",
    ]
    # A replay has another two hours.
    await hf.store.run(replay([approve.delivery_id], actor="ada", reason="asked again"))
    await order.drain()
    await hf.store.run(travel(timedelta(minutes=100)))
    await waits.signal("approved", "ada")
    await order.drain()
    assert await waits.result(timeout="5s") == "approved by ada"


async def test_a_retry_of_a_run_starts_the_deadline_again(hf: Holdfast) -> None:
    order = Order(hf)
    waits, _, _ = order.workflows
    run = await waits.start()
    await order.drain()
    await hf.store.run(travel(timedelta(minutes=100)))
    await run.retry(from_="approve")
    await order.drain()
    await hf.store.run(travel(timedelta(minutes=100)))
    await order.drain()
    assert (await order.step(run)).state is StepState.WAITING
    await hf.store.run(travel(timedelta(minutes=21)))
    await order.drain()
    assert (await order.step(run)).state is StepState.BLOCKED


@pytest.mark.parametrize("plain", [False, True])
async def test_an_attempt_ends_at_the_deadline(hf: Holdfast, plain: bool) -> None:
    flow = hf.workflow("flow")
    if plain:

        @flow.step(deadline=0.05, retry=RetryPolicy.fixed("1h"))
        def slow(ctx: Step) -> None:
            import time

            time.sleep(0.15)

    else:

        @flow.step(name="slow", deadline=0.05, retry=RetryPolicy.fixed("1h"))
        async def slow_too(ctx: Step) -> None:
            import asyncio

            await asyncio.sleep(60)

    run = await flow.start()
    await drain(hf, idle_limit=BRIEF)
    with pytest.raises(WorkflowFailed, match="not done within its deadline of 50ms"):
        await run.result(timeout="5s")
    assert (await only(hf, "flow/slow")).attempts == 2


async def test_a_step_that_is_late_only_in_its_queue_is_not_past_its_deadline(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(deadline="1h")
    async def only_one() -> int:
        return 1

    run = await flow.start()
    await hf.store.run(travel(timedelta(hours=3)))
    await drain(hf)
    assert await run.result(timeout="5s") == 1
    assert len(await all_of(hf, "flow/only_one")) == 1
    assert await query(hf, "select name from {hf}workflow_step order by name") == [
        ("only_one",),
        ("only_one/deadline:step",),
    ]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"deadline": 0}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": "1h", "timeout": "2h"}, "timeout '2h' of an attempt is longer than deadline '1h'"),
        ({"deadline": "1h", "mapped": True}, "deadline= out, or give them to the step that calls ctx.map"),
        ({"deadlin": "1h"}, "did you mean deadline=?"),
    ],
)
def test_a_deadline_that_cannot_work_is_refused(options: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Holdfast("sqlite:///unused.db").workflow("flow").step(**options)
