"""Operators read runs and send commands to them, on each database."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import (
    ConfigurationError,
    Holdfast,
    InvalidPayload,
    KeyConflict,
    NotFound,
    Refused,
    RetryPolicy,
    Step,
    TerminalError,
)
from holdfast.interfaces.console.pages.workflow_graph import run_graph
from holdfast.interfaces.presentation.filters import run_filter
from holdfast.interfaces.presentation.views import dumps
from holdfast.interfaces.presentation.workflows import (
    item_notes,
    next_commands,
    shown_steps,
    step_label,
    step_note,
    timeline,
)
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.stores.workflows.run_page import RunFilter
from holdfast.stores.workflows.stalled_run import stalled_runs
from tests.support.apps import MakeApp
from tests.support.worker import drain, query


def order(hf: Holdfast, broken: list[bool] | None = None) -> Any:
    """reserve, then charge (blocks) and approve (waits for a signal), then pack, then ship by hand."""
    failing = [True] if broken is None else broken
    flow = hf.workflow("order")

    @flow.step
    async def reserve(sku: str) -> dict[str, str]:
        return {"slot": "A1"}

    @flow.step(after=reserve, exhausted="block", retry=RetryPolicy.none())
    async def charge(ctx: Step, sku: str) -> str:
        await ctx.step("session", lambda: "s-1")
        if failing[0]:
            raise TerminalError(f"card refused for {sku}")
        return "paid"

    @flow.step(after=reserve)
    async def approve(ctx: Step) -> object:
        return await ctx.wait("approved")

    @flow.step(after=[charge, approve])
    async def pack() -> str:
        return "box"

    @flow.step(after=pack, manual=True)
    async def ship() -> str:
        return "track-1"

    return flow


def quick(hf: Holdfast, name: str = "quick") -> Any:
    flow = hf.workflow(name)

    @flow.step
    async def only(n: int = 0) -> int:
        if n < 0:
            raise TerminalError("negative")
        return n

    return flow


def states(detail: WorkflowRunDetail) -> dict[str, str]:
    return {step.name: step.state.value for step in detail.steps}


async def test_a_run_is_shown_with_its_steps_notes_and_next_commands(hf: Holdfast) -> None:
    run = await order(hf).using(key="order:1").start("lamp")
    before = await hf.ops.workflow_run(run.id)
    assert states(before) == {"reserve": "queued"} | dict.fromkeys(("charge", "approve", "pack", "ship"), "idle")
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, detail.listed.run.status.value) == ("blocked", "running")
    assert states(detail) == {
        "reserve": "done",
        "charge": "blocked",
        "approve": "waiting",
        "pack": "idle",
        "ship": "idle",
    }
    steps = {step.name: step for step in detail.steps}
    assert json.loads(str(steps["reserve"].result)) == {"slot": "A1"}
    assert step_note(detail, steps["approve"]) == "waits for signal approved"
    assert step_note(detail, steps["pack"]) == "after charge, approve"
    assert [one.name for one in detail.remembered if one.done_at] == ["charge/session"]
    titles = [event.title for event in timeline(detail)]
    assert titles[0] == "Started"
    assert {"reserve: done", "charge: blocked", "charge: remembered session", "approve: last claimed"} <= set(titles)
    commands = dict(next_commands(detail))
    assert commands["send signal approved"] == f"holdfast workflows signal {run.id} approved --payload '<JSON>'"
    assert commands["retry the blocked steps"] == f"holdfast workflows retry {run.id}"
    assert commands["trigger ship"] == f"holdfast workflows trigger {run.id} ship"
    shown = json.loads(dumps(detail))
    assert (shown["state"], shown["payload"], shown["steps"][0]["result"]) == (
        "blocked",
        {"sku": "lamp"},
        {"slot": "A1"},
    )


async def test_a_result_that_does_not_come_names_the_blocked_step_and_the_next_command(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    with pytest.raises(
        TimeoutError, match=f"is running after 0; see its steps with `holdfast workflows show {run.id}`"
    ):
        await run.result(timeout=0)
    await drain(hf)
    with pytest.raises(TimeoutError, match=f"is blocked at step charge; .* `holdfast workflows retry {run.id}`"):
        await run.result(timeout=0)


async def test_a_run_goes_from_blocked_to_done_by_commands_that_are_stored_first(hf: Holdfast) -> None:
    broken = [True]
    run = await order(hf, broken).start("lamp")
    await drain(hf)
    assert await hf.ops.signal_run(run.id, signal="approved", payload={"by": "ada"}, key="s", actor="ada", reason="ok")
    assert not await hf.ops.signal_run(run.id, signal="approved", payload={"by": "ada"}, key="s", actor="ada")
    with pytest.raises(KeyConflict):
        await hf.ops.signal_run(run.id, signal="approved", payload={"by": "bob"}, key="s", actor="ada")
    assert await hf.ops.trigger_run(run.id, step="ship", key="t", actor="ada")
    assert not await hf.ops.trigger_run(run.id, step="ship", key="t", actor="ada")
    stored = [str(type) for (type,) in await query(hf, "select type from {hf}message order by id")]
    assert sorted(stored)[-2:] == ["workflow.step.blocked", "workflow.trigger"]
    assert (await hf.ops.workflow_run(run.id)).signals == ()
    broken[0] = False
    assert await hf.ops.retry_run(run.id, actor="ada", reason="new card")
    replaying = await hf.ops.workflow_run(run.id)
    assert states(replaying)["charge"] == "replaying"
    assert not replaying.listed.is_blocked
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert detail.listed.state == "done"
    assert set(states(detail).values()) == {"done"}
    assert [(one.name, one.consumed_by) for one in detail.signals] == [("approved", "approve/wait:approved#0")]
    assert [(one.action, one.actor, one.reason) for one in detail.audit] == [
        ("retry", "ada", "new card"),
        ("trigger", "ada", None),
        ("signal", "ada", "ok"),
    ]
    assert not await hf.ops.retry_run(str(run.id), actor="ada")


async def test_a_command_that_was_applied_may_be_repeated_after_the_end_of_its_run(hf: Holdfast) -> None:
    run = await order(hf, [False]).start("lamp")
    await drain(hf)
    signal = hf.ops.signal_run
    assert await signal(run.id, signal="approved", payload={"by": "ada"}, key="s", actor="ada")
    assert await hf.ops.trigger_run(run.id, step="ship", key="t", actor="ada")
    await drain(hf)
    assert (await hf.ops.workflow_run(run.id)).listed.state == "done"
    assert not await signal(run.id, signal="approved", payload={"by": "ada"}, key="s", actor="ada")
    assert not await hf.ops.trigger_run(run.id, step="ship", key="t", actor="ada")
    with pytest.raises(KeyConflict):
        await signal(run.id, signal="approved", payload={"by": "bob"}, key="s", actor="ada")
    with pytest.raises(Refused, match="it is done"):
        await signal(run.id, signal="approved", payload={"by": "ada"}, key="other", actor="ada")
    with pytest.raises(Refused, match="it is done"):
        await signal(run.id, signal="approved", payload={"by": "ada"}, actor="ada")


async def test_a_signal_with_a_misspelled_name_is_refused_with_the_name_that_the_run_waits_for(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    await drain(hf)
    with pytest.raises(Refused, match=r"not waiting for aproved; did you mean approved\?"):
        await hf.ops.signal_run(run.id, signal="aproved", actor="ada")
    assert await query(hf, "select id from {hf}message where type = 'workflow.signal'") == []
    for name, force in (("aproved", True), ("approved2", False), ("shipped", False), ("approved", False)):
        assert await hf.ops.signal_run(run.id, signal=name, force=force, actor="ada")


async def test_a_cancelled_run_refuses_further_commands(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    await drain(hf)
    assert await hf.ops.cancel_run(run.id, actor="ada", reason="wrong customer")
    assert (await hf.ops.workflow_run(run.id)).listed.state == "blocked"
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, detail.listed.run.reason) == ("cancelled", "wrong customer")
    for command in (
        hf.ops.cancel_run(run.id, actor="ada"),
        hf.ops.signal_run(run.id, signal="approved", actor="ada"),
        hf.ops.trigger_run(run.id, step="ship", actor="ada"),
    ):
        with pytest.raises(Refused, match="it is cancelled"):
            await command


async def test_a_failed_run_is_retried_and_a_done_one_from_a_step(hf: Holdfast) -> None:
    broken = [True]
    flow = hf.workflow("flow")

    @flow.step
    async def first() -> int:
        return 1

    @flow.step(after=first, retry=RetryPolicy.none())
    async def second() -> int:
        if broken[0]:
            raise TerminalError("broken")
        return 2

    run = await flow.start()
    await drain(hf)
    assert (await hf.ops.workflow_run(run.id)).listed.state == "failed"
    broken[0] = False
    assert await hf.ops.retry_run(run.id, actor="ada", reason="fixed")
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, states(detail)) == ("done", {"first": "done", "second": "done"})
    assert not await hf.ops.retry_run(run.id, actor="ada")
    assert await hf.ops.retry_run(run.id, step="second", actor="ada")
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, [one.action for one in detail.audit]) == ("done", ["retry", "retry"])


async def test_a_run_that_is_compensated_is_blocked_only_by_its_undo_steps(hf: Holdfast) -> None:
    broken = [True]
    flow = hf.workflow("trip")

    async def leave(ctx: Step) -> None:
        await ctx.wait("leave")
        if broken[0]:
            raise TerminalError("no refund")

    @flow.step(undo=leave)
    async def hotel() -> None: ...

    @flow.step(after=hotel)
    async def pay() -> None:
        raise TerminalError("declined")

    run = await flow.start()
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, states(detail)["pay"]) == ("compensating", "dead")
    assert "retry the blocked steps" not in dict(next_commands(detail))
    assert (await hf.ops.workflow_runs(RunFilter(state="blocked"))).items == []
    assert [one.state for one in (await hf.ops.workflow_runs()).items] == ["compensating"]
    assert (await hf.store.run(stalled_runs(timedelta(days=1)))).blocked == []
    with pytest.raises(Refused, match="wait until its undo steps are done"):
        await hf.ops.retry_run(run.id, actor="ada")
    await run.signal("leave")
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, states(detail)["hotel:undo"], states(detail)["pay"]) == ("blocked", "blocked", "dead")
    assert [one.run.id for one in (await hf.ops.workflow_runs(RunFilter(state="blocked"))).items] == [run.id]
    assert [one.step for one in (await hf.store.run(stalled_runs(timedelta(days=1)))).blocked] == ["hotel:undo"]
    broken[0] = False
    assert await hf.ops.retry_run(run.id, actor="ada", reason="fixed")
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, states(detail)["hotel:undo"]) == ("failed", "done")


@pytest.mark.parametrize("count", [30, pytest.param(1100, marks=pytest.mark.long)])
async def test_the_items_of_a_map_are_counted_and_few_of_them_are_shown(hf: Holdfast, count: int) -> None:
    flow = hf.workflow("pictures")

    @flow.step(mapped=True, queue="items", exhausted="block", retry=RetryPolicy.none())
    async def resize(number: int) -> int:
        if number in (7, count - 1):
            raise TerminalError("not a picture")
        return number

    @flow.step
    async def upload(ctx: Step) -> int:
        return len(await ctx.map(resize, range(count)))

    @flow.step(after=upload)
    async def publish() -> None: ...

    run = await flow.start()
    await drain(hf, queues={"default": 10})
    detail = await hf.ops.workflow_run(run.id)
    assert item_notes(detail) == [f"resize of upload: {count:,} queued"]
    assert {step.name: step.state.value for step in detail.steps if step.item_of is None} == {
        "upload": "waiting",
        "publish": "idle",
    }
    await drain(hf, concurrency=100)
    detail = await hf.ops.workflow_run(run.id)
    assert (detail.listed.state, item_notes(detail)) == (
        "blocked",
        [f"resize of upload: 2 blocked, {count - 2:,} done"],
    )
    shown = [step_label(step) for step in shown_steps(detail)]
    assert {"resize #7 of upload", f"resize #{count - 1} of upload", "resize #0 of upload"} <= set(shown)
    assert len(shown) == 22
    assert json.loads(dumps(detail))["items"][0]["states"] == {"blocked": 2, "done": count - 2}
    graph = run_graph(detail)
    assert graph is not None
    (drawn,) = [step for step in graph.steps if step.name == "resize"]
    assert drawn.title == f"resize: blocked, {count - 2:,} of {count:,} items done"


async def test_a_retry_that_a_worker_would_refuse_is_not_stored(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    with pytest.raises(Refused, match="not reached yet; wait for the steps before it"):
        await hf.ops.retry_run(run.id, step="pack", actor="ada")
    assert not await query(hf, "select id from {hf}message where type = 'workflow.retry'")


async def test_wrong_commands_are_refused_with_the_nearest_name(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    with pytest.raises(Refused, match=r"did you mean ship\?"):
        await hf.ops.trigger_run(run.id, step="shp", actor="ada")
    with pytest.raises(Refused, match="not manual"):
        await hf.ops.trigger_run(run.id, step="pack", actor="ada")
    with pytest.raises(Refused, match=r"did you mean charge\?"):
        await hf.ops.retry_run(run.id, step="chrge", actor="ada")
    with pytest.raises(NotFound):
        await hf.ops.cancel_run(uuid4(), actor="ada")
    with pytest.raises(NotFound, match="an id is a UUID"):
        await hf.ops.cancel_run("order:1", actor="ada")
    with pytest.raises(NotFound, match="known: order"):
        await hf.ops.start_run("ordr", {}, actor="ada")
    assert not await query(hf, "select id from {hf}message where type in ('workflow.trigger', 'workflow.cancel')")


async def test_an_operator_starts_a_run_once_per_key(hf: Holdfast) -> None:
    quick(hf)
    await hf.ops.stats()
    await drain(hf)
    first = await hf.ops.start_run("quick", {"n": 7}, key="k", actor="ada", reason="by hand")
    again = await hf.ops.start_run("quick", {"n": 7}, key="k", actor="ada")
    assert (first.created, again.created, first.id) == (True, False, again.id)
    with pytest.raises(KeyConflict):
        await hf.ops.start_run("quick", {"n": 8}, key="k", actor="ada")
    await drain(hf)
    detail = await hf.ops.workflow_run(first.id)
    assert (detail.listed.state, detail.steps[0].result) == ("done", "7")
    assert [(one.action, one.reason) for one in detail.audit] == [("start", "by hand")]


async def test_a_start_by_an_operator_is_refused_without_the_values_that_steps_need(hf: Holdfast) -> None:
    flow = order(hf)

    @flow.step(after="pack", undo=lambda note: None)
    async def bill(customer: str = "ada") -> None: ...

    await drain(hf)
    with pytest.raises(
        InvalidPayload, match=r"\$\.skuu: workflow order has no such parameter; it takes customer, note, sku"
    ):
        await hf.ops.start_run("order", {"skuu": "lamp"}, actor="ada")
    with pytest.raises(InvalidPayload, match=r"\$\.note: workflow order needs this parameter"):
        await hf.ops.start_run("order", {"sku": "lamp"}, actor="ada")
    assert not await query(hf, "select id from {hf}workflow_run")
    assert (await hf.ops.start_run("order", {"sku": "lamp", "note": ""}, actor="ada")).created


async def test_lists_of_runs_are_filtered_and_paged(hf: Holdfast) -> None:
    flow, other = quick(hf), quick(hf, "other")
    ids = [(await flow.using(key=f"k:{n}").start(n)).id for n in range(4)]
    bad = (await flow.start(-1)).id
    same = (await other.using(key="k:other").start(1)).id
    await drain(hf)

    async def found(limit: int = 50, before: Any = None, **wanted: Any) -> list[Any]:
        page = await hf.ops.workflow_runs(RunFilter(**wanted), limit=limit, before=before)
        return [one.run.id for one in page.items]

    # Ids of the same millisecond are in random order.
    assert await found() == sorted([same, bad, *ids], reverse=True)
    assert await found(workflow="quick") == sorted([bad, *ids], reverse=True)
    assert await found(state="failed") == [bad]
    assert await found(workflow="other", state="failed") == []
    assert await found(key="k:1") == [ids[1]]
    assert await found(key="k:1", workflow="other") == []
    assert await found(key="k:9") == []
    assert await found(state="blocked") == []
    now = await hf.ops.now()
    assert await found(since=now - timedelta(hours=1), workflow="quick") == sorted([bad, *ids], reverse=True)
    assert await found(since=now + timedelta(minutes=1)) == []
    assert await found(until=now - timedelta(hours=1)) == []
    first = await hf.ops.workflow_runs(RunFilter(state="done"), limit=2)
    done = sorted([same, *ids], reverse=True)
    assert [one.run.id for one in first.items] == done[:2]
    assert first.next == done[1]
    assert await found(state="done", before=first.next) == done[2:]


async def test_counts_are_by_workflow_and_state(hf: Holdfast) -> None:
    flow = quick(hf)
    quick(hf, "other")
    for n in (-1, 1, 2):
        await flow.start(n)
    await drain(hf)
    await flow.start(3)
    counts = {one.workflow: one for one in await hf.ops.workflows()}
    assert set(counts) == {"quick", "other"}
    one = counts["quick"]
    assert (one.versions, one.running, one.done, one.failed, one.cancelled) == ((1,), 1, 2, 1, 0)
    assert json.loads(dumps(one))["at_least"] == []


async def test_declared_secrets_of_the_start_are_not_shown(make_app: MakeApp) -> None:
    hf = make_app(redact=["card"])
    flow = hf.workflow("pay")

    @flow.step
    async def charge(ctx: Step, card: str) -> dict[str, object]:
        await ctx.step("note", lambda: f"number {card}")
        await ctx.wait("ok")
        return {"card": card, "text": f"used {card}"}

    @flow.step(after=charge)
    async def fail(card: str) -> None:
        raise TerminalError(f"refused {card}")

    run = await flow.start("4711-0815")
    await run.signal("ok", {"card": "4711-0815"})
    await drain(hf)
    detail = await hf.ops.workflow_run(run.id)
    assert detail.listed.state == "failed"
    assert "4711-0815" not in dumps(detail)
    assert json.loads(str(detail.steps[0].result))["text"] != "used 4711-0815"
    page = await hf.ops.workflow_runs()
    assert page.items[0].run.id == run.id


def test_a_filter_of_runs_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="blocked"):
        run_filter(state="stuck")
