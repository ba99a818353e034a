"""The doctor and the metrics name runs that do not continue on their own."""

from datetime import timedelta

from holdfast import Holdfast
from holdfast.ops.doctor.checks import Finding, Level
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, eventually, logged, only, pass_time, query, working
from tests.workflows.test_operating import order


async def findings(hf: Holdfast) -> list[Finding]:
    return [one for one in await hf.ops.doctor() if one.check == "workflows"]


async def test_the_doctor_names_blocked_steps_and_signals_that_are_not_sent(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    assert await findings(hf) == []
    await drain(hf)
    (blocked,) = await findings(hf)
    assert blocked.level is Level.WARN
    assert "1 run of order waits for an operator at charge: card refused for lamp" in blocked.message
    assert blocked.remedy.endswith(f"`holdfast workflows retry {run.id}`")
    await pass_time(hf, timedelta(days=2), "delivery")
    messages = [one.message for one in await findings(hf)]
    assert any("for approved, the oldest for 2d" in one for one in messages)


async def test_the_doctor_names_runs_that_wait_for_a_trigger(hf: Holdfast, dsn: str) -> None:
    run = await order(hf, [False]).start("lamp")
    await run.signal("approved")
    await drain(hf)
    assert await findings(hf) == []
    amount = "2 * 86400000" if dsn.startswith("sqlite") else "interval '2 days'"
    await query(hf, f"update {{hf}}workflow_run set started_at = started_at - {amount}")
    (found,) = await findings(hf)
    assert "for a trigger for 2d" in found.message
    assert found.remedy.startswith(f"run `holdfast workflows trigger {run.id} ship`")


async def test_the_doctor_names_versions_that_no_worker_knows(hf: Holdfast, make_app: MakeApp) -> None:
    await order(hf).start("lamp")
    newer = make_app()
    flow = newer.workflow("order", version=2)

    @flow.step
    async def reserve(sku: str) -> None: ...

    async with working(newer):

        async def failing() -> list[Finding]:
            return [one for one in await findings(newer) if one.level is Level.FAIL]

        found = await eventually(failing)
    assert ["no live worker knows version 1" in one.message for one in found] == [True]
    assert "compatible_with= of version 2" in found[0].remedy


async def test_the_doctor_names_a_version_that_no_worker_knows_after_a_signal(hf: Holdfast, make_app: MakeApp) -> None:
    run = await order(hf).start("lamp")
    await drain(hf)
    newer = make_app()
    flow = newer.workflow("order", version=2)

    @flow.step
    async def approve(sku: str) -> None: ...

    async with working(newer):
        await run.signal("approved")

        async def failing() -> list[Finding]:
            return [one for one in await findings(newer) if one.level is Level.FAIL]

        found = await eventually(failing)
    assert ["no live worker knows version 1" in one.message for one in found] == [True]


async def test_metrics_count_active_runs_and_blocked_steps(hf: Holdfast) -> None:
    await order(hf).start("lamp")
    await drain(hf)
    families = {one.name: one for one in await hf.ops.metrics()}
    runs = {tuple(one.labels.values()): one.value for one in families["holdfast_workflow_runs"].samples}
    assert runs == {("order", "running"): 1, ("order", "compensating"): 0}
    blocked = {tuple(one.labels.values()): one.value for one in families["holdfast_workflow_blocked_steps"].samples}
    assert blocked == {("order", "charge"): 1}


async def test_a_step_of_an_unknown_version_is_put_back_for_longer_each_time(
    hf: Holdfast, make_app: MakeApp, log: Log
) -> None:
    await order(hf).start("lamp")
    newer = make_app()
    flow = newer.workflow("order", version=2)

    @flow.step
    async def reserve(sku: str) -> None: ...

    for claims in (1, 2, 6, 9):
        await query(newer, f"update {{hf}}delivery set run_at = created_at, fence = {claims - 1}")
        await drain(newer, idle_limit=timedelta(milliseconds=1))
        step = await only(newer, "order/reserve")
        assert (step.status.value, step.attempts, step.fence) == ("pending", 0, claims)
    assert [line["next_attempt_in"] for line in logged(log, "delivery snoozed")] == [1, 2, 30, 30]
