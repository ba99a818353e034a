"""Runs that fail: undo steps, deadlines, completion in the handler's transaction, and workers that die between two steps."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import ConfigurationError, Holdfast, RetryPolicy, Step, WorkflowFailed
from holdfast.core.identity import first_id
from holdfast.core.workflows.state import StepState
from holdfast.engine.workflows.sweeper import RunSweeper
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries, prune_messages
from holdfast.stores.queries.query import clock
from holdfast.stores.queries.time_travel import travel
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.run import RunStatus, prune_runs
from tests.support.worker import all_of, drain, eventually, query, working

ONCE = RetryPolicy.none()
NOW = timedelta(0)


def travelling(hf: Holdfast, done: list[str], *, breaks: bool = True) -> Any:
    """flight, hotel and then pay, which breaks; each can be undone."""
    trip = hf.workflow("trip")

    def undo_flight(ctx: Step, flight: str | None) -> None:
        done.append(f"undo {flight}")

    async def undo_hotel(hotel: str | None, city: str) -> None:
        done.append(f"undo {hotel} in {city}")

    @trip.step(undo=undo_flight)
    async def flight(city: str) -> str:
        done.append("flight")
        return f"flight to {city}"

    @trip.step(after=flight, undo=undo_hotel)
    async def hotel(city: str) -> str:
        done.append("hotel")
        return "hotel"

    @trip.step(after=hotel, retry=ONCE)
    async def pay() -> None:
        if breaks:
            raise ValueError("card declined")

    @trip.step(after=pay)
    async def tell() -> None: ...

    return trip


async def test_a_failed_run_undoes_what_started_the_latest_first(hf: Holdfast) -> None:
    done: list[str] = []
    run = await travelling(hf, done).start("Rome")
    await drain(hf)
    assert done == ["flight", "hotel", "undo hotel in Rome", "undo flight to Rome"]
    with pytest.raises(WorkflowFailed, match="step pay is dead: ValueError: card declined"):
        await run.result()
    types = [str(t) for (t,) in await query(hf, "select type from {hf}message order by id")]
    assert types == ["workflow.start.trip", "workflow.step.dead", "workflow.failed"]


async def test_a_run_that_succeeds_undoes_nothing(hf: Holdfast) -> None:
    done: list[str] = []
    run = await travelling(hf, done, breaks=False).start("Rome")
    await drain(hf)
    assert await run.status() is RunStatus.DONE
    assert done == ["flight", "hotel"]


async def test_compensation_waits_for_what_is_in_flight_and_undoes_it_too(hf: Holdfast) -> None:
    done: list[str] = []
    started, go = asyncio.Event(), asyncio.Event()
    flow = hf.workflow("flow")

    @flow.step(undo=lambda: done.append("undo slow"))
    async def slow() -> None:
        started.set()
        await go.wait()
        done.append("slow")

    @flow.step(after=slow)
    async def never() -> None:
        done.append("never")

    @flow.step(retry=ONCE)
    async def breaks() -> None:
        await started.wait()
        raise ValueError("no")

    async with working(hf):
        run = await flow.start()
        await eventually(lambda: _is(run, RunStatus.COMPENSATING))
        assert done == []
        go.set()
        await eventually(lambda: _is(run, RunStatus.FAILED))
    assert done == ["slow", "undo slow"]


async def _is(run: Any, status: RunStatus) -> bool:
    return await run.status() is status


async def test_a_step_that_failed_itself_is_undone_because_its_effect_may_have_happened(hf: Holdfast) -> None:
    done: list[object] = []
    flow = hf.workflow("flow")

    @flow.step(retry=ONCE, undo=lambda charge: done.append(charge))
    async def charge() -> str:
        raise ConnectionError("reply lost")

    run = await flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.FAILED
    assert done == [None]


async def test_an_undo_step_whose_attempts_are_used_up_is_blocked(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    def undo() -> None:
        raise ValueError("refund refused")

    @flow.step(undo=undo, retry=ONCE)
    async def charge() -> None: ...

    @flow.step(after=charge, retry=ONCE)
    async def breaks() -> None:
        raise ValueError("no")

    run = await flow.start()
    await drain(hf)
    assert await run.status() is RunStatus.COMPENSATING
    shown = await hf.store.run(workflow_run(run.id))
    assert {step.name: step.state for step in shown.steps}["charge:undo"] is StepState.BLOCKED


async def test_a_run_past_its_deadline_fails_and_is_undone(hf: Holdfast) -> None:
    done: list[str] = []
    flow = hf.workflow("flow")

    @flow.step(undo=lambda: done.append("undo"))
    async def wait(ctx: Step) -> None:
        await ctx.wait("never")

    run = await flow.using(deadline="1h").start()
    await drain(hf, idle_limit=NOW)
    await RunSweeper(hf.store).perform("w")
    assert await run.status() is RunStatus.RUNNING
    await hf.store.run(travel(timedelta(hours=2)))
    await RunSweeper(hf.store).perform("w")
    await drain(hf)
    assert done == ["undo"]
    with pytest.raises(WorkflowFailed, match="its deadline has passed"):
        await run.result()


def write(dsn: str, ctx: Step, *, fail: bool = False) -> None:
    """Writes an effect and completes the step with a result, in one transaction."""
    if dsn.startswith("sqlite"):
        connection: Any = sqlite3.connect(dsn.removeprefix("sqlite:///"), timeout=10)
    else:
        connection = psycopg.connect(dsn)
    with closing(connection) as conn:
        conn.execute("create table if not exists effect (n integer)")
        conn.execute("insert into effect values (1)")
        ctx.sync.complete(conn=conn, result="committed")
        if fail:
            conn.rollback()
        else:
            conn.commit()


async def test_a_step_completes_in_its_own_transaction_and_the_run_continues(hf: Holdfast, dsn: str) -> None:
    flow = hf.workflow("flow")

    @flow.step(retry=RetryPolicy.fixed(0, attempts=3))
    def effect(ctx: Step) -> str:
        write(dsn, ctx, fail=ctx.attempt == 1)
        with pytest.raises(ConfigurationError, match=r"after ctx\.complete"):
            ctx.sync.step("late", lambda: 1)
        return "ignored"

    @flow.step(after=effect)
    async def show(effect: str) -> str:
        return effect

    run = await flow.start()
    await drain(hf)
    assert await run.result() == "committed"
    assert await _effects(dsn) == 1


async def _effects(dsn: str) -> int:
    def count() -> int:
        if dsn.startswith("sqlite"):
            with closing(sqlite3.connect(dsn.removeprefix("sqlite:///"))) as conn:
                return int(conn.execute("select count(*) from effect").fetchone()[0])
        with psycopg.connect(dsn) as connection:
            found = connection.execute("select count(*) from effect").fetchone()
            connection.execute("drop table effect")
        assert found is not None
        return int(found[0])

    return await asyncio.to_thread(count)


async def test_a_completed_step_whose_worker_died_is_advanced_by_a_sweep(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def first() -> None: ...

    @flow.step(after=first)
    async def second() -> str:
        return "reached"

    run = await flow.start()
    await drain(hf, idle_limit=NOW)
    # As ctx.complete leaves it, before the worker advances the run.
    await query(hf, "delete from {hf}delivery where consumer = 'flow/second'")
    await query(hf, "delete from {hf}workflow_step where name = 'second'")
    await query(hf, "update {hf}workflow_run set status = 'running', waiting = 1, ended_at = null")
    await query(hf, "update {hf}workflow_step set unadvanced = true where name = 'first'")
    await RunSweeper(hf.store).perform("w")
    assert await all_of(hf, "flow/second") == []
    await hf.store.run(travel(timedelta(minutes=1)))
    await RunSweeper(hf.store).perform("w")
    await RunSweeper(hf.store).perform("w")
    await drain(hf)
    assert await run.result() == "reached"
    assert len(await all_of(hf, "flow/second")) == 1


async def test_a_changed_graph_needs_a_new_version_and_old_runs_keep_their_graph(make_app: Any) -> None:
    old = make_app()
    flow = old.workflow("flow")

    @flow.step
    async def first(ctx: Step) -> str:
        return await ctx.wait("go", str)

    @flow.step(after=first)
    async def second(first: str) -> str:
        return f"{first} v1"

    run = await flow.start()
    await drain(old, idle_limit=NOW)

    def later(version: int, compatible: tuple[int, ...]) -> Holdfast:
        hf: Holdfast = make_app()
        flow = hf.workflow("flow", version=version, compatible_with=compatible)
        flow.step(first)

        @flow.step(after=first)
        async def between() -> None: ...

        @flow.step(after=[first, between])
        async def second(first: str) -> str:
            return f"{first} v2"

        return hf

    with pytest.raises(ConfigurationError, match=r"new: between.*raise version= to 2"):
        await drain(later(1, ()))
    other = later(2, ())
    await run.signal("go", "ok")
    await drain(other, idle_limit=NOW)
    assert await run.status() is RunStatus.RUNNING
    await query(other, "update {hf}delivery set run_at = created_at where status = 'pending'")
    await drain(later(3, (1, 2)), idle_limit=NOW)
    assert await run.result() == "ok v2"
    assert await all_of(other, "flow/between") == []


@pytest.mark.parametrize("tolerant", [False, True])
async def test_a_step_that_an_older_run_lacks_has_no_result(make_app: Any, tolerant: bool) -> None:
    old = make_app()
    flow = old.workflow("flow")

    @flow.step
    async def first(ctx: Step) -> None: ...

    @flow.step(after=first)
    async def last(ctx: Step) -> None: ...

    run = await flow.start()
    hf = make_app()
    new = hf.workflow("flow", version=2, compatible_with=(1,))
    new.step(first)

    @new.step(after=first)
    async def fraud() -> str:
        return "none"

    if tolerant:

        @new.step(name="last", after=[first, fraud])
        async def optional(fraud: str | None) -> str:
            return f"fraud: {fraud}"

    else:

        @new.step(name="last", after=[first, fraud])
        async def strict(fraud: str) -> str:
            return fraud

    await drain(hf)
    if tolerant:
        assert await run.result() == "fraud: None"
    else:
        with pytest.raises(WorkflowFailed, match="is of version 1, which has no step fraud: allow None"):
            await run.result()


async def test_a_compatible_version_must_keep_the_old_steps(make_app: Any) -> None:
    old = make_app()
    flow = old.workflow("flow")

    @flow.step
    async def gone() -> None: ...

    await flow.start()
    hf = make_app()
    new = hf.workflow("flow", version=2, compatible_with=(1,))

    @new.step
    async def fresh() -> None: ...

    with pytest.raises(ConfigurationError, match="has the steps gone, which the code lacks"):
        await drain(hf)


async def test_pruning_keeps_everything_of_an_active_run_and_removes_an_ended_one(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def first() -> None: ...

    @flow.step(after=first)
    async def second(ctx: Step) -> None:
        await ctx.wait("go")

    run = await flow.start()
    await drain(hf, idle_limit=NOW)
    await hf.store.run(travel(timedelta(hours=2)))

    async def prune() -> None:
        top = first_id(await hf.store.run(clock()) + timedelta(hours=1))
        hour = timedelta(hours=1)
        for remove in (prune_runs, prune_deliveries, prune_messages):
            await hf.store.run(remove(FROM_THE_START, top, hour))

    await prune()
    assert len(await all_of(hf)) == 2
    await run.signal("go")
    await drain(hf)
    assert await run.status() is RunStatus.DONE
    await hf.store.run(travel(timedelta(hours=2)))
    await prune()
    for table in ("workflow_run", "workflow_step", "workflow_signal", "delivery", "message"):
        assert await query(hf, f"select * from {{hf}}{table}") == [], table
