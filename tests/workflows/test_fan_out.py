"""Steps that start other work: one run of a step per item, and child runs."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    ConfigurationError,
    Holdfast,
    MappedStep,
    NotFound,
    RetryPolicy,
    Snooze,
    Step,
    TerminalError,
    WorkflowFailed,
)
from holdfast.engine.workflows.settler import new_events
from holdfast.stores.workflows.query import workflow_run
from holdfast.stores.workflows.retry import retry_run
from holdfast.stores.workflows.run import RunStatus
from tests.support.worker import all_of, drain, query

ONCE = RetryPolicy.none()
NOW = timedelta(0)


def resizing(hf: Holdfast, broken: list[int], ran: list[int]) -> Any:
    flow = hf.workflow("flow")

    @flow.step(mapped=True, retry=ONCE)
    async def resize(ctx: MappedStep, image: int, factor: int) -> int:
        ran.append(image)
        assert ctx.key.startswith(f"{ctx.run_id}:resize:album#")
        assert ctx.key.endswith(f":{ctx.item}")
        if image in broken:
            raise ValueError(f"image {image} is broken")
        return image * factor

    @flow.step
    async def album(ctx: Step, images: list[int], factor: int) -> list[int]:
        first: list[int] = await ctx.map(resize, images)
        assert await ctx.map(resize, []) == []
        second: list[int] = await ctx.map(resize, first[:2])
        return [*first, *second]

    @flow.step(after=album)
    def total(album: list[int]) -> int:
        return sum(album)

    return flow


async def test_a_step_runs_another_once_per_item_and_gets_the_results_in_order(hf: Holdfast) -> None:
    ran: list[int] = []
    run = await resizing(hf, [], ran).start([3, 1, 2], factor=10)
    await drain(hf)
    assert await run.result() == 60 + 400
    assert sorted(ran) == [1, 2, 3, 10, 30]
    shown = await hf.store.run(workflow_run(run.id))
    assert sorted((step.name, step.occurrence) for step in shown.steps) == [
        ("album", 0), ("resize", 0), ("resize", 0), ("resize", 1), ("resize", 1), ("resize", 2), ("total", 0),
    ]  # fmt: skip


async def test_a_thousand_items_join_once(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step(mapped=True)
    async def square(n: int) -> int:
        return n * n

    @flow.step
    async def squares(ctx: Step, count: int) -> int:
        return sum(await ctx.map(square, range(count)))

    @flow.step(after=squares)
    async def after(squares: int) -> int:
        return squares

    run = await flow.start(1000)
    await drain(hf, concurrency=50)
    assert await run.result() == sum(n * n for n in range(1000))
    assert len(await all_of(hf, "flow/after")) == 1


async def test_an_item_may_be_annotated_with_the_signal_that_it_returns(hf: Holdfast) -> None:
    flow, seen = hf.workflow("flow"), set[int]()

    @flow.step(mapped=True)
    async def square(n: int) -> int | Snooze:
        if n in seen:
            return n * n
        seen.add(n)
        return Snooze("10ms")

    @flow.step
    async def squares(ctx: Step) -> int:
        return sum(await ctx.map(square, [1, 2, 3]))

    run = await flow.start()
    await drain(hf)
    assert await run.result() == 14


@dataclass(frozen=True)
class Thumbnail:
    width: int


def measuring(hf: Holdfast, values: list[object], read: list[object]) -> Any:
    flow = hf.workflow("measures")

    @flow.step(mapped=True)
    async def measure(n: int) -> Thumbnail:
        return values[n]  # type: ignore[return-value]

    @flow.step(retry=ONCE)
    async def all_of_them(ctx: Step) -> None:
        read.extend(await ctx.map(measure, range(len(values))))

    return flow


async def test_the_results_of_items_have_the_type_of_their_step(hf: Holdfast) -> None:
    read: list[object] = []
    await measuring(hf, [Thumbnail(n) for n in range(3)], read).start()
    await drain(hf)
    assert read == [Thumbnail(0), Thumbnail(1), Thumbnail(2)]


async def test_a_result_of_an_item_that_does_not_fit_is_named(hf: Holdfast) -> None:
    run = await measuring(hf, [Thumbnail(1), {"width": "wide"}], []).start()
    await drain(hf)
    with pytest.raises(WorkflowFailed, match=r"the result of step measure must be .*Thumbnail"):
        await run.result()


async def test_a_dead_item_fails_the_run_and_a_retry_runs_only_that_item_again(hf: Holdfast) -> None:
    broken, ran = [2], list[int]()
    run = await resizing(hf, broken, ran).start([1, 2, 3], factor=1)
    await drain(hf)
    with pytest.raises(WorkflowFailed, match="image 2 is broken"):
        await run.result()
    done = [int(n) for (n,) in await query(hf, "select count(*) from {hf}workflow_step where done_at is not null and item is not null")]  # fmt: skip
    broken.clear()
    ran.clear()
    await hf.store.run(retry_run(run.id, None, new_events()))
    await drain(hf)
    assert await run.result() == 6 + 3
    assert len(ran) == 3 - done[0] + 2


async def test_what_is_not_a_mapped_step_is_refused(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    async def plain(n: int) -> None: ...

    @flow.step(mapped=True)
    async def item(ctx: MappedStep, n: int) -> None:
        assert not any(hasattr(ctx, name) for name in ("wait", "sleep", "step", "map", "child"))
        assert not hasattr(ctx.sync, "wait")

    async def waits(ctx: Step, n: int) -> None: ...

    async def of_an_item(ctx: MappedStep) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot wait or remember values; annotate its context as MappedStep"):
        flow.step(mapped=True)(waits)
    with pytest.raises(ConfigurationError, match="which only mapped steps get; annotate its context as Step"):
        flow.step(of_an_item)
    with pytest.raises(ConfigurationError, match="takes a MappedStep, which only steps of a workflow get"):
        hf.job()(of_an_item)

    @flow.step
    async def wrong(ctx: Step) -> None:
        with pytest.raises(
            ConfigurationError, match=r"'plain', which is not a mapped step; declare it with @flow.step"
        ):
            await ctx.map(plain, [1])

    @flow.step(after=wrong)
    async def calls(ctx: Step) -> None:
        await ctx.map(item, [1])

    with pytest.raises(ConfigurationError, match=r"runs only through ctx\.map"):
        flow.step(mapped=True, after=wrong)
    with pytest.raises(ConfigurationError, match="a mapped step has no place in the order"):

        @flow.step(after=item)
        async def late() -> None: ...

    run = await flow.start()
    await drain(hf)
    assert await run.result() is None


def parent_and_child(hf: Holdfast, started: list[str]) -> tuple[Any, Any]:
    invoice = hf.workflow("invoice")

    @invoice.step(retry=ONCE)
    async def write(ctx: Step, order: str) -> str:
        started.append(order)
        if order == "bad":
            raise ValueError("no address")
        if order == "slow":
            await ctx.wait("go")
        return f"invoice for {order}"

    parent = hf.workflow("parent")

    @parent.step
    async def bill(ctx: Step, order: str) -> str:
        first: str = await ctx.child(invoice, order)
        second: str = await ctx.child(invoice, f"{order} again")
        return f"{first}, {second}"

    return parent, invoice


async def test_a_step_waits_for_its_child_runs_and_gets_their_results(hf: Holdfast) -> None:
    started: list[str] = []
    parent, _ = parent_and_child(hf, started)
    run = await parent.start("lamp")
    await drain(hf)
    assert await run.result() == "invoice for lamp, invoice for lamp again"
    assert started == ["lamp", "lamp again"]
    shown = await hf.store.run(workflow_run(run.id))
    assert [(child.workflow, child.status) for child in shown.children] == [("invoice", RunStatus.DONE)] * 2


async def test_a_child_that_fails_fails_its_parent(hf: Holdfast) -> None:
    parent, _ = parent_and_child(hf, [])
    run = await parent.start("bad")
    await drain(hf)
    with pytest.raises(WorkflowFailed, match="no address"):
        await run.result()


async def test_a_cancelled_parent_cancels_its_children(hf: Holdfast) -> None:
    parent, invoice = parent_and_child(hf, [])
    run = await parent.start("slow")
    await drain(hf, idle_limit=NOW)
    await run.cancel("not needed")
    await drain(hf, idle_limit=NOW)
    (child,) = (await hf.store.run(workflow_run(run.id))).children
    assert child.status is RunStatus.CANCELLED
    assert child.reason == f"parent run {run.id} was cancelled"
    assert await invoice.run(child.id).status() is RunStatus.CANCELLED


async def test_a_child_that_is_cancelled_fails_its_parent(hf: Holdfast) -> None:
    parent, invoice = parent_and_child(hf, [])
    run = await parent.start("slow")
    await drain(hf, idle_limit=NOW)
    (child,) = (await hf.store.run(workflow_run(run.id))).children
    await invoice.run(child.id).cancel("wrong address")
    await drain(hf, idle_limit=NOW)
    with pytest.raises(WorkflowFailed, match="wrong address"):
        await run.result()


async def test_a_child_that_is_retried_wakes_its_parent_when_it_ends_again(hf: Holdfast) -> None:
    broken = [True]
    invoice, order = hf.workflow("invoice"), hf.workflow("order")

    @invoice.step
    async def send(ctx: Step) -> str:
        if broken[0]:
            raise TerminalError("no address")
        await ctx.wait("printed")
        return "sent"

    @order.step
    async def ship(ctx: Step) -> str:
        return f"invoice {await ctx.child(invoice)}"

    run = await order.start()
    await drain(hf, idle_limit=NOW)
    (listed,) = (await hf.store.run(workflow_run(run.id))).children
    child = invoice.run(listed.id)
    broken[0] = False
    await child.retry()
    await drain(hf, idle_limit=NOW)
    await run.retry()
    await drain(hf, idle_limit=NOW)
    assert await run.status() is RunStatus.RUNNING
    await child.signal("printed")
    await drain(hf, idle_limit=NOW)
    assert await run.result(timeout=0) == "invoice sent"


def test_a_text_that_is_not_the_id_of_a_run_is_not_found(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match="an id is a UUID"):
        hf.workflow("order").run("order:7")


async def test_a_failed_parent_cancels_its_children(hf: Holdfast) -> None:
    _, invoice = parent_and_child(hf, [])
    flow = hf.workflow("flow")

    @flow.step
    async def bill(ctx: Step) -> None:
        await ctx.child(invoice, "slow")

    @flow.step(manual=True, retry=ONCE)
    async def ship() -> None:
        raise ValueError("no ship")

    run = await flow.start()
    await drain(hf, idle_limit=NOW)
    await run.trigger("ship")
    await drain(hf, idle_limit=NOW)
    (child,) = (await hf.store.run(workflow_run(run.id))).children
    assert (child.status, child.reason) == (RunStatus.CANCELLED, f"parent run {run.id} failed")


class Mailing:
    """A parent with one child run, which fails while it is `broken`, and waits for a signal while it is `slow`."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf, self.broken, self.slow, self.sent = hf, True, False, 0
        self.letter, self.parent = hf.workflow("letter"), hf.workflow("parent")

        @self.letter.step(retry=ONCE)
        async def send(ctx: Step) -> int:
            if self.broken:
                raise ValueError("no address")
            if self.slow:
                await ctx.wait("go")
            self.sent += 1
            return self.sent

        @self.parent.step(retry=ONCE)
        async def mail(ctx: Step) -> int:
            return int(await ctx.child(self.letter))

    async def failed(self) -> Any:
        run = await self.parent.start()
        await drain(self.hf, idle_limit=NOW)
        assert await run.status() is RunStatus.FAILED
        self.broken = False
        return run


async def test_a_retry_of_a_run_starts_a_failed_child_again_and_keeps_one_that_is_done(hf: Holdfast) -> None:
    mailing = Mailing(hf)
    run = await mailing.failed()
    await run.retry()
    await drain(hf, idle_limit=NOW)
    assert await run.result() == 1
    assert len((await hf.store.run(workflow_run(run.id))).children) == 2


async def test_a_retry_from_a_step_that_was_done_starts_another_child(hf: Holdfast) -> None:
    mailing = Mailing(hf)
    mailing.broken = False
    run = await mailing.parent.start()
    await drain(hf, idle_limit=NOW)
    assert await run.result() == 1
    await run.retry(from_="mail")
    await drain(hf, idle_limit=NOW)
    assert await run.result() == 2
