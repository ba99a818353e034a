"""Replay of dead letters that are steps of workflows."""

from click.testing import CliRunner

from holdfast import Filter, Holdfast, RetryPolicy, Step
from holdfast.interfaces.cli import main
from holdfast.stores.admin.plan import SkipReason
from tests.support.worker import drain, query


async def test_a_replay_skips_steps_of_runs_that_have_ended_and_names_the_retry(hf: Holdfast, dsn: str) -> None:
    flow, broken = hf.workflow("flow"), [True]

    @flow.step(retry=RetryPolicy.none())
    async def pay(ctx: Step, n: int) -> int:
        if broken[0]:
            raise ValueError("declined")
        return n

    run = await flow.start(1)
    await drain(hf)
    (dead,) = (await hf.ops.workflow_run(run.id)).steps
    assert dead.delivery_id is not None
    previewed = await hf.ops.plan_replay(Filter(consumers=("flow/pay",)))
    assert (previewed.items, previewed.skipped) == (0, {SkipReason.RUN_ENDED: 1})
    report = await hf.ops.replay([dead.delivery_id], actor="ada")
    assert (report.done, [one.why for one in report.skipped]) == ((), [SkipReason.RUN_ENDED])
    refused = CliRunner().invoke(main, ["replay", "--id", str(dead.delivery_id), "--yes"], env={"HOLDFAST_DSN": dsn})
    assert refused.exit_code == 4
    assert "a step of a run that has ended: retry the run with `holdfast workflows retry`" in refused.stderr
    # The run ends between the preview and the replay.
    for status, skipped in (("compensating", 1), ("running", 0)):
        await query(hf, "update {hf}workflow_run set status = 'running'")
        plan = await hf.ops.plan_replay(Filter(consumers=("flow/pay",)))
        assert plan.items == 1
        await query(hf, f"update {{hf}}workflow_run set status = '{status}'")
        assert [one.why for one in (await plan.execute(actor="ada")).skipped] == [SkipReason.RUN_ENDED] * skipped
    broken[0] = False
    await drain(hf)
    assert await run.result() == 1
