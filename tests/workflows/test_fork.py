"""Forks: a new run that begins at a step of another run."""

from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, MappedStep, NotFound, Refused, RetryPolicy, Step, TerminalError
from holdfast.core.workflows.state import StepState
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.run import RunStatus
from tests.support.worker import all_of, drain, query
from tests.workflows.test_retry import Order

ONCE = RetryPolicy.none()


async def states(hf: Holdfast, run: Any) -> dict[str, StepState]:
    return {step.name: step.state for step in (await hf.store.run(workflow_run(run.id))).steps}


async def test_a_fork_runs_a_step_and_those_after_it_with_the_results_before_it(hf: Holdfast) -> None:
    order = Order(hf)
    run = await order.flow.using(key="one").start()
    await drain(hf)
    for step, again in {
        "left": ["left", "join", "last"],
        "join": ["join", "last"],
        "first": ["first", "left", "right", "join", "last"],
    }.items():
        order.ran.clear()
        fork = await run.fork(from_=step)
        assert fork.created
        assert fork.id != run.id
        assert await fork.status() is RunStatus.RUNNING
        await drain(hf)
        assert sorted(order.ran) == sorted([*again, *(f"{name} artifact" for name in again)])
        assert await fork.result() == "last"
        assert set((await states(hf, fork)).values()) == {StepState.DONE}
        shown = (await hf.store.run(workflow_run(fork.id))).run
        assert (shown.forked_from, shown.forked_step, shown.key, shown.version) == (run.id, step, None, 1)
    forks = (await hf.store.run(workflow_run(run.id))).forks
    assert [(one.forked_step, one.status) for one in forks] == [
        (step, RunStatus.DONE) for step in ("first", "join", "left")
    ]
    assert await run.result() == "last"


async def test_a_fork_sent_twice_makes_one_run_and_another_use_of_its_key_is_refused(hf: Holdfast) -> None:
    order = Order(hf)
    run, other = await order.flow.using(key="taken").start(), await order.flow.start()
    await drain(hf)
    order.ran.clear()
    first = await run.fork(from_="join", key="k")
    again = run.sync.fork(from_="join", key="k")
    assert (again.id, again.created) == (first.id, False)
    await drain(hf)
    assert (await run.fork(from_="join", key="k")).id == first.id
    for wrong, step, key in ((run, "left", "k"), (other, "join", "k"), (run, "join", "taken")):
        with pytest.raises(Refused, match="use another key"):
            await wrong.fork(from_=step, key=key)
    assert order.ran == ["join artifact", "join", "last artifact", "last"]
    assert await query(hf, "select count(*) from {hf}workflow_run") == [(3,)]


async def test_a_fork_that_cannot_begin_is_refused_and_stores_nothing(hf: Holdfast) -> None:
    order = Order(hf, "right")
    run = await order.flow.start()
    await drain(hf)
    before = (
        await query(hf, "select count(*) from {hf}message"),
        await query(hf, "select count(*) from {hf}workflow_step"),
    )
    for step, text in {
        "joint": "it is unknown; did you mean join",
        "join": "it is not reached yet: step right is not done",
        "last": "it is not reached yet: step right is not done",
    }.items():
        with pytest.raises(Refused, match=text):
            await run.fork(from_=step)
    with pytest.raises(NotFound):
        await order.flow.run(uuid4()).fork(from_="first")
    with pytest.raises(NotFound):
        await hf.workflow("other").run(run.id).fork(from_="first")
    await query(hf, "update {hf}workflow_run set version = 7")
    with pytest.raises(Refused, match="it is of version 7, whose steps are not stored; start a worker"):
        await run.fork(from_="first")
    assert before == (
        await query(hf, "select count(*) from {hf}message"),
        await query(hf, "select count(*) from {hf}workflow_step"),
    )


async def test_a_fork_of_a_blocked_run_ends_while_its_origin_stays_blocked(hf: Holdfast) -> None:
    order = Order(hf, "right")
    run = await order.flow.start()
    await drain(hf)
    order.broken = None
    order.ran.clear()
    fork = await run.fork(from_="right")
    await drain(hf)
    assert order.ran == ["right artifact", "right", "join artifact", "join", "last artifact", "last"]
    assert await fork.result() == "last"
    assert (await states(hf, run))["right"] is StepState.BLOCKED
    order.ran.clear()
    # Steps of other branches that are not done run in the fork too.
    await query(hf, f"update {{hf}}workflow_step set done_at = null where name = 'left' and run_id = '{run.id}'")
    fork = await run.fork(from_="right")
    await drain(hf)
    assert sorted(name for name in order.ran if " " not in name) == ["join", "last", "left", "right"]
    assert await fork.result() == "last"


async def test_a_fork_starts_its_own_items_and_child_and_waits_for_its_own_signal_and_trigger(hf: Holdfast) -> None:
    child, flow, ran = hf.workflow("child"), hf.workflow("flow"), list[str]()

    @child.step
    async def bill(ctx: Step, n: int) -> str:
        ran.append("bill")
        return f"{n}"

    @flow.step(mapped=True)
    async def resize(ctx: MappedStep, item: int) -> int:
        ran.append(f"resize {item}")
        return item * 2

    @flow.step
    async def images(ctx: Step, n: int) -> list[int]:
        return await ctx.map(resize, range(n))

    @flow.step(after=images)
    async def invoice(ctx: Step, n: int) -> str:
        return f"{await ctx.wait('go', int)} {await ctx.child(child, n)}"

    @flow.step(after=invoice, manual=True)
    async def ship(ctx: Step, images: list[int], invoice: str) -> str:
        return f"{images} {invoice}"

    run = await flow.start(2)
    await run.signal("go", 1)
    await run.trigger("ship")
    await drain(hf)
    assert await run.result() == "[0, 2] 1 2"
    with pytest.raises(Refused, match="it is a step for the items of a map; fork from the step that calls"):
        await run.fork(from_="resize")
    ran.clear()
    late, early, last = [await run.fork(from_=step) for step in ("invoice", "images", "ship")]
    await drain(hf)
    assert sorted(ran) == ["resize 0", "resize 1"]
    assert (await states(hf, late))["invoice"] is StepState.WAITING
    for fork, value in ((late, 7), (early, 8)):
        await fork.signal("go", value)
        await fork.trigger("ship")
    await last.trigger("ship")
    await drain(hf)
    assert [await one.result() for one in (late, early, last, run)] == [
        "[0, 2] 7 2",
        "[0, 2] 8 2",
        "[0, 2] 1 2",
        "[0, 2] 1 2",
    ]
    assert ran.count("bill") == 2
    # A fork of a child has no parent: its end is reported to no run.
    ((bill_id,),) = await query(hf, "select id from {hf}workflow_run where name = 'child' order by id limit 1")
    alone = await child.run(bill_id).fork(from_="bill")
    await drain(hf)
    assert (await hf.store.run(workflow_run(alone.id))).run.parent_run is None
    assert await alone.result() == "2"


async def test_a_failed_fork_undoes_only_the_steps_that_it_ran_and_undone_steps_run_again(hf: Holdfast) -> None:
    flow, log, declined = hf.workflow("trip"), list[str](), [True]

    def undo(name: str) -> Any:
        async def cancel(ctx: Step) -> None:
            log.append(f"undo {name}")

        return cancel

    @flow.step(undo=undo("flight"))
    async def flight(ctx: Step) -> str:
        log.append("flight")
        return "LH1"

    @flow.step(after=flight, undo=undo("hotel"))
    async def hotel(ctx: Step, flight: str) -> str:
        log.append(f"hotel {flight}")
        return "H"

    @flow.step(after=hotel, retry=ONCE)
    async def pay(ctx: Step, flight: str, hotel: str) -> str:
        if declined[0]:
            raise TerminalError("declined")
        return flight + hotel

    run = await flow.start()
    await drain(hf)
    assert log == ["flight", "hotel LH1", "undo hotel", "undo flight"]
    declined[0] = False
    log.clear()
    again = await run.fork(from_="pay")
    await drain(hf)
    assert log == ["flight", "hotel LH1"]
    assert await again.result() == "LH1H"
    declined[0] = True
    log.clear()
    fork = await again.fork(from_="hotel")
    await drain(hf)
    assert log == ["hotel LH1", "undo hotel"]
    assert (await fork.status(), await again.status()) == (RunStatus.FAILED, RunStatus.DONE)
    declined[0] = False
    await fork.retry()
    await drain(hf)
    assert log == ["hotel LH1", "undo hotel", "hotel LH1"]
    assert await fork.result() == "LH1H"
    await query(hf, f"update {{hf}}workflow_run set status = 'compensating' where id = '{run.id}'")
    with pytest.raises(Refused, match="being compensated; wait until its undo steps are done"):
        await run.fork(from_="pay")
    await query(hf, f"update {{hf}}workflow_run set status = 'failed' where id = '{run.id}'")


async def test_a_fork_exists_if_and_only_if_the_transaction_of_its_caller_commits(hf: Holdfast, dsn: str) -> None:
    from tests.workflows.chaos_worker import connect

    order = Order(hf)
    run = await order.flow.start()
    await drain(hf)
    with closing(connect(dsn)) as conn:
        lost = run.sync.fork(from_="last", conn=conn)
        conn.rollback()
        kept = run.sync.fork(from_="last", conn=conn)
        conn.commit()
    await drain(hf)
    assert await kept.result() == "last"
    with pytest.raises(NotFound):
        await lost.status()
    assert [d for d in await all_of(hf) if d.message_id == lost.id] == []
