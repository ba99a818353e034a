"""Results that another version of a workflow stored are converted when they are read."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, RetryPolicy, Step, WorkflowFailed
from holdfast.app.workflows.workflow import Workflow
from holdfast.core.workflows.upcasts import ResultUpcasts
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.run import RunStatus
from tests.support.apps import MakeApp
from tests.support.worker import all_of, drain, query
from tests.workflows.test_undo import _effects, write

Slot = dict[str, int]


def first_version(hf: Holdfast) -> Workflow:
    """Its results are numbers: reserve, then charge, which waits, then items and ship."""
    order = hf.workflow("order")

    @order.step
    async def reserve() -> int:
        return 7

    @order.step(after=reserve)
    async def charge(ctx: Step, reserve: int) -> int:
        return reserve + await ctx.wait("go", int)

    @order.step(mapped=True)
    async def pack(n: int) -> int:
        return n

    @order.step(after=charge)
    async def ship(ctx: Step, reserve: int, charge: int) -> int:
        packed = await ctx.map(pack, [1, 2])
        return reserve + charge + sum(packed) + await ctx.wait("sent", int)

    return order


def second_version(hf: Holdfast, dsn: str, ran: list[object], version: int = 2) -> Workflow:
    """Its results are objects, except that of charge, which stays a number."""
    order = hf.workflow("order", version=version, compatible_with=tuple(range(1, version)))

    @order.step
    async def reserve() -> Slot:
        return {"slot": 7}

    @order.step(after=reserve)
    def charge(ctx: Step, reserve: Slot) -> int:
        number = reserve["slot"] + ctx.sync.wait("go", int)
        if number == 90:
            write(dsn, ctx, fail=False)
        return number

    @order.step(mapped=True)
    async def pack(n: int) -> Slot:
        return {"packed": n}

    @order.step(after=charge)
    async def ship(ctx: Step, reserve: Slot, charge: Any) -> Slot:
        packed = await ctx.map(pack, [1, 2])
        ran.append((reserve, charge, packed))
        return {"sent": await ctx.wait("sent", int)}

    @order.upcast(reserve, from_version=1)
    def reserve_2(stored: int) -> Slot:
        return {"slot": stored}

    @order.upcast("pack", from_version=1)
    def pack_2(stored: int) -> Slot:
        return {"packed": stored}

    @order.upcast(ship, from_version=1)
    def ship_2(stored: int) -> Slot:
        return {"sent": stored}

    if version == 3:

        @order.upcast("ship", from_version=2)
        def ship_3(stored: Slot) -> Slot:
            return {"all": stored["sent"]}

    return order


async def test_a_later_step_and_the_result_of_the_run_get_converted_results(make_app: MakeApp, dsn: str) -> None:
    old, ran = make_app(), list[object]()
    order = first_version(old)
    done, waiting, packing = [await order.start() for _ in range(3)]
    await done.signal("go", 1)
    await done.signal("sent", 1)
    await packing.signal("go", 1)
    await drain(old)
    assert await done.result(timeout="5s") == 19
    new = make_app()
    renewed = second_version(new, dsn, ran)
    # The last step of a run that the old code ended.
    assert await renewed.run(done.id).result(timeout="5s") == {"sent": 19}
    for run in (waiting, packing):
        await run.signal("go", 1)
        await run.signal("sent", 5)
    await drain(new)
    # The first was packed by the new code, which needs no conversion, the second by the old code.
    expected = ({"slot": 7}, 8, [{"packed": 1}, {"packed": 2}])
    assert ran[-2:] == [expected, expected]
    assert await renewed.run(waiting.id).result(timeout="5s") == {"sent": 5}
    shown = {one.name: one for one in (await new.store.run(workflow_run(waiting.id))).steps}
    assert (shown["reserve"].result_version, shown["charge"].result_version, shown["ship"].result_version) == (
        None,
        None,
        2,
    )
    newest = second_version(make_app(), dsn, ran, version=3)
    # By two upcasts, by one, and none for a run that version 2 started.
    assert await newest.run(done.id).result(timeout="5s") == {"all": 19}
    assert await newest.run(packing.id).result(timeout="5s") == {"all": 5}


async def test_a_step_that_is_completed_in_a_transaction_keeps_its_form(make_app: MakeApp, dsn: str) -> None:
    old, ran = make_app(), list[object]()
    run = await first_version(old).start()
    await drain(old)
    new = make_app()
    order = second_version(new, dsn, ran)

    @order.upcast("charge", from_version=1)
    def charge_2(stored: int) -> str:
        raise AssertionError("the new code stored it")

    await run.signal("go", 83)
    await run.signal("sent", 5)
    await drain(new)
    assert await _effects(dsn) == 1
    assert await order.run(run.id).result(timeout="5s") == {"sent": 5}
    assert ran[-1] == ({"slot": 7}, "committed", [{"packed": 1}, {"packed": 2}])


async def test_older_code_leaves_results_of_newer_code_to_newer_workers(make_app: MakeApp, dsn: str) -> None:
    old = make_app()
    run = await first_version(old).start()
    new = make_app()
    second_version(new, dsn, [])
    await drain(new)
    await run.signal("go", 1)
    await drain(old, idle_limit=timedelta(seconds=1))
    (charge,) = await all_of(old, "order/charge")
    assert (charge.status.value, charge.attempts) == ("pending", 0)
    # A result whose form did not change is read by both.
    await query(old, "update {hf}delivery set run_at = created_at where status = 'pending'")
    await drain(new)
    rows = await query(
        old, "select name, version from {hf}workflow_step where name in ('reserve', 'charge') order by 1"
    )
    assert [tuple(row) for row in rows] == [("charge", None), ("reserve", 2)]
    fork = await run.fork(from_="charge")
    rows = await query(old, f"select version from {{hf}}workflow_step where run_id = '{fork.id}' and name = 'reserve'")
    assert [tuple(row) for row in rows] == [(2,)]


async def test_a_parent_gets_the_converted_result_of_its_child_and_a_misfit_says_what_to_do(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()

    def child(hf: Holdfast, version: int) -> Workflow:
        flow = hf.workflow("child", version=version)

        @flow.step
        async def only() -> int:
            return 1

        if version == 2:
            flow.upcast(only, from_version=1)(lambda stored: {"n": stored})
        return flow

    def parent(hf: Holdfast, inner: Workflow, returns: Any) -> Workflow:
        flow = hf.workflow("parent", version=1 if returns is int else 2, compatible_with=() if returns is int else (1,))

        async def first() -> Any:
            return 1

        first.__annotations__["return"] = returns
        flow.step(first)

        @flow.step(after=first, retry=RetryPolicy.none())
        async def second(ctx: Step) -> Any:
            result = await ctx.child(inner)
            await ctx.wait("go")
            return result

        async def last(first: Any, second: Any) -> Any:
            return second

        last.__annotations__["first"] = returns
        flow.step(after=second, retry=RetryPolicy.none())(last)
        return flow

    run = await parent(old, child(old, 1), int).start()
    await drain(old)
    renewed = parent(new, child(new, 2), dict[str, int])
    await run.signal("go")
    await drain(new)
    assert (await run.status()) is RunStatus.FAILED
    with pytest.raises(WorkflowFailed, match=r"upcast\('first', from_version=1\); then retry the run"):
        await run.result(timeout="5s")
    shown = {one.name: one.result for one in (await new.store.run(workflow_run(run.id))).steps}
    assert str(shown["second"]).replace(" ", "") == '{"n":1}'
    renewed.upcast("first", from_version=1)(lambda stored: {"n": stored})
    await run.retry()
    await drain(new)
    assert await renewed.run(run.id).result(timeout="5s") == {"n": 1}


async def awaited(stored: object) -> object:
    return stored


@pytest.mark.parametrize(
    ("version", "step", "from_version", "function", "remedy"),
    [
        (1, "a", 1, str, "at version 1, so raise version= of the workflow first"),
        (3, "a", 3, print, "at version 3, so give 1 to 2"),
        (3, "a", 0, print, "so give 1 to 2"),
        (3, "a", True, print, "so give 1 to 2"),
        (3, "aa", 1, print, "upcast of 'aa', which is not declared above it; did you mean a?"),
        (3, len, 1, print, "upcast of 'len', which is not a step of this workflow"),
        (3, "a", 1, awaited, "give a plain function"),
        (3, "a", 1, dict, "give a plain function"),
        (3, "a", 1, lambda: None, "must take one argument, the stored value"),
        (3, "b", 2, print, "is declared twice; keep one of them"),
    ],
)
def test_an_upcast_that_cannot_work_is_refused(
    version: int, step: Any, from_version: int, function: Any, remedy: str
) -> None:
    flow = Holdfast("sqlite:///unused.db").workflow("flow", version=version)

    @flow.step
    def a() -> None: ...

    @flow.step
    def b() -> None: ...

    if version == 3:
        flow.upcast(b, from_version=2)(print)
    with pytest.raises(ConfigurationError, match=remedy):
        flow.upcast(step, from_version=from_version)(function)


def test_upcasts_start_at_the_stored_form_and_skip_versions_without_one() -> None:
    known = ResultUpcasts("flow", 4)
    known.add("a", 1, lambda value: [*value, 2])
    known.add("a", 3, lambda value: [*value, 4])
    assert [known.read("a", "[0]", form) for form in (1, 2, 3, 4)] == [[0, 2, 4], [0, 4], [0, 4], [0]]
    assert [known.stored_version("a", run) for run in (1, 3, 4)] == [4, 4, None]
    assert known.stored_version("b", 1) is None
