"""Steps that wait: for signals, for time, and what they remember while they wait."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from holdfast import ConfigurationError, Holdfast, RetryPolicy, Step, WorkflowFailed
from holdfast.core.delivery import Status
from holdfast.core.workflows.names import COMMANDS
from holdfast.core.workflows.state import StepState
from holdfast.stores.queries.time_travel import travel
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.run import RunStatus
from holdfast.stores.workflows.run_page import RunFilter
from tests.support.worker import all_of, drain, query

NOW = timedelta(0)


class Approval(BaseModel):
    by: str


async def work(hf: Holdfast) -> None:
    """Works until nothing is due now."""
    await drain(hf, idle_limit=NOW)


def approving(hf: Holdfast, timeout: str | None = None) -> tuple[Any, list[str]]:
    ran: list[str] = []
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> str:
        ran.append("run")
        await ctx.step("once", ran.append, "effect")
        if timeout is None:
            found: Approval | None = await ctx.wait("approved", Approval)
        else:
            found = await ctx.wait("approved", Approval, timeout=timeout)
        return "nobody" if found is None else found.by

    return flow, ran


async def state(hf: Holdfast, run: Any, step: str) -> StepState:
    detail = await hf.store.run(workflow_run(run.id))
    return next(one.state for one in detail.steps if one.name == step)


async def test_a_step_waits_for_its_signal_and_does_not_repeat_what_it_remembers(hf: Holdfast) -> None:
    flow, ran = approving(hf)
    run = await flow.start()
    await work(hf)
    assert ran == ["run", "effect"]
    assert await state(hf, run, "approve") is StepState.WAITING
    (waiting,) = await all_of(hf, "flow/approve")
    assert (waiting.status, waiting.attempts) == (Status.PENDING, 0)
    await run.signal("approved", Approval(by="ada"))
    await work(hf)
    assert ran == ["run", "effect", "run"]
    assert await run.result() == "ada"


async def test_a_signal_that_comes_first_is_kept_for_the_wait(hf: Holdfast) -> None:
    flow, _ = approving(hf)
    run = await flow.using(delay="1h").start()
    await run.signal("approved", {"by": "ada"})
    await work(hf)
    await hf.store.run(travel(timedelta(hours=1)))
    await work(hf)
    assert await run.result() == "ada"


async def test_each_signal_ends_one_wait_in_the_order_they_were_sent(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def collect(ctx: Step) -> list[int]:
        return [await ctx.wait("number", int) for _ in range(3)]

    run = await flow.start()
    for number in (1, 2, 3):
        await run.signal("number", number)
        await work(hf)
    assert await run.result() == [1, 2, 3]


async def test_a_repeated_key_sends_one_signal(hf: Holdfast) -> None:
    flow, _ = approving(hf)
    run = await flow.start()
    first = await run.signal("approved", {"by": "ada"}, key="a")
    second = await run.signal("approved", {"by": "ada"}, key="a")
    assert first.id == second.id
    await work(hf)
    assert len(await query(hf, "select id from {hf}workflow_signal")) == 1


async def test_a_wait_ends_at_its_time_out(hf: Holdfast) -> None:
    flow, ran = approving(hf, timeout="3d")
    run = await flow.start()
    await work(hf)
    await hf.store.run(travel(timedelta(days=2)))
    await work(hf)
    assert await run.status() is RunStatus.RUNNING
    await hf.store.run(travel(timedelta(days=2)))
    await work(hf)
    assert await run.result() == "nobody"
    assert ran == ["run", "effect", "run"]
    # A signal that comes later changes nothing.
    await run.signal("approved", {"by": "ada"})
    await work(hf)
    assert await run.result() == "nobody"


async def test_an_unrelated_signal_does_not_shorten_or_prolong_a_wait(hf: Holdfast) -> None:
    flow, _ = approving(hf, timeout="3d")
    run = await flow.start()
    await work(hf)
    (before,) = await all_of(hf, "flow/approve")
    await run.signal("other", 1)
    await work(hf)
    (after,) = await all_of(hf, "flow/approve")
    assert abs(after.run_at - before.run_at) < timedelta(seconds=1)


async def test_a_step_sleeps_once_for_each_call(hf: Holdfast) -> None:
    flow = hf.workflow("flow")
    ran = []

    @flow.step
    async def nap(ctx: Step) -> None:
        ran.append(0)
        await ctx.sleep("1h")
        ran.append(1)
        await ctx.sleep("1h")
        ran.append(2)

    run = await flow.start()
    for _ in range(3):
        await work(hf)
        await hf.store.run(travel(timedelta(hours=1, seconds=1)))
    assert ran == [0, 0, 1, 0, 1, 2]
    assert await run.status() is RunStatus.DONE


async def test_a_signal_with_a_wrong_payload_fails_the_step_and_says_what_it_must_be(hf: Holdfast) -> None:
    flow, _ = approving(hf)
    run = await flow.start()
    await hf.ops.signal_run(run.id, signal="approved", payload={"by": 7}, force=True, actor="ada")
    await drain(hf)
    with pytest.raises(WorkflowFailed, match="must be"):
        await run.result()


async def test_a_function_is_a_workflow_of_one_step(hf: Holdfast) -> None:
    calls: list[int] = []

    @hf.workflow("trial")
    async def trial(ctx: Step, days: int) -> int:
        total = 0
        for day in range(days):
            total += await ctx.step("day", count, day)
            await ctx.sleep(0.01)
        return total

    async def count(day: int) -> int:
        calls.append(day)
        return day + 1

    run = await trial.start(3)
    await drain(hf)
    assert await run.result() == 6
    assert calls == [0, 1, 2]


async def test_what_a_step_remembered_survives_its_failure(hf: Holdfast) -> None:
    sessions: list[str] = []
    flow = hf.workflow("flow")

    @flow.step(retry=RetryPolicy.fixed(0, attempts=3))
    async def charge(ctx: Step) -> str:
        session = await ctx.step("session", open_session, ctx.key)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return session

    def open_session(key: str) -> str:
        sessions.append(key)
        return f"session {len(sessions)}"

    run = await flow.start()
    await drain(hf)
    assert await run.result() == "session 1"
    assert sessions == [f"{run.id}:charge"]


async def test_a_handler_that_suppresses_the_suspension_is_refused(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(retry=RetryPolicy.none())
    async def bad(ctx: Step) -> str:
        try:
            await ctx.wait("never")
        except BaseException:  # noqa: BLE001
            return "continued"
        return "waited"

    run = await flow.start()
    await drain(hf)
    with pytest.raises(WorkflowFailed, match="caught the exception that suspends it"):
        await run.result()


async def test_a_memo_with_a_colon_is_refused(hf: Holdfast) -> None:
    flow = hf.workflow("flow")
    refused: list[str] = []

    @flow.step
    async def bad(ctx: Step) -> None:
        with pytest.raises(ConfigurationError, match="colon"):
            await ctx.step("wait:x", lambda: 1)
        refused.append(ctx.name)

    await flow.start()
    await drain(hf)
    assert refused == ["bad"]


async def test_runs_are_listed_and_shown(hf: Holdfast) -> None:
    flow, _ = approving(hf)

    @flow.step(after="approve")
    async def ship() -> None: ...

    done, open = await flow.using(key="k").start(), await flow.start()
    await done.signal("approved", {"by": "ada"})
    await drain(hf)
    listed = (await hf.ops.workflow_runs(RunFilter(workflow="flow"))).items
    assert [(one.run.id, one.run.status, one.run.key) for one in listed] == [
        (open.id, RunStatus.RUNNING, None),
        (done.id, RunStatus.DONE, "k"),
    ]
    shown = await hf.store.run(workflow_run(open.id))
    assert [(step.name, step.state) for step in shown.steps] == [
        ("approve", StepState.WAITING),
        ("ship", StepState.IDLE),
    ]
    assert [(row.name, row.signal) for row in shown.remembered] == [
        ("approve/once", None),
        ("approve/wait:approved", "approved"),
    ]
    ended = await hf.store.run(workflow_run(done.id))
    assert [step.state for step in ended.steps] == [StepState.DONE, StepState.DONE]
    assert ended.signals[0].consumed_by == "approve/wait:approved#0"


@pytest.mark.parametrize("plain", [False, True])
async def test_a_signal_that_does_not_fit_is_not_what_a_retry_reads(hf: Holdfast, plain: bool) -> None:
    flow = hf.workflow("flow")
    if plain:

        @flow.step
        def approve(ctx: Step) -> int:
            return int(ctx.sync.wait("go", int))

    else:

        @flow.step(name="approve")
        async def approve_async(ctx: Step) -> int:
            return await ctx.wait("go", int)

    run = await flow.start()
    await work(hf)
    await hf.ops.signal_run(run.id, signal="go", payload="text", force=True, actor="ada")
    await work(hf)
    with pytest.raises(WorkflowFailed, match="signal go must be int; retry the run and send the signal"):
        await run.result()
    await run.retry()
    await work(hf)
    assert await state(hf, run, "approve") is StepState.WAITING
    await run.signal("go", 7)
    await work(hf)
    assert await run.result() == 7


async def test_a_signal_to_a_run_that_does_not_exist_becomes_a_dead_letter(hf: Holdfast) -> None:
    flow, _ = approving(hf)
    await flow.run(uuid4()).signal("approved", Approval(by="ada"))
    await work(hf)
    (command,) = await all_of(hf, COMMANDS)
    assert command.status is Status.FAILED
